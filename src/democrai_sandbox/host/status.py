"""Measured state of every layer of a running sandbox, for the status page, the API and the command line."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from democrai_sandbox import __version__
from democrai_sandbox.access.node import ask_in_time
from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.access.store.schema import HEAD
from democrai_sandbox.access.values import PageRequest
from democrai_sandbox.errors import SandboxDenied, SchemaOutdated, StoreUnavailable
from democrai_sandbox.guard import _core, exact_guard_context, live_states, patched_entries
from democrai_sandbox.host.explain.declared_rights import outside_lists
from democrai_sandbox.runtime.confinement.confiner import unenforced_limits
from democrai_sandbox.runtime.store import TaskFilter
from democrai_sandbox.runtime.store.values import UNFINISHED

from .directories import declared_files
from .run_modes import RunMode, count_modes, worker_mode
from .status_report import LayerReport, ReportArea, ReportLine, ReportLineState, control_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from democrai_sandbox.access.store import SqlStore
    from democrai_sandbox.access.values import Resumption
    from democrai_sandbox.runtime.store.values import Task

    from .sandbox import Sandbox

__all__ = ["LayerReport", "ReportArea", "ReportLine", "ReportLineState", "report"]

_MOST_COUNTED = 1000
_LATE_AFTER_POLLS = 5
_SLOW_STORE = 1.0
_NOWHERE = "/democrai-sandbox-canary/nothing/here"
_CANARIES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("creating a folder", lambda: os.mkdir(_NOWHERE)),  # noqa: PTH102 - the guarded function
    ("removing a file", lambda: os.unlink(_NOWHERE)),  # noqa: PTH108 - the same
    ("signaling a process", lambda: os.kill(os.getpid(), 0)),
)
_AWAY = "check that the database server is running and reachable; undeclared access is refused until then"


def report(sandbox: Sandbox) -> LayerReport:
    """Measure every layer without changing anything. Queries the database and the helper, so not on an event loop."""
    kernel = sandbox.kernel.status()
    wanted = frozenset(sandbox.kernel.wanted)
    lines = [_guard_line(), _store_line(sandbox), _snapshot_line(sandbox), _events_line(sandbox)]
    lines += [control_line(control, wanted=control.name in wanted) for control in kernel.controls]
    lines += [_extensions_line(sandbox), _workers_line(sandbox), *_work_lines(sandbox)]
    node = sandbox.access.bus.node
    return LayerReport(datetime.now(UTC), __version__, node, os.getpid(), tuple(lines), kernel.attempts)


# ---- Python guard ----------------------------------------------------------------------------------------------------


def _guard_line() -> ReportLine:
    entries = patched_entries()
    guarded = sum(is_patched for *_, is_patched in entries)
    details: dict[str, object] = {
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "entry_points": guarded,
        "not_in_this_interpreter": len(entries) - guarded,
        "settings_sealed": _core.is_sealed(),
        "guards_entered_now": live_states(),
    }
    line = ReportLine("guard", "Python guard", ReportArea.GUARD, details=details)
    if passed := [name for name, act in _CANARIES if not _is_stopped(act)]:
        return line.off(
            f"not effective: {', '.join(passed)} succeeded under a guard", "stop this process and restart it"
        )
    return line.ok(f"active: {guarded} guarded functions; every canary was stopped just now")


def _is_stopped(act: Callable[[], object]) -> bool:
    """Return whether a guard that allows nothing stops a harmless operation."""
    try:
        exact_guard_context(subject="canary", subject_kind="core", include_runtime_paths=False).run(act)
    except OSError as error:  # another error comes from the system
        return isinstance(error, SandboxDenied)
    return False


# ---- decisions -------------------------------------------------------------------------------------------------------


def _store_line(sandbox: Sandbox) -> ReportLine:
    url = parse_url(sandbox.settings.database)
    details: dict[str, object] = {"url": shown_url(url), "schema": HEAD}
    line = ReportLine("store", "Database", ReportArea.DECISIONS, details=details)
    begun = perf_counter()
    try:
        details["schema"] = version = ask_in_time(sandbox.access.node, partial(_schema_asked, sandbox.access.store))
    except SchemaOutdated as error:
        return line.degraded("the schema version does not match", str(error))
    except StoreUnavailable as error:
        summary = f"not reachable ({type(error.__cause__ or error).__name__})"
        return line.off(summary, _AWAY)
    seconds = perf_counter() - begun
    details["milliseconds"] = round(seconds * 1000, 1)
    # With a newer schema an upgrade has begun, and this node should be updated.
    schema = version if version == HEAD else f"{version} (newer than this node's {HEAD}, still usable)"
    answered = f"{url.get_backend_name()}, schema {schema}, answered in {seconds * 1000:.1f} ms"
    if seconds > _SLOW_STORE:
        return line.degraded(answered, "check the load of the database")
    return line.ok(answered)


def _schema_asked(store: SqlStore) -> str:
    version = store.check_schema()
    store.generation()
    return version


def _snapshot_line(sandbox: Sandbox) -> ReportLine:
    status, poll = sandbox.access.node.status, sandbox.settings.poll_seconds
    age = status.seconds_since_refresh
    details = {
        "node": status.node,
        "generation": status.generation,
        "seconds_since_refresh": round(age, 2),
        "poll_seconds": poll,
    }
    line = ReportLine("snapshot", "Decisions in memory", ReportArea.DECISIONS, details=details)
    seen = f"generation {status.generation}, read {age:.1f} s ago"
    if not status.store_reachable:
        return line.degraded(f"{seen}; the database is down, known decisions hold")
    if age > max(_LATE_AFTER_POLLS * poll, _LATE_AFTER_POLLS):
        return line.degraded(f"{seen}; expected every {poll:g} s", "check the log for errors of the reader")
    return line.ok(seen)


def _events_line(sandbox: Sandbox) -> ReportLine:
    kind, poll = sandbox.settings.stream_type, sandbox.settings.poll_seconds
    connected = sandbox.access.node.status.bus_connected
    details = {"type": kind, "connected": connected, "node": sandbox.access.bus.node}
    line = ReportLine("events", "Events", ReportArea.DECISIONS, details=details)
    if not connected:
        summary = f"{kind}: not connected; decisions still reach other nodes within {poll:g} s"
        return line.degraded(summary, "check network.stream in the configuration")
    reach = "within this process" if kind == "memory" else "connected; decisions reach other nodes immediately"
    return line.ok(f"{kind}: {reach}")


# ---- runtime ---------------------------------------------------------------------------------------------------------


def _extensions_line(sandbox: Sandbox) -> ReportLine:
    found = sandbox.runtime.extensions
    broken = [str(extension.subject) for extension in found if extension.is_broken]
    kinds = Counter(extension.kind.value for extension in found)
    shut = {
        str(one.subject): tuple(dict.fromkeys(rule.normalized_target for rule in rules))
        for one in found
        if (rules := outside_lists(sandbox.kernel, declared_files(one)))
    }
    details: dict[str, object] = {**kinds, "broken": broken, "outside_landlock": shut}
    line = ReportLine("extensions", "Extensions", ReportArea.RUNTIME, details=details)
    counted = ", ".join(_number(number, kind) for kind, number in kinds.items()) or "none"
    if broken:
        summary = f"{counted}; {len(broken)} cannot run"
        fix = f"check the problems of {', '.join(broken[:5])}{', …' if len(broken) > 5 else ''}"  # noqa: PLR2004
        return line.degraded(summary, fix)
    if shut:
        subject, paths = next(iter(shut.items()))
        summary = f"{counted}; Landlock denies {paths[0]} to {subject}, which declares it"
        fix = "create the path and restart the application: Landlock is applied at the start"
        return line.degraded(summary, fix)
    return line.ok(counted)


def _workers_line(sandbox: Sandbox) -> ReportLine:
    """Return the loaded modules and the worker processes; engines and extractors start theirs on first use."""
    runtime = sandbox.runtime
    modules = tuple(runtime.modules.all_loaded())
    apart = {str(one.extension.subject): one.worker.pid for one in modules if one.worker is not None}
    for kind, installed in (("engine", runtime.engines), ("extractor", runtime.extractors)):
        apart |= {f"{kind}:{name}": pid for name, pid in installed.workers.items()}
    running = sum(pid is not None for pid in apart.values())
    counts = count_modes(sandbox)
    told = "".join(f", {number} {name.replace('_', ' ')}" for name, number in counts.items())
    summary = (
        f"{_number(len(modules), 'module')} loaded, {_number(running, 'worker process', 'worker processes')}{told}"
    )
    held = runtime.confinement
    details = {
        "loaded": len(modules),
        "processes": apart,
        "modes": counts,
        "unconfined": held.unconfined,
        "unenforced": held.unenforced,
        "unenforced_limits": unenforced_limits(processes=held.limits_processes),
        "closed": held.closed,
    }
    line = ReportLine("workers", "Workers", ReportArea.RUNTIME, summary=summary, details=details)
    mode, reason, fix = worker_mode(sandbox)
    if mode is RunMode.DEGRADED:
        return line.degraded(f"{summary}; the kernel does not confine workers completely: {reason}", fix)
    return line if mode is RunMode.CONFINED else line.ok(f"{summary}; the kernel does not confine workers: {reason}")


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _unfinished(sandbox: Sandbox) -> tuple[Sequence[Task], Sequence[Resumption]]:
    tasks = sandbox.runtime.store.tasks(TaskFilter(states=UNFINISHED), limit=_MOST_COUNTED)
    return tasks, sandbox.access.store.resumes(unfinished=True, page=PageRequest(limit=_MOST_COUNTED)).items


def _work_lines(sandbox: Sandbox) -> Iterator[ReportLine]:
    try:
        tasks, resumes = ask_in_time(sandbox.access.node, partial(_unfinished, sandbox))
    except StoreUnavailable:
        for name, title in (("tasks", "Tasks"), ("resumes", "Resumptions")):
            yield ReportLine(name, title, ReportArea.RUNTIME).degraded("the database is not reachable", _AWAY)
        return
    states = Counter(task.state.value for task in tasks)
    nodes = sorted({task.node for task in tasks})
    told = ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none unfinished"
    yield ReportLine("tasks", "Tasks", ReportArea.RUNTIME, summary=told, details={**states, "nodes": nodes})
    failing = sum(bool(resume.last_error) for resume in resumes)
    told = f"{len(resumes)} waiting or running" if resumes else "none waiting"
    line = ReportLine("resumes", "Resumptions", ReportArea.RUNTIME, summary=told, details={"unfinished": len(resumes)})
    yield line.degraded(f"{told}; {failing} failed and will be retried", "check their requests") if failing else line
