"""Effect of the kernel layer on an access, beside the guard's decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.targets import RequestedTarget
from democrai_sandbox.host.directories import READING
from democrai_sandbox.kernel.application import readable, writable
from democrai_sandbox.kernel.status import EGRESS, LANDLOCK, SECCOMP, ControlState
from democrai_sandbox.policy import ResourceType, TargetKind, is_at_or_below
from democrai_sandbox.policy.hosts import host_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.kernel.egress.allowlist import Allowlist
    from democrai_sandbox.kernel.status import ControlStatus
    from democrai_sandbox.policy import AccessRule, NetworkTarget


class KernelView(NamedTuple):
    """Result of one control for an access."""

    layer: str
    lets_through: bool | None
    """None if the control does not apply or is not in force."""
    text: str
    disagreement: str = ""
    """Set if the control and the guard give different results."""


def kernel_view(kernel: Kernel, wanted: RequestedTarget, *, allowed: bool) -> KernelView:
    """Return the kernel's result; ``allowed`` is the guard's result."""
    if wanted.resource_type is ResourceType.FILESYSTEM:
        return _landlock(kernel, wanted, allowed=allowed)
    if wanted.parsed is not None:
        return _egress(kernel, wanted.parsed, allowed=allowed)
    text = "the spawn server starts programs and confines them to the rules of their subject"
    if kernel.spawn is None:
        return KernelView(LANDLOCK, lets_through=None, text="programs are started directly, without confinement")
    ended = "; other programs that the application starts are killed with SIGSYS" if SECCOMP in kernel.wanted else ""
    return KernelView(LANDLOCK, lets_through=None, text=f"{text}{ended}")


def outside_lists(kernel: Kernel, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
    """Return the file rules that Landlock denies to the whole application."""
    if kernel.baseline is None:
        return ()
    absent = _missing(kernel)
    return tuple(rule for rule in rules if all(root in absent for root in _roots(kernel, rule)))


def _roots(kernel: Kernel, wanted: RequestedTarget | AccessRule) -> list[str]:
    target = wanted.target if isinstance(wanted, RequestedTarget) else wanted.normalized_target
    listed = readable(kernel.baseline) if wanted.operation in READING else writable(kernel.baseline)
    return [path for path in listed if is_at_or_below(target, path)]


def _missing(kernel: Kernel) -> tuple[str, ...]:
    """Return the listed paths that did not exist when Landlock was applied."""
    missing = kernel.status()[LANDLOCK].details.get("missing")
    return missing if isinstance(missing, tuple) else ()


def _landlock(kernel: Kernel, wanted: RequestedTarget, *, allowed: bool) -> KernelView:
    if kernel.baseline is None:
        text = _absent(kernel, LANDLOCK, "Landlock does not restrict this process")
        return KernelView(LANDLOCK, lets_through=None, text=text)
    reading = wanted.operation in READING
    absent = _missing(kernel)
    roots = _roots(kernel, wanted)
    root = next((path for path in roots if path not in absent), None)
    if root is not None:
        what = "read" if reading else "written"
        children = "; its children are also restricted by their own rules" if kernel.spawn else ""
        text = f"Landlock allows it for the whole application: {root} may be {what}{children}"
        return KernelView(LANDLOCK, lets_through=True, text=text)
    text = f"Landlock denies {wanted.target} to the whole application"
    if not allowed:
        return KernelView(LANDLOCK, lets_through=False, text=text)
    extra = "extra_read_paths" if reading else "extra_write_paths"
    fix = f"create it, add it to sandbox.os.landlock.{extra} and restart"
    if roots:
        fix = f"{roots[0]} did not exist when the application started: create it and restart"
    disagreement = f"the guard allows it, but the kernel does not: {fix}"
    return KernelView(LANDLOCK, lets_through=False, text=text, disagreement=disagreement)


def _egress(kernel: Kernel, target: NetworkTarget, *, allowed: bool) -> KernelView:
    if target.kind is TargetKind.UNIX:
        return KernelView(EGRESS, lets_through=None, text="the packet filter does not apply to unix sockets")
    if kernel.egress is None:
        return KernelView(EGRESS, lets_through=None, text=_absent(kernel, EGRESS, "no packet filter is in force"))
    sources = _wanting(kernel.egress.builder.build(), target)
    where = f"{target.host} port {target.port}" if target.port else target.host
    if not allowed:
        return _closed(where, sources)
    status = kernel.egress.status()
    if flaw := _flaw(status, target, wanted=bool(sources)):
        disagreement = f"the guard allows it, but the packet filter does not: {flaw}"
        return KernelView(EGRESS, lets_through=False, text=f"packets to {where} are blocked", disagreement=disagreement)
    doubt = _doubt(status)
    if sources:
        text = f"packets to {where} are allowed for {', '.join(sources)}"
        return KernelView(EGRESS, lets_through=True, text=text, disagreement=doubt)
    text = f"packets to {where} are blocked until the guard permits the first connection"
    return KernelView(EGRESS, lets_through=None, text=text, disagreement=doubt)


def _closed(where: str, sources: list[str]) -> KernelView:
    """Return the result for a target that the guard denies to a subject."""
    if not sources:
        return KernelView(EGRESS, lets_through=False, text=f"packets to {where} are blocked")
    text = f"packets to {where} are allowed for {', '.join(sources)}"
    other = "the kernel allows it for other subjects; only the guard denies it to this one"
    return KernelView(EGRESS, lets_through=True, text=text, disagreement=other)


def _flaw(status: ControlStatus, target: NetworkTarget, *, wanted: bool) -> str:
    """Return why packets to an allowed target are blocked; empty without a known reason."""
    if target.host in _listed(status, "withheld"):
        return (
            f"{target.host} resolves to a loopback or link-local address, which a DNS name may not open: "
            "declare the address instead of the name"
        )
    if target.host in _listed(status, "unresolved"):
        return f"{target.host} could not be resolved: correct the name, or the DNS configuration"
    failed = _listed(status, "failed_sources")
    if failed and not wanted:
        return f"sources of the allowlist could not be read: {'; '.join(map(str, failed))}"
    return ""


def _doubt(status: ControlStatus) -> str:
    """Return why the packet filter may be out of date; empty if it is current."""
    if status.state is ControlState.ACTIVE:
        return ""
    fix = f"; to fix it: {status.fix}" if status.fix else ""
    return f"the packet filter is {status.state} and may differ from this result: {status.reason}{fix}"


def _listed(status: ControlStatus, name: str) -> list[object]:
    found = status.details.get(name)
    return found if isinstance(found, list) else []


def _absent(kernel: Kernel, name: str, text: str) -> str:
    """Return that a control is not in force, and why if it is enabled."""
    told = f"{text}; only the guard decides"
    if name not in kernel.wanted:
        return told
    status = kernel.status()[name]
    return f"{told}. It is enabled, but: {status.reason}{f'; to fix it: {status.fix}' if status.fix else ''}"


def _wanting(allowlist: Allowlist, target: NetworkTarget) -> list[str]:
    names: set[str] = set()
    for one in allowlist.endpoints:
        is_host = host_key(one.host) == host_key(target.host) or target.host in one.addresses
        if is_host and target.port in (None, one.port):
            names.update(filter(None, one.source.split(",")))
    return sorted(names)
