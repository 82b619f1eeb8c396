"""Data of the runtimes in the database of the access-policy service: tasks, MCP servers, models, settings."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from democrai_sandbox.access.store import open_database
from democrai_sandbox.access.store.audit_log import SYSTEM
from democrai_sandbox.access.store.database import Database, DatabaseStore, query, transaction
from democrai_sandbox.errors.services import EntryConfigured, EntryExists, EntryUnknown

from . import registration_rows, task_rows
from .registration_rows import Configured, ShadowDifference, ShadowEffect, ShadowRun, StoredModel
from .values import Failure, NewTask, Progress, Task, TaskCaller, TaskFilter, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from sqlalchemy import Connection

    from democrai_sandbox.manifests import McpServer


__all__ = [
    "Configured",
    "EntryConfigured",
    "EntryExists",
    "EntryUnknown",
    "Failure",
    "NewTask",
    "Progress",
    "RuntimeStore",
    "ShadowDifference",
    "ShadowEffect",
    "ShadowRun",
    "StoredModel",
    "Task",
    "TaskCaller",
    "TaskFilter",
    "TaskState",
    "open_runtime_store",
]

T = TypeVar("T")
P = ParamSpec("P")
_NOTHING = Configured()


def open_runtime_store(url: str, *, create: bool = True) -> RuntimeStore:
    """Return the store in the database of the access-policy service; create the schema in an empty database.

    Raises ``SchemaOutdated`` and ``StoreUnavailable`` as ``open_store`` does.
    """
    return RuntimeStore(open_database(url, create=create))


def _change_of(
    check: Callable[[Configured, str], None], operation: Callable[Concatenate[Connection, str, P], T]
) -> Callable[Concatenate[RuntimeStore, str, P], T]:
    """Return a method that changes an entry by name, unless the configuration sets it (``EntryConfigured``)."""

    @wraps(operation)
    def run(store: RuntimeStore, name: str, *args: P.args, **named: P.kwargs) -> T:
        check(store._configured, name)  # noqa: SLF001 - a method of the class
        return store.database.act(lambda connection: operation(connection, name, *args, **named))

    return run  # type: ignore[return-value] # the name may also be passed by keyword


class RuntimeStore(DatabaseStore):
    """Data of the runtimes, and the entries of the configuration, which replace those of the database."""

    def __init__(self, database: Database, configured: Configured = _NOTHING) -> None:
        super().__init__(database)
        self._configured = configured

    # ---- tasks and schedules

    add_task = transaction(task_rows.add)
    start_task = transaction(task_rows.start)
    say_progress = transaction(task_rows.say_progress)
    finish_task = transaction(task_rows.finish)
    request_cancel = transaction(task_rows.request_cancel)
    retry_task = transaction(task_rows.retry)
    beat = transaction(task_rows.beat)
    task = query(task_rows.find)
    tasks = query(task_rows.listed)
    task_counts = query(task_rows.counts)
    prune_tasks = transaction(task_rows.prune)
    ensure_schedule = transaction(task_rows.ensure_schedule)
    claim_run = transaction(task_rows.claim_run)
    next_time = query(task_rows.next_time)
    forget_schedule = transaction(task_rows.forget_schedule)
    _is_any_gone = query(task_rows.is_any_gone)
    _mark_lost = transaction(task_rows.mark_lost)

    def mark_lost(self, *, silent_since: datetime, now: datetime, node: str = "") -> tuple[str, ...]:
        """Mark the unfinished tasks of silent nodes, and all of a node that has just restarted, as lost."""
        if not self._is_any_gone(silent_since=silent_since, node=node):
            return ()
        return self._mark_lost(silent_since=silent_since, now=now, node=node)

    # ---- MCP servers

    _add_server = transaction(registration_rows.add_server)
    _get_server = query(registration_rows.get_server)
    _list_servers = query(registration_rows.list_servers)
    update_mcp_server = _change_of(Configured.check_server, registration_rows.update_server)
    remove_mcp_server = _change_of(Configured.check_server, registration_rows.remove_server)

    def add_mcp_server(
        self, entry: McpServer | Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> McpServer:
        """Add an entry of the registry; raises ``ManifestError`` with all problems, or ``EntryExists``."""
        server = registration_rows.checked_server(entry)
        self._configured.check_server(server.name)
        return self._add_server(server, now=now, actor=actor)

    def mcp_server(self, name: str) -> McpServer:
        """Return one entry; raises ``EntryUnknown``."""
        found = self._configured.servers.get(name)
        return found or self._get_server(name)

    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return all entries by name."""
        stored = {server.name: server for server in self._list_servers()}
        found = {**stored, **self._configured.servers}
        return tuple(found[name] for name in sorted(found))

    def is_configured_server(self, name: str) -> bool:
        """Return whether the configuration sets this MCP server."""
        return name in self._configured.servers

    # ---- models

    add_model = _change_of(Configured.check_model, registration_rows.add_model)
    change_model = _change_of(Configured.check_model, registration_rows.change_model)
    remove_model = _change_of(Configured.check_model, registration_rows.remove_model)
    _list_models = query(registration_rows.list_models)
    replace_model_keys = transaction(registration_rows.replace_model_keys)

    def models(self) -> tuple[StoredModel, ...]:
        """Return the models of the database by name, except those that the configuration sets instead."""
        return tuple(model for model in self._list_models() if model.name not in self._configured.models)

    # ---- settings of engines and extractors

    _get_settings = query(registration_rows.get_settings)
    _change_settings = transaction(registration_rows.change_settings)
    _remove_settings = transaction(registration_rows.remove_settings)
    note_install = transaction(registration_rows.note_install)
    note = transaction(registration_rows.note)

    def settings(self, kind: str, name: str) -> dict[str, Any]:
        """Return the configuration of an engine or extractor; empty if none is stored."""
        if self.has_configured_settings(kind, name):
            return dict(self._configured.settings[f"{kind}:{name}"])
        return self._get_settings(kind, name)

    def has_configured_settings(self, kind: str, name: str) -> bool:
        """Return whether the configuration sets the settings of an engine or extractor."""
        return f"{kind}:{name}" in self._configured.settings

    def set_settings(
        self, kind: str, name: str, settings: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> None:
        """Replace the stored configuration by a JSON object."""
        self.change_settings(kind, name, lambda _: settings, now=now, actor=actor)

    def change_settings(
        self, kind: str, name: str, changed: Callable[[dict[str, Any]], object], *, now: datetime, actor: str
    ) -> dict[str, Any]:
        """Store and return the configuration that ``changed`` makes of the current one, atomically."""
        self._configured.check_settings(kind, name)
        return self._change_settings(kind, name, changed, now=now, actor=actor)

    def remove_settings(self, kind: str, name: str) -> bool:
        """Remove a stored configuration."""
        self._configured.check_settings(kind, name)
        return self._remove_settings(kind, name)

    # ---- shadow runs

    start_shadow = transaction(registration_rows.start)
    end_shadow = transaction(registration_rows.end)
    shadow = query(registration_rows.find)
    shadows = query(registration_rows.listed)
    findings = query(registration_rows.findings)
    finding_counts = query(registration_rows.counts)
    add_findings = transaction(registration_rows.add)
