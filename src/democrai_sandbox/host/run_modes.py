"""Process in which each extension runs, whether the kernel confines it, and why."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from democrai_sandbox.access.store.audit_log import SYSTEM
from democrai_sandbox.access.values import AuditAction, AuditFilter, PageRequest
from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.runtime.extensions.settings import DEFAULT_ISOLATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension

    from .sandbox import Sandbox

_CHANGE = "isolation"
_MOST_NAMED = 100
_MOST_READ = 100


class RunMode(StrEnum):
    """Protection under which the code of an extension runs."""

    CONFINED = "confined"
    """In a worker, which the kernel restricts to the extension's files and to reviewed system calls."""
    DEGRADED = "degraded"
    """In a worker, under its guard; the machine cannot confine it completely."""
    GUARDED = "guarded"
    """In a worker, under its guard; the configuration turns confinement off."""
    IN_PROCESS = "in_process"
    """In the process of the application, under its guard."""


class ModeReport(NamedTuple):
    """Run mode of an extension, and why it applies."""

    mode: RunMode
    reason: str
    fix: str = ""


def modes(sandbox: Sandbox) -> Callable[[RegisteredExtension], ModeReport]:
    """Return a function for the mode of each extension, with the state of the kernel layer measured once."""
    in_worker = worker_mode(sandbox)
    settings = sandbox.runtime.settings

    def mode(extension: RegisteredExtension) -> ModeReport:
        if extension.kind is not ManifestKind.MODULE or settings.is_isolated(extension.subject):
            return in_worker
        label = str(extension.subject)
        name = label if label in settings.isolation else DEFAULT_ISOLATION
        return ModeReport(RunMode.IN_PROCESS, f"sandbox.isolation sets {name} to in_process")

    return mode


def worker_mode(sandbox: Sandbox) -> ModeReport:
    """Return the mode of all workers."""
    kernel = sandbox.kernel
    if not kernel.settings.wants_spawn_server:
        return ModeReport(RunMode.GUARDED, "sandbox.os.enabled is false")
    if sandbox.runtime.confinement.has_landlock and not kernel.unfiltered:
        return ModeReport(RunMode.CONFINED, "Landlock and seccomp restrict its worker")
    missing = kernel.status()["spawn_server"]
    return ModeReport(RunMode.DEGRADED, missing.reason, missing.fix)


def count_modes(sandbox: Sandbox) -> dict[str, int]:
    """Return the number of extensions by mode, without broken ones."""
    return dict(sorted(Counter(one.mode.value for one in _by_subject(sandbox).values()).items()))


def _by_subject(sandbox: Sandbox) -> dict[str, ModeReport]:
    mode = modes(sandbox)
    return {str(one.subject): mode(one) for one in sandbox.runtime.extensions if not one.is_broken}


def record_modes(sandbox: Sandbox, now: datetime) -> None:
    """Write to the audit log which extensions of this machine are not confined, if that has changed."""
    found = _by_subject(sandbox)
    others = {label: [one.mode, one.reason] for label, one in sorted(found.items()) if one.mode != RunMode.CONFINED}
    machine = sandbox.access.bus.node.partition(":")[0]
    about = {
        "text": f"isolation: {len(others)} of {len(found)} extensions are not confined on {machine}",
        "change": _CHANGE,
        "node": machine,
        "count": len(others),
        "extensions": dict(list(others.items())[:_MOST_NAMED]),
    }
    last = _last_record(sandbox, machine)
    before = None if last is None else {name: last[name] for name in ("count", "extensions")}
    if before != {"count": about["count"], "extensions": about["extensions"]} and (before or others):
        sandbox.runtime.store.note(about, before=before, now=now)


def _last_record(sandbox: Sandbox, machine: str) -> Mapping[str, Any] | None:
    noted = AuditFilter(actions=(AuditAction.NOTED,), actor=SYSTEM)
    for one in sandbox.access.store.audit(noted, PageRequest(limit=_MOST_READ)):
        if one.after and (one.after.get("change"), one.after.get("node")) == (_CHANGE, machine):
            return cast("Mapping[str, Any]", one.after)
    return None
