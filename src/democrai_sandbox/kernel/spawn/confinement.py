"""Compute the confinement of a child from its subject's rules, without opening anything.

The rules contain more than the kernel can enforce: hosts, URL paths, single operations. The unenforced part is
described in words, for the result and the status.

This code runs in the application beside subjects, which can replace functions and methods of the standard library, even
of ``enum``. So it uses plain numbers, compares operations by identity, and prepares filters in advance.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, fields
from itertools import product, starmap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from democrai_sandbox.errors import KernelUnsupported
from democrai_sandbox.kernel.landlock import rights
from democrai_sandbox.kernel.seccomp import filters
from democrai_sandbox.policy import Operation, ResourceType, TargetKind, normalise_path, parse_declaration, prefixes_of

from .protocol import LandlockPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.policy import AccessRule

# Read before a subject could replace them.
_RLIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
)
_FULL_WEIGHT = 100
_WEIGHTS = (1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15)
"""Weights of the kernel's scheduler for the nice values from 0 to 19."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of a child; None for no limit. Its children are counted separately."""

    address_space: int | None = None
    """Bytes, used or not."""
    memory: int | None = None
    """Bytes of private, writable memory."""
    cpu_seconds: int | None = None
    file_size: int | None = None
    """Bytes of each file that it writes."""
    open_files: int | None = None
    """Highest descriptor number, plus one."""
    processes: int | None = None
    """Processes of the whole user, as counted by the kernel; for root its own, if the spawn server has pids cgroups."""
    wall_seconds: int | None = None
    """Enforced by the spawn server, which then kills the child's group."""
    cpu_weight: int | None = None
    """Share of the processor while others need it too, up to the 100 of every other process."""

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"the limit {name} must be a whole number above 0, or None: got {value!r}")

    def stricter(self, other: ResourceLimits) -> ResourceLimits:
        """Return the stricter limit of each pair."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in _NAMES)
        return ResourceLimits(*(min((each for each in pair if each is not None), default=None) for pair in pairs))

    def rlimits(self) -> tuple[tuple[int, int], ...]:
        """Return the limits for the kernel: pairs of a resource number and its limit."""
        values = [getattr(self, name) for name in _NAMES[: len(_RLIMITS)]]
        return tuple((number, value) for number, value in zip(_RLIMITS, values, strict=True) if value is not None)

    def nice(self) -> int:
        """Return the nice value whose share is nearest to the weight, as a ratio."""
        wanted = _WEIGHTS[0] * min(self.cpu_weight or _FULL_WEIGHT, _FULL_WEIGHT) / _FULL_WEIGHT
        return min(range(len(_WEIGHTS)), key=lambda nice: max(_WEIGHTS[nice] / wanted, wanted / _WEIGHTS[nice]))


_NAMES = tuple(limit.name for limit in fields(ResourceLimits))
NO_LIMITS = ResourceLimits()


_T = TypeVar("_T")
_DNS = 53
_ANY_FREE_PORT = 0
_CGROUPS = "/sys/fs/cgroup"
_WRITTEN_DEVICES = ("/dev/null",)
_OWN_PROC = ("/proc/self", "/proc/thread-self")
_OWN_NETWORK = ("/proc/net", "/proc/self/net", "/proc/thread-self/net")
_IPV4_PARTS = _IPV6_DIGITS = 4
_MULTICAST = range(224, 240)
"""First bytes of IPv4 multicast addresses."""
_READING = (Operation.READ,)
_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)
_READ_RIGHTS, _EXECUTE_RIGHTS, _WRITE_RIGHTS = int(rights.READ), int(rights.EXECUTE), int(rights.WRITE)
_LIST_RIGHTS = int(rights.FsRight.READ_DIR)
_CONNECT, _BIND = int(rights.NetRight.CONNECT_TCP), int(rights.NetRight.BIND_TCP)
_KNOWN = tuple(
    (int(known.fs), int(known.net), int(known.scoped)) for known in map(rights.supported, range(rights.HIGHEST_ABI + 1))
)
"""Rights that each ABI can restrict: files, ports, scopes."""


@dataclass(frozen=True, slots=True)
class ChildConfinement:
    """Rights of one child. A path includes everything below it."""

    paths_read: tuple[str, ...] = ()
    paths_listed: tuple[str, ...] = ()
    """Folders that may be listed, with the folders below; their files stay unreadable."""
    paths_execute: tuple[str, ...] = ()
    """Executable paths, which are also readable."""
    paths_write: tuple[str, ...] = ()
    """Paths that may be read, created, changed and deleted."""
    paths_metadata: tuple[str, ...] = ()
    """Paths whose mode, owner and times may be changed."""
    connect_ports: tuple[int, ...] | None = ()
    """TCP ports to connect to; None for all, if a rule has a host without a port."""
    bind_ports: tuple[int, ...] = (_ANY_FREE_PORT,)
    """TCP ports to listen on; 0 is a port chosen by the kernel."""
    has_network: bool = False
    """Whether any rule has a host."""
    unix: bool = False
    """Whether any rule has a unix socket."""
    multicast: bool = False
    """Whether any rule has a multicast address."""
    whole_proc: bool = False
    """Whether the child may read its whole folder in /proc, including the network tables."""
    limits: ResourceLimits = NO_LIMITS


class Enforcement(NamedTuple):
    """Confinement in the format of a ``SpawnOrder``, for one kernel."""

    plan: LandlockPlan | None
    filter: bytes
    limits: tuple[tuple[int, int], ...]
    wall_seconds: float | None
    nice: int
    unenforced: tuple[str, ...]
    """Restrictions that this kernel does not enforce."""


def confinement_of(
    rules: Iterable[AccessRule],
    *,
    runtime_read: Iterable[str] = (),
    runtime_listed: Iterable[str] = (),
    runtime_execute: Iterable[str] = (),
    own_read: Iterable[str] = (),
    own_write: Iterable[str] = (),
    limits: ResourceLimits = NO_LIMITS,
) -> ChildConfinement:
    """Compute the confinement of a child from its subject's rules and the paths of the runtime."""
    rules = tuple(rules)
    files = tuple(rule for rule in rules if rule.resource_type is ResourceType.FILESYSTEM)
    texts = dict.fromkeys(rule.normalized_target for rule in rules if rule.resource_type is ResourceType.NETWORK)
    targets = [parse_declaration(text) for text in texts]
    hosts = [target for target in targets if target.kind is not TargetKind.UNIX]
    ports = sorted({target.port for target in hosts if target.port is not None})
    any_port = any(target.port is None for target in hosts)
    return ChildConfinement(
        paths_read=_unique(runtime_read, own_read, _paths(files, _READING)),
        paths_listed=_unique(runtime_listed),
        paths_execute=_unique(runtime_execute, _paths(files, (Operation.EXECUTE,)), _programs(rules)),
        paths_write=_unique(_WRITTEN_DEVICES, own_write, _paths(files, _WRITING)),
        paths_metadata=_unique(own_write, _paths(files, (Operation.MODIFY,))),
        connect_ports=None if any_port else _unique(ports, (_DNS,) if hosts else ()),
        bind_ports=_unique((_ANY_FREE_PORT,), ports),
        has_network=bool(hosts),
        unix=len(hosts) < len(targets),
        multicast=any(_is_multicast(target.host) for target in hosts),
        # The network tables of /proc, or a folder that contains them.
        whole_proc=any(path in _OWN_PROC or _is_beneath(path, _OWN_NETWORK) for path in _paths(files, _READING)),
        limits=limits,
    )


class FilterKey(NamedTuple):
    """Rights of a child that its filter decides about."""

    network: bool
    unix: int
    """Index into ``_UNIX``."""
    fastopen: bool
    multicast: bool
    metadata: int
    """Index into ``_METADATA``."""


_METADATA = tuple(filters.Metadata)
_FREE, _REFUSED, _SUPERVISED = range(len(_METADATA))
_UNIX = tuple(filters.Unix)
_ANY_UNIX, _OWN_UNIX, _NO_UNIX = range(len(_UNIX))


def ready_filters() -> Mapping[FilterKey, bytes] | str:
    """Return the filters of all children by key, or the reason why filters are unavailable."""
    found = {}
    try:
        both = (False, True)
        for key in starmap(FilterKey, product(both, range(len(_UNIX)), both, both, range(len(_METADATA)))):
            if key.multicast and not key.network:
                continue  # a rule for a multicast group is a rule for the network
            if key.unix == _OWN_UNIX and (key.network or key.metadata != _SUPERVISED):
                continue  # the supervisor connects local sockets only
            inet = filters.Inet.ALL if key.network else filters.Inet.NONE
            wanted = filters.child_profile(
                inet=inet,
                unix=_UNIX[key.unix],
                fastopen=key.fastopen,
                multicast=key.multicast,
                metadata=_METADATA[key.metadata],
            )
            found[key] = filters.program(wanted)
    except KernelUnsupported as error:
        return error.what
    return found


_FILTERS = ready_filters()


def enforcement_of(
    confinement: ChildConfinement,
    abi: int,
    *,
    packet_filter: bool = False,
    root: bool = False,
    pids: bool = False,
    exact: bool = False,
    unfiltered: str = "",
    shared: bool = True,
) -> Enforcement:
    """Return the settings for starting a child on a kernel with this Landlock ABI, and the unenforced rules.

    ``packet_filter``: the child gets a cgroup with separate rules. ``root``: it runs as root. ``pids``: the server has
    pids cgroups. ``exact``: paths may not contain links. ``unfiltered`` is the reason why children get no filter; empty
    if they do. ``shared``: the kernel shares the processor between sessions, not between threads.
    """
    lacking = list(unenforced(confinement, abi, packet_filter=packet_filter))
    if root and confinement.limits.processes is not None and not (pids and _stays_in_cgroup(confinement, abi)):
        lacking.append("the limit of processes: not enforced for root")
    if confinement.limits.nice() and not shared:
        lacking.append("the CPU weight: it counts for each thread, because kernel.sched_autogroup_enabled is off")
    if unfiltered or isinstance(_FILTERS, str):
        lacking.append(f"system calls and sockets: {unfiltered or _FILTERS}")
        program = b""
    else:
        program = _FILTERS[filter_key(confinement, abi, packet_filter=packet_filter)]
    return Enforcement(
        plan=plan(confinement, abi, exact=exact),
        filter=program,
        limits=confinement.limits.rlimits(),
        wall_seconds=confinement.limits.wall_seconds,
        nice=confinement.limits.nice(),
        unenforced=tuple(lacking),
    )


def plan(confinement: ChildConfinement, abi: int, *, exact: bool = False) -> LandlockPlan | None:
    """Return the child's ruleset for a kernel with this ABI; None without Landlock."""
    if abi < 1:
        return None
    fs, net, scoped = _KNOWN[min(abi, len(_KNOWN) - 1)]
    if confinement.connect_ports is None:
        net &= ~_CONNECT
    paths: dict[str, int] = {}
    for path, mask in _path_rules(confinement):
        paths[path] = paths.get(path, 0) | mask & fs
    ports: dict[int, int] = {}
    for numbers, mask in ((confinement.connect_ports or (), _CONNECT), (confinement.bind_ports, _BIND)):
        for port in numbers:
            ports[port] = ports.get(port, 0) | mask & net
    opened = [(port, mask) for port, mask in ports.items() if mask]
    whole = int(confinement.whole_proc)
    roots = _unique(map(normalise_path, confinement.paths_metadata))
    return LandlockPlan(fs, net, scoped, list(paths.items()), opened, _READ_RIGHTS, int(exact), whole, roots)


def filter_key(confinement: ChildConfinement, abi: int, *, packet_filter: bool = False) -> FilterKey:
    """Return the key of the filter that covers the gaps of the child's Landlock rules and packet filter.

    A child without network rules may not create internet sockets: neither Landlock nor the packet filter stops it from
    listening and sending data to its clients. Without Landlock, no path is restricted, so metadata is not either.
    """
    ports = _KNOWN[min(max(abi, 0), len(_KNOWN) - 1)][1] != 0
    by_ports_alone = ports and not packet_filter and confinement.connect_ports is not None
    network = confinement.has_network
    metadata = _FREE if abi < 1 else _SUPERVISED if confinement.paths_metadata else _REFUSED
    own = metadata == _SUPERVISED and not network
    unix = _ANY_UNIX if confinement.unix else _OWN_UNIX if own else _NO_UNIX
    return FilterKey(network, unix, not by_ports_alone, network and confinement.multicast, metadata)


def unenforced(confinement: ChildConfinement, abi: int, *, packet_filter: bool) -> Iterator[str]:
    """Yield the restrictions that such a kernel does not enforce, in words."""
    supported = rights.supported(abi)
    if not supported.fs:
        yield "files: this kernel has no Landlock (Linux 5.13, enabled at boot)"
    else:
        yield from _unenforced_files(supported)
    if confinement.has_network and not packet_filter:
        yield from _unenforced_network(confinement, supported)
    if confinement.unix:
        yield "unix sockets: a rule for one permits all that file permissions allow"


def _stays_in_cgroup(confinement: ChildConfinement, abi: int) -> bool:
    """Whether Landlock denies a child of root the files with which it could leave its cgroup."""
    written = map(normalise_path, confinement.paths_write)
    return abi > 0 and not any(_is_beneath(path, (_CGROUPS,)) or _is_beneath(_CGROUPS, (path,)) for path in written)


def _unenforced_files(supported: rights.SupportedRights) -> Iterator[str]:
    if not supported.fs & rights.FsRight.TRUNCATE:
        yield "truncating files outside the rules with truncate() (Landlock ABI 3, Linux 6.2)"
    if not supported.fs & rights.FsRight.IOCTL_DEV:
        yield "ioctls on devices that can be opened (Landlock ABI 5, Linux 6.10)"
    if not supported.scoped:
        yield "signals to other processes of the same user (Landlock ABI 6, Linux 6.12)"


def _unenforced_network(confinement: ChildConfinement, supported: rights.SupportedRights) -> Iterator[str]:
    if confinement.connect_ports is None:
        yield "hosts: without the egress helper, a rule without a port permits every TCP connection"
    elif not supported.net:
        yield "hosts and TCP ports (ports: Landlock ABI 4, Linux 6.7; hosts: the egress helper)"
    else:
        yield "hosts: without the egress helper, only the TCP ports of the rules are enforced"
    yield "UDP: not restricted without the egress helper"


def _path_rules(confinement: ChildConfinement) -> Iterator[tuple[str, int]]:
    """Yield a rule for each path, except paths below a writable path.

    The rules are created again for each child, and follow links. A child with write access could replace such a path by
    a link, and its next child would get access to the link's target. Reading is allowed there anyway. Execution is
    allowed for the whole writable path instead, which grants nothing new: a writable file can be copied to an
    executable place.
    """
    writable = frozenset(map(normalise_path, confinement.paths_write))
    for paths, right in (
        (confinement.paths_read, _READ_RIGHTS),
        (confinement.paths_listed, _LIST_RIGHTS),
        (confinement.paths_execute, _EXECUTE_RIGHTS),
        (confinement.paths_write, _WRITE_RIGHTS),
    ):
        for path in map(normalise_path, paths):
            # A rule applies to the target of its path when it is created, which would be the server's folder here.
            if not _is_beneath(path, (*_OWN_PROC, *_OWN_NETWORK)):
                # The outermost writable path that contains it; fast for thousands of them.
                yield next((folder for folder in prefixes_of(path) if folder in writable), path), right


def _is_beneath(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def _is_multicast(host: str) -> bool:
    """Whether a host is a multicast address or range; a name never is."""
    address = host.partition("/")[0]
    parts = address.split(".")
    if len(parts) == _IPV4_PARTS and all(part.isdecimal() for part in parts):
        return int(parts[0]) in _MULTICAST
    first, colon, _ = address.partition(":")
    return bool(colon) and len(first) == _IPV6_DIGITS and first.startswith("ff")


def _paths(rules: Iterable[AccessRule], operations: tuple[Operation, ...]) -> Iterator[str]:
    return (rule.normalized_target for rule in rules if any(rule.operation is wanted for wanted in operations))


def _programs(rules: Iterable[AccessRule]) -> Iterator[str]:
    """Yield the system dependencies that are paths; the others are among the runtime's programs."""
    for rule in rules:
        if rule.resource_type is ResourceType.SYSTEM_DEPENDENCY and rule.normalized_target.startswith("/"):
            yield rule.normalized_target


def _unique(*groups: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))
