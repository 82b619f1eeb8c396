"""What the kernel layer would do with an access, beside what the guard decides about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.targets import Wanted
from democrai_sandbox.kernel.places import readable, writable
from democrai_sandbox.kernel.states import ControlState
from democrai_sandbox.kernel.status import EGRESS, LANDLOCK, SECCOMP
from democrai_sandbox.policy import ResourceType, TargetKind, is_at_or_below
from democrai_sandbox.policy.hosts import host_key

from .places import READING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.kernel.egress.allowlist import Allowlist
    from democrai_sandbox.kernel.states import ControlStatus
    from democrai_sandbox.policy import AccessRule, NetworkTarget


class KernelView(NamedTuple):
    """What one control says about an access."""

    layer: str
    lets_through: bool | None
    """None where it has no say, or is not in force."""
    text: str
    disagreement: str = ""
    """Set when it and the guard would not come to the same."""


def kernel_view(kernel: Kernel, wanted: Wanted, *, allowed: bool) -> KernelView:
    """Return what the kernel would do; ``allowed`` is what the guard would say."""
    if wanted.resource_type is ResourceType.FILESYSTEM:
        return _landlock(kernel, wanted, allowed=allowed)
    if wanted.parsed is not None:
        return _egress(kernel, wanted.parsed, allowed=allowed)
    text = "programs are started by the spawn server, held to the rules of the subject that starts them"
    if kernel.spawn is None:
        return KernelView(LANDLOCK, lets_through=None, text="programs are started directly")
    ended = "; one that the application starts by itself is ended by SIGSYS" if SECCOMP in kernel.wanted else ""
    return KernelView(LANDLOCK, lets_through=None, text=f"{text}{ended}")


def outside_lists(kernel: Kernel, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
    """Return the rules for files that Landlock keeps the whole application from."""
    if kernel.baseline is None:
        return ()
    absent = _missing(kernel)
    return tuple(rule for rule in rules if not any(root not in absent for root in _roots(kernel, rule)))


def _roots(kernel: Kernel, wanted: Wanted | AccessRule) -> list[str]:
    """Return the listed paths at or around a file."""
    target = wanted.target if isinstance(wanted, Wanted) else wanted.normalized_target
    listed = _lists(kernel, reading=wanted.operation in READING)
    return [path for path in listed if is_at_or_below(target, path)]


def _missing(kernel: Kernel) -> tuple[str, ...]:
    """Return the listed paths that were not there when Landlock was applied."""
    missing = kernel.status()[LANDLOCK].details.get("missing")
    return missing if isinstance(missing, tuple) else ()


def _landlock(kernel: Kernel, wanted: Wanted, *, allowed: bool) -> KernelView:
    if kernel.baseline is None:
        text = _absent(kernel, LANDLOCK, "Landlock holds this process to nothing")
        return KernelView(LANDLOCK, lets_through=None, text=text)
    reading = wanted.operation in READING
    absent = _missing(kernel)
    roots = _roots(kernel, wanted)
    root = next((path for path in roots if path not in absent), None)
    if root is not None:
        what = "read" if reading else "written"
        children = "; a program that it starts is held to its own rules as well" if kernel.spawn else ""
        text = f"Landlock lets the whole application through: {root} may be {what}{children}"
        return KernelView(LANDLOCK, lets_through=True, text=text)
    text = f"Landlock keeps the whole application from {wanted.target}"
    if not allowed:
        return KernelView(LANDLOCK, lets_through=False, text=text)
    extra = "extra_read_paths" if reading else "extra_write_paths"
    fix = f"make sure that it exists, add it to sandbox.os.landlock.{extra} and start again"
    if roots:
        fix = f"{roots[0]} was not there when the application started: make it, and start again"
    disagreement = f"the guard allows it and the kernel does not: {fix}"
    return KernelView(LANDLOCK, lets_through=False, text=text, disagreement=disagreement)


def _lists(kernel: Kernel, *, reading: bool) -> tuple[str, ...]:
    return readable(kernel.baseline) if reading else writable(kernel.baseline)


def _egress(kernel: Kernel, target: NetworkTarget, *, allowed: bool) -> KernelView:
    if target.kind is TargetKind.UNIX:
        return KernelView(EGRESS, lets_through=None, text="a unix socket is no matter of packets")
    if kernel.egress is None:
        return KernelView(EGRESS, lets_through=None, text=_absent(kernel, EGRESS, "no packet filter is in force"))
    sources = _wanting(kernel.egress.builder.build(), target)
    where = f"{target.host} port {target.port}" if target.port else target.host
    if not allowed:
        return _closed(where, sources)
    status = kernel.egress.status()
    if flaw := _flaw(status, target, wanted=bool(sources)):
        disagreement = f"the guard allows it, the packet filter does not: {flaw}"
        return KernelView(EGRESS, lets_through=False, text=f"packets to {where} do not pass", disagreement=disagreement)
    doubt = _doubt(status)
    if sources:
        text = f"packets to {where} pass; wanted by {', '.join(sources)}"
        return KernelView(EGRESS, lets_through=True, text=text, disagreement=doubt)
    text = f"packets to {where} do not pass yet: it is added when the guard permits the first connection"
    return KernelView(EGRESS, lets_through=None, text=text, disagreement=doubt)


def _closed(where: str, sources: list[str]) -> KernelView:
    """Return what is said about a target that the guard keeps a subject from."""
    if not sources:
        return KernelView(EGRESS, lets_through=False, text=f"packets to {where} do not pass")
    text = f"packets to {where} pass; wanted by {', '.join(sources)}"
    other = "the kernel lets the application reach it for others: the guard alone keeps this one"
    return KernelView(EGRESS, lets_through=True, text=text, disagreement=other)


def _flaw(status: ControlStatus, target: NetworkTarget, *, wanted: bool) -> str:
    """Return why packets to a target do not pass although they are to; empty when nothing is known to keep them."""
    if target.host in _listed(status, "withheld"):
        return (
            f"{target.host} leads to this machine itself or its link, which a name server cannot open: "
            "declare the address instead of the name"
        )
    if target.host in _listed(status, "unresolved"):
        return f"the host did not resolve {target.host} to an address: correct the name, or the name service"
    failed = _listed(status, "failed_sources")
    if failed and not wanted:
        return f"sources of the allowlist could not be read: {'; '.join(map(str, failed))}"
    return ""


def _doubt(status: ControlStatus) -> str:
    """Return what keeps the packet filter from following; empty when it does."""
    if status.state is ControlState.ACTIVE:
        return ""
    fix = f"; to fix it: {status.fix}" if status.fix else ""
    return f"the packet filter is {status.state}, and may not do what is said here: {status.reason}{fix}"


def _listed(status: ControlStatus, name: str) -> list[object]:
    found = status.details.get(name)
    return found if isinstance(found, list) else []


def _absent(kernel: Kernel, name: str, text: str) -> str:
    """Say that a control is not in force, and why if it was asked for."""
    told = f"{text}: the guard alone decides"
    if name not in kernel.wanted:
        return told
    status = kernel.status()[name]
    return f"{told}. It was asked for: {status.reason}{f'; to fix it: {status.fix}' if status.fix else ''}"


def _wanting(allowlist: Allowlist, target: NetworkTarget) -> list[str]:
    """Return who has a host and port on the allowlist."""
    names: Iterable[str] = (
        endpoint.source
        for endpoint in allowlist.endpoints
        if _is_for(endpoint.host, endpoint.addresses, target) and target.port in (None, endpoint.port)
    )
    return sorted({name for joined in names for name in joined.split(",") if name})


def _is_for(host: str, addresses: tuple[str, ...], target: NetworkTarget) -> bool:
    return host_key(host) == host_key(target.host) or target.host in addresses
