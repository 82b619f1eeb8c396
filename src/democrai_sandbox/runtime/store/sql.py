"""The store over SQLAlchemy Core: every method is one piece of work in one transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.store.journal import SYSTEM
from democrai_sandbox.access.store.sql import open_database

from . import modelling, registry, scheduling, shadowing, tasking
from .values import Failure, NewTask, Progress, Task, TaskFilter, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from democrai_sandbox.access.store.transactions import Database
    from democrai_sandbox.manifests import McpServer

    from .modelling import StoredModel
    from .shadowing import Finding, ShadowRun

_ALL = TaskFilter()
_NOTHING = registry.Configured()


def open_runtime_store(url: str, *, create: bool = True) -> RuntimeStore:
    """Return the store in the database of the access-policy service; an empty one is prepared.

    Raises ``SchemaOutdated`` and ``StoreUnavailable`` as ``open_store`` does.
    """
    return RuntimeStore(open_database(url, create=create))


class RuntimeStore:
    """Tasks, servers, models, settings. Synchronous, safe to use from many threads; ``StoreUnavailable`` when away."""

    def __init__(self, database: Database, configured: registry.Configured = _NOTHING) -> None:
        """Take a database whose schema is the present one, and what the configuration sets instead of it."""
        self._database = database
        self._configured = configured

    def close(self) -> None:
        """Let all connections go."""
        self._database.close()

    # ---- tasks

    def add_task(self, task: NewTask, *, now: datetime) -> None:
        """Put a task down before anything of it runs."""
        self._database.act(partial(tasking.add, task=task, now=now))

    def start_task(self, task_id: str, *, node: str, now: datetime) -> bool:
        """Say that a queued task runs now; False when it was cancelled or taken for lost meanwhile."""
        return self._database.act(partial(tasking.start, task_id=task_id, node=node, now=now))

    def say_progress(self, task_id: str, progress: Progress, *, node: str, now: datetime) -> bool:
        """Keep what a running task says about how far it is."""
        return self._database.act(partial(tasking.say_progress, task_id=task_id, node=node, progress=progress, now=now))

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
        """Say how a task ended; False when it has ended already."""
        return self._database.act(
            lambda connection: tasking.finish(connection, task_id, node, state, now, result=result, failure=failure)
        )

    def request_cancel(self, task_id: str) -> bool:
        """Ask whichever node has a task to end it; False when it has ended."""
        return self._database.act(partial(tasking.request_cancel, task_id=task_id))

    def retry_task(self, task_id: str, *, node: str, now: datetime) -> bool:
        """Queue a task again that failed, was cancelled or lost."""
        return self._database.act(partial(tasking.retry, task_id=task_id, node=node, now=now))

    def beat(self, *, node: str, now: datetime) -> tuple[str, ...]:
        """Say that a node lives; return the ids of its tasks that somebody wants to end."""
        return self._database.act(partial(tasking.beat, node=node, now=now))

    def mark_lost(self, *, silent_since: datetime, now: datetime, node: str = "") -> tuple[str, ...]:
        """Mark the unfinished tasks of silent nodes, and all of a node that has just begun anew, as lost."""
        if not self._database.ask(partial(tasking.is_any_gone, silent_since=silent_since, node=node)):
            return ()
        return self._database.act(
            lambda connection: tasking.mark_lost(connection, now, silent_since=silent_since, node=node)
        )

    def task(self, task_id: str) -> Task:
        """Return one task; raises ``TaskUnknown``."""
        return self._database.ask(partial(tasking.find, task_id=task_id))

    def tasks(self, wanted: TaskFilter = _ALL, *, limit: int = 100, before: str = "") -> tuple[Task, ...]:
        """List tasks, the newest first; ``before`` is the id of the last one seen."""
        return self._database.ask(partial(tasking.listed, wanted=wanted, limit=limit, before=before))

    def task_counts(self) -> dict[TaskState, int]:
        """Count the tasks that are kept, by state."""
        return self._database.ask(tasking.counts)

    def prune_tasks(self, *, before: datetime) -> int:
        """Forget tasks that ended before a time; return how many."""
        return self._database.act(partial(tasking.prune, before=before))

    # ---- schedules

    def ensure_schedule(self, module: str, name: str, every: timedelta, *, now: datetime) -> datetime:
        """Have a schedule; return when it is due next."""
        return self._database.act(partial(scheduling.ensure, module=module, name=name, every=every, now=now))

    def claim_run(self, task: NewTask, due: datetime, *, now: datetime) -> tuple[bool, datetime]:
        """Take the run of a schedule that was due at a time; return whether it was got, and the next time."""
        return self._database.act(partial(scheduling.claim, task=task, due=due, now=now))

    def next_time(self, module: str, name: str) -> datetime | None:
        """Return when a schedule is due; None where there is none."""
        return self._database.ask(partial(scheduling.next_time, module=module, name=name))

    def forget_schedule(self, module: str, name: str) -> bool:
        """Remove a schedule that no module declares any more."""
        return self._database.act(partial(scheduling.forget, module=module, name=name))

    # ---- MCP servers

    def add_mcp_server(
        self, entry: McpServer | Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> McpServer:
        """Add an entry of the registry; raises ``ManifestError`` with all that is wrong, or ``EntryExists``."""
        server = registry.checked_server(entry)
        self._configured.check_server(server.name)
        return self._database.act(partial(registry.add_server, server=server, now=now, actor=actor))

    def update_mcp_server(
        self, name: str, changes: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> McpServer:
        """Change an entry; raises ``EntryUnknown``, or ``ManifestError`` and nothing is changed."""
        self._configured.check_server(name)
        return self._database.act(partial(registry.update_server, name=name, changes=changes, now=now, actor=actor))

    def remove_mcp_server(self, name: str, *, now: datetime | None = None, actor: str = SYSTEM) -> None:
        """Remove an entry; raises ``EntryUnknown``."""
        self._configured.check_server(name)
        when = now or datetime.now(UTC)
        self._database.act(partial(registry.remove_server, name=name, now=when, actor=actor))

    def mcp_server(self, name: str) -> McpServer:
        """Return one entry; raises ``EntryUnknown``."""
        found = self._configured.servers.get(name)
        return found or self._database.ask(partial(registry.get_server, name=name))

    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return all entries by name."""
        stored = {server.name: server for server in self._database.ask(registry.list_servers)}
        found = {**stored, **self._configured.servers}
        return tuple(found[name] for name in sorted(found))

    def is_configured_server(self, name: str) -> bool:
        """Whether the configuration sets this MCP server."""
        return name in self._configured.servers

    # ---- models

    def add_model(
        self, name: str, made: Callable[[], StoredModel], *, now: datetime, actor: str = SYSTEM
    ) -> StoredModel:
        """Add the model that ``made`` returns; raises ``EntryExists`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(modelling.add, made=made, now=now, actor=actor))

    def change_model(
        self, name: str, changed: Callable[[StoredModel], StoredModel], *, now: datetime, actor: str = SYSTEM
    ) -> StoredModel:
        """Store what ``changed`` makes of a model; raises ``EntryUnknown`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(modelling.change, name=name, changed=changed, now=now, actor=actor))

    def remove_model(self, name: str, *, now: datetime, actor: str = SYSTEM) -> StoredModel:
        """Remove a model, and return what it was; raises ``EntryUnknown`` or ``EntryConfigured``."""
        self._configured.check_model(name)
        return self._database.act(partial(modelling.remove, name=name, now=now, actor=actor))

    def models(self) -> tuple[StoredModel, ...]:
        """Return the models of the database by name, but those that the configuration sets instead."""
        found = self._database.ask(modelling.listed)
        return tuple(model for model in found if model.name not in self._configured.models)

    def replace_model_keys(self, reseal: Callable[[StoredModel], bytes | None]) -> int:
        """Exchange the sealed keys for which ``reseal`` gives another; return how many. For new keys."""
        return self._database.act(partial(modelling.replace_keys, reseal=reseal))

    # ---- settings of engines and extractors

    def settings(self, kind: str, name: str) -> dict[str, Any]:
        """Return the configuration of an engine or extractor; empty where there is none."""
        if self.has_configured_settings(kind, name):
            return dict(self._configured.settings[f"{kind}:{name}"])
        return self._database.ask(partial(registry.get_settings, kind=kind, name=name))

    def has_configured_settings(self, kind: str, name: str) -> bool:
        """Whether the configuration sets the settings of an engine or extractor."""
        return f"{kind}:{name}" in self._configured.settings

    def set_settings(
        self, kind: str, name: str, settings: Mapping[str, object], *, now: datetime, actor: str = SYSTEM
    ) -> None:
        """Store a configuration, a JSON object, in place of the one before."""
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
        """Store what ``changed`` makes of the present configuration, in one step, and return it."""
        self._configured.check_settings(kind, name)
        return self._database.act(
            partial(registry.change_settings, kind=kind, name=name, changed=changed, now=now, actor=actor)
        )

    def remove_settings(self, kind: str, name: str) -> bool:
        """Forget a configuration."""
        self._configured.check_settings(kind, name)
        return self._database.act(partial(registry.remove_settings, kind=kind, name=name))

    def note_install(self, kind: str, name: str, *, now: datetime, actor: str) -> None:
        """Write into the audit who had an engine or extractor installed."""
        self._database.act(partial(registry.note_install, kind=kind, name=name, now=now, actor=actor))

    # ---- shadow runs

    def start_shadow(self, run: ShadowRun) -> None:
        """Put a run down, with a note in the audit; raises ``EntryExists`` while another one of its subject goes on."""
        self._database.act(partial(shadowing.start, run=run))

    def end_shadow(self, run_id: str, *, actor: str, now: datetime) -> bool:
        """End a run, with a note in the audit; False when it has ended. Raises ``EntryUnknown``."""
        return self._database.act(partial(shadowing.end, run_id=run_id, actor=actor, now=now))

    def add_findings(self, run_id: str, findings: Iterable[Finding]) -> None:
        """Add to what is known of a run; what there is no room for is only counted."""
        self._database.act(partial(shadowing.add, run_id=run_id, findings=tuple(findings)))

    def shadow(self, run_id: str) -> ShadowRun:
        """Return one run; raises ``EntryUnknown``."""
        return self._database.ask(partial(shadowing.find, run_id=run_id))

    def shadows(self, *, running: bool = False) -> tuple[ShadowRun, ...]:
        """Return the runs, the newest first; of those that have ended, the last ones."""
        return self._database.ask(partial(shadowing.listed, running=running))

    def findings(self, run_id: str) -> tuple[Finding, ...]:
        """Return what a run has found, the most frequent first."""
        return self._database.ask(partial(shadowing.findings, run_id=run_id))

    def finding_counts(self) -> dict[str, tuple[int, int]]:
        """Return by run how many things its candidate would newly deny, and newly allow."""
        return self._database.ask(shadowing.counts)
