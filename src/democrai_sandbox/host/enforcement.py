"""What the kernel layer would do with an access, beside what the guard decides about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.kernel.places import readable, writable
from democrai_sandbox.policy import Operation, ResourceType, TargetKind, is_at_or_below
from democrai_sandbox.policy.hosts import host_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.targets import Wanted
    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.kernel.egress.allowlist import Allowlist
    from democrai_sandbox.policy import NetworkTarget

LANDLOCK = "landlock"
EGRESS = "egress"


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
    return KernelView(LANDLOCK, lets_through=None, text=text if kernel.spawn else "programs are started directly")


def _landlock(kernel: Kernel, wanted: Wanted, *, allowed: bool) -> KernelView:
    if kernel.baseline is None:
        return KernelView(
            LANDLOCK, lets_through=None, text="Landlock holds this process to nothing: the guard alone decides"
        )
    reading = wanted.operation in (Operation.READ, Operation.EXECUTE)
    listed = readable(kernel.baseline) if reading else writable(kernel.baseline)
    root = next((path for path in listed if is_at_or_below(wanted.target, path)), None)
    if root is not None:
        what = "read" if reading else "written"
        return KernelView(
            LANDLOCK, lets_through=True, text=f"Landlock lets the whole application through: {root} may be {what}"
        )
    text = f"Landlock keeps the whole application from {wanted.target}"
    if not allowed:
        return KernelView(LANDLOCK, lets_through=False, text=text)
    extra = "extra_read_paths" if reading else "extra_write_paths"
    fix = f"the guard allows it and the kernel does not: add it to sandbox.os.landlock.{extra} and start again"
    return KernelView(LANDLOCK, lets_through=False, text=text, disagreement=fix)


def _egress(kernel: Kernel, target: NetworkTarget, *, allowed: bool) -> KernelView:
    if target.kind is TargetKind.UNIX:
        return KernelView(EGRESS, lets_through=None, text="a unix socket is no matter of packets")
    if kernel.egress is None:
        return KernelView(EGRESS, lets_through=None, text="no packet filter is in force: the guard alone decides")
    sources = _wanting(kernel.egress.builder.build(), target)
    where = f"{target.host} port {target.port}" if target.port else target.host
    if sources:
        text = f"packets to {where} pass; wanted by {', '.join(sources)}"
        other = "" if allowed else "the kernel lets the application reach it for others: the guard alone keeps this one"
        return KernelView(EGRESS, lets_through=True, text=text, disagreement=other)
    if allowed:
        text = f"packets to {where} do not pass yet: it is added when the guard permits the first connection"
        return KernelView(EGRESS, lets_through=None, text=text)
    return KernelView(EGRESS, lets_through=False, text=f"packets to {where} do not pass")


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
