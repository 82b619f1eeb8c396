"""Store of the runtimes over SQLAlchemy Core: every method is one transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.store.audit_log import SYSTEM
from democrai_sandbox.access.store.sql_store import open_database

from . import model_rows, registration_rows, schedule_rows, shadow_rows, task_rows
from .values import Failure, NewTask, Progress, Task, TaskFilter, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from democrai_sandbox.access.store.database import Database
    from democrai_sandbox.manifests import McpServer

    from .model_rows import StoredModel
    from .shadow_rows import ShadowDifference, ShadowRun

_ALL = TaskFilter()
_NOTHING = registration_rows.Configured()


def open_runtime_store(url: str, *, create: bool = True) -> RuntimeStore:
    """Return the store in the database of the access-policy service; create the schema in an empty database.

    Raises ``SchemaOutdated`` and ``StoreUnavailable`` as ``open_store`` does.
    """
    return RuntimeStore(open_database(url, create=create))


class RuntimeStore:
    """Tasks, servers, models, settings.

    Synchronous and thread-safe; raises ``StoreUnavailable`` if the database is down.
    """

    def __init__(self, database: Database, configured: registration_rows.Configured = _NOTHING) -> None:
        """Take a database with the current schema, and the entries that the configuration sets instead."""
        self._database = database
        self._configured = configured

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    # ---- tasks

    def add_task(self, task: NewTask, *, now: datetime) -> None:
        """Store a task before it runs."""
        self._database.act(partial(task_rows.add, task=task, now=now))

    def start_task(self, task_id: str, *, node: str, now: datetime) -> bool:
        """Mark a queued task as running; False if it was canceled or marked as lost meanwhile."""
        return self._database.act(partial(task_rows.start, task_id=task_id, node=node, now=now))

    def say_progress(self, task_id: str, progress: Progress, *, node: str, now: datetime) -> bool:
        """Store the progress of a running task."""
        return self._database.act(
            partial(task_rows.say_progress, task_id=task_id, node=node, progress=progress, now=now)
        )

    def finish_task(
        self,
        task_id: str,
        state: TaskState,
        *,
        node: str,
        now: datetime,
        result: Any = None,
        failure: Failure | None = None,
    ) -> bool:
        """Store the end of a task; False if it has already ended."""
        return self._database.act(
            lambda connection: task_rows.finish(connection, task_id, node, state, now, result=result, failure=failure)
        )

    def request_cancel(self, task_id: str) -> bool:
        """Request the cancellation of a task on its node; False if it has ended."""
        return self._database.act(partial(task_rows.request_cancel, task_id=task_id))

    def retry_task(self, task_id: str, *, node: str, now: datetime) -> bool:
        """Queue a failed, canceled or lost task again."""
        return self._database.act(partial(task_rows.retry, task_id=task_id, node=node, now=now))

    def beat(self, *, node: str, now: datetime) -> tuple[str, ...]:
        """Store the heartbeat of a node; return the ids of its tasks with a cancellation request."""
        return self._database.act(partial(task_rows.beat, node=node, now=now))

    def mark_lost(self, *, silent_since: datetime, now: datetime, node: str = "") -> tuple[str, ...]:
        """Mark the unfinished tasks of silent nodes, and all of a node that has just restarted, as lost."""
        if not self._database.ask(partial(task_rows.is_any_gone, silent_since=silent_since, node=node)):
            return ()
        return self._database.act(
            lambda connection: task_rows.mark_lost(connection, now, silent_since=silent_since, node=node)
        )

    def task(self, task_id: str) -> Task:
        """Return one task; raises ``TaskUnknown``."""
        return self._database.ask(partial(task_rows.find, task_id=task_id))

    def tasks(self, wanted: TaskFilter = _ALL, *, limit: int = 100, before: str = "") -> tuple[Task, ...]:
        """List tasks, the newest first; ``before`` is the id of the last one seen."""
        return self._database.ask(partial(task_rows.listed, wanted=wanted, limit=limit, before=before))

    def task_counts(self) -> dict[TaskState, int]:
        """Count the stored tasks by state."""
        return self._database.ask(task_rows.counts)

    def prune_tasks(self, *, before: datetime) -> int:
        """Delete tasks that ended before a time; return their number."""
        return self._database.act(partial(task_rows.prune, before=before))

    # ---- schedules

    def ensure_schedule(self, module: str, name: str, every: timedelta, *, now: datetime) -> datetime:
        """Create or update a schedule; return its next due time."""
        return self._database.act(partial(schedule_rows.ensure, module=module, name=name, every=every, now=now))

    def claim_run(self, task: NewTask, due: datetime, *, now: datetime) -> tuple[bool, datetime]:
        """Claim the run of a schedule that was due at a time; return whether it was claimed, and the next time."""
        return self._database.act(partial(schedule_rows.claim, task=task, due=due, now=now))

    def next_time(self, module: str, name: str) -> datetime | None:
        """Return the due time of a schedule; None if it does not exist."""
        return self._database.ask(partial(schedule_rows.next_time, module=module, name=name))

    def forget_schedule(self, module: str, name: str) -> bool:
        """Remove a schedule that no module declares any more."""
        return self._database.act(partial(schedule_rows.forget, module=module, name=name))

    # ---- MCP servers

    def add_mcp_server(
        self, entry: McpServer | Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> McpServer:
        """Add an entry of the registry; raises ``ManifestError`` with all problems, or ``EntryExists``."""
        server = registration_rows.checked_server(entry)
        self._configured.check_server(server.name)
        return self._database.act(partial(registration_rows.add_server, server=server, now=now, actor=actor))

    def update_mcp_server(
        self, name: str, changes: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> McpServer:
        """Change an entry; raises ``EntryUnknown`` or ``ManifestError`` without changing it."""
        self._configured.check_server(name)
        return self._database.act(
            partial(registration_rows.update_server, name=name, changes=changes, now=now, actor=actor)
        )

    def remove_mcp_server(self, name: str, *, now: datetime | None = None, actor: str = SYSTEM) -> None:
        """Remove an entry; raises ``EntryUnknown``."""
        self._configured.check_server(name)
        when = now or datetime.now(UTC)
        self._database.act(partial(registration_rows.remove_server, name=name, now=when, actor=actor))

    def mcp_server(self, name: str) -> McpServer:
        """Return one entry; raises ``EntryUnknown``."""
        found = self._configured.servers.get(name)
        return found or self._database.ask(partial(registration_rows.get_server, name=name))

    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return all entries by name."""
        stored = {server.name: server for server in self._database.ask(registration_rows.list_servers)}
        found = {**stored, **self._configured.servers}
        return tuple(found[name] for name in sorted(found))

    def is_configured_server(self, name: str) -> bool:
        """Return whether the configuration sets this MCP server."""
        return name in self._configured.servers

    # ---- models

    def add_model(
        self, name: str, made: Callable[[], StoredModel], *, now: datetime, actor: str = SYSTEM
    ) -> StoredModel:
        """Add the model that ``made`` returns; raises ``EntryExists`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(model_rows.add, made=made, now=now, actor=actor))

    def change_model(
        self, name: str, changed: Callable[[StoredModel], StoredModel], *, now: datetime, actor: str = SYSTEM
    ) -> StoredModel:
        """Store the model that ``changed`` returns; raises ``EntryUnknown`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(model_rows.change, name=name, changed=changed, now=now, actor=actor))

    def remove_model(self, name: str, *, now: datetime, actor: str = SYSTEM) -> StoredModel:
        """Remove and return a model; raises ``EntryUnknown`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(model_rows.remove, name=name, now=now, actor=actor))

    def models(self) -> tuple[StoredModel, ...]:
        """Return the models of the database by name, except those that the configuration sets instead."""
        found = self._database.ask(model_rows.listed)
        return tuple(model for model in found if model.name not in self._configured.models)

    def replace_model_keys(self, reseal: Callable[[StoredModel], bytes | None]) -> int:
        """Replace the sealed keys for which ``reseal`` returns another; return their number. For key rotation."""
        return self._database.act(partial(model_rows.replace_keys, reseal=reseal))

    # ---- settings of engines and extractors

    def settings(self, kind: str, name: str) -> dict[str, Any]:
        """Return the configuration of an engine or extractor; empty if none is stored."""
        if self.has_configured_settings(kind, name):
            return dict(self._configured.settings[f"{kind}:{name}"])
        return self._database.ask(partial(registration_rows.get_settings, kind=kind, name=name))

    def has_configured_settings(self, kind: str, name: str) -> bool:
        """Return whether the configuration sets the settings of an engine or extractor."""
        return f"{kind}:{name}" in self._configured.settings

    def set_settings(
        self, kind: str, name: str, settings: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> None:
        """Replace the stored configuration by a JSON object."""
        self.change_settings(kind, name, lambda _: settings, now=now, actor=actor)

    def change_settings(
        self,
        kind: str,
        name: str,
        changed: Callable[[dict[str, Any]], object],
        *,
        now: datetime,
        actor: str,
    ) -> dict[str, Any]:
        """Store and return the configuration that ``changed`` makes of the current one, atomically."""
        self._configured.check_settings(kind, name)
        return self._database.act(
            partial(registration_rows.change_settings, kind=kind, name=name, changed=changed, now=now, actor=actor)
        )

    def remove_settings(self, kind: str, name: str) -> bool:
        """Remove a stored configuration."""
        self._configured.check_settings(kind, name)
        return self._database.act(partial(registration_rows.remove_settings, kind=kind, name=name))

    def note_install(self, kind: str, name: str, *, now: datetime, actor: str) -> None:
        """Record in the audit log who started the installation of an engine or extractor."""
        self._database.act(partial(registration_rows.note_install, kind=kind, name=name, now=now, actor=actor))

    # ---- shadow runs

    def start_shadow(self, run: ShadowRun) -> None:
        """Store a run with an audit record; raises ``EntryExists`` while another run of its subject is running."""
        self._database.act(partial(shadow_rows.start, run=run))

    def end_shadow(self, run_id: str, *, actor: str, now: datetime) -> bool:
        """End a run with an audit record; False if it has ended. Raises ``EntryUnknown``."""
        return self._database.act(partial(shadow_rows.end, run_id=run_id, actor=actor, now=now))

    def add_findings(self, run_id: str, findings: Iterable[ShadowDifference]) -> None:
        """Add findings to a run; beyond the limit they are only counted."""
        self._database.act(partial(shadow_rows.add, run_id=run_id, findings=tuple(findings)))

    def shadow(self, run_id: str) -> ShadowRun:
        """Return one run; raises ``EntryUnknown``."""
        return self._database.ask(partial(shadow_rows.find, run_id=run_id))

    def shadows(self, *, running: bool = False) -> tuple[ShadowRun, ...]:
        """Return the runs, the newest first; only the latest of those that have ended."""
        return self._database.ask(partial(shadow_rows.listed, running=running))

    def findings(self, run_id: str) -> tuple[ShadowDifference, ...]:
        """Return the findings of a run, the most frequent first."""
        return self._database.ask(partial(shadow_rows.findings, run_id=run_id))

    def finding_counts(self) -> dict[str, tuple[int, int]]:
        """Return the number of accesses that each run's candidate would newly deny, and newly allow."""
        return self._database.ask(shadow_rows.counts)
