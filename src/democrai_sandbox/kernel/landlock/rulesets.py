"""From what is to be allowed to a ruleset of the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple, Self

from democrai_sandbox.errors import KernelLayerError, KernelUnsupported

from . import building
from .rights import Feature, FsRight, NetRight, Scope, supported
from .support import native_module

_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class PathRule:
    """What may be done at a path and beneath it."""

    path: str
    rights: FsRight

    def __post_init__(self) -> None:
        """Refuse a path that would mean another place in another working directory."""
        if not self.path.startswith("/") or "\0" in self.path:
            raise KernelLayerError(
                f"a Landlock rule is for {self.path!r}, which is not an absolute path", fix="give the whole path"
            )


@dataclass(frozen=True, slots=True)
class PortRule:
    """What may be done with a TCP port."""

    port: int
    rights: NetRight

    def __post_init__(self) -> None:
        """Refuse what is no port."""
        if not 0 <= self.port <= _HIGHEST_PORT:
            raise KernelLayerError(
                f"a Landlock rule is for port {self.port!r}", fix=f"give a number from 0 to {_HIGHEST_PORT}"
            )


@dataclass(frozen=True, slots=True)
class RulesetPlan:
    """All that is allowed. Whatever is handled and not named here is refused."""

    paths: tuple[PathRule, ...] = ()
    ports: tuple[PortRule, ...] = ()
    handle_connect: bool = False
    """Whether TCP connections are restricted to the ports that are named."""
    handle_bind: bool = False
    scopes: bool = True
    """Whether signals and abstract unix sockets end at the border of the confined processes."""


class Numbers(NamedTuple):
    """A plan for one ABI, as :func:`building.build` and the spawn server take it."""

    fs: int
    net: int
    scoped: int
    paths: list[tuple[str, int]]
    ports: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Built:
    """A ruleset that exists in the kernel, until it is closed."""

    fd: int
    covered: tuple[str, ...]
    missing: tuple[str, ...]
    """Paths that are not there. What is made at such a place later is not reachable."""
    features: tuple[str, ...]

    def close(self) -> None:
        """Give the descriptor back. What was restricted with it stays restricted."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        """Use it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def numbers(plan: RulesetPlan, abi: int) -> Numbers:
    """Return the plan in numbers, without anything that a kernel of this ABI does not know."""
    known = supported(abi)
    net = known.net & _wanted_net(plan)
    paths: dict[str, FsRight] = {}
    for rule in plan.paths:
        paths[rule.path] = paths.get(rule.path, FsRight(0)) | rule.rights & known.fs
    ports: dict[int, NetRight] = {}
    for port in plan.ports:
        ports[port.port] = ports.get(port.port, NetRight(0)) | port.rights & net
    return Numbers(
        int(known.fs),
        int(net),
        int(known.scoped if plan.scopes else Scope(0)),
        [(path, int(rights)) for path, rights in paths.items()],
        [(number, int(rights)) for number, rights in ports.items() if rights],
    )


def handled(plan: RulesetPlan, abi: int) -> tuple[Feature, ...]:
    """Return the features that are in force with this plan on a kernel of this ABI."""
    return tuple(feature for feature in supported(abi).features if _wants(plan, feature))


def lacking(plan: RulesetPlan, abi: int) -> tuple[Feature, ...]:
    """Return the features that the plan wants and a kernel of this ABI does not have."""
    return tuple(feature for feature in supported(abi).lacking if _wants(plan, feature))


def build(plan: RulesetPlan, abi: int) -> Built:
    """Make the ruleset; nothing is restricted by it yet."""
    native = native_module()
    if abi < 1:
        raise KernelUnsupported("there is no Landlock to make a ruleset with", fix="use Linux 5.13 or newer")
    try:
        fd, missing = building.build(native, *(plain := numbers(plan, abi)))
    except OSError as error:
        raise KernelLayerError(
            f"a Landlock ruleset could not be made for ABI {abi}: {error}", fix=_fix(error, len(plan.paths))
        ) from error
    absent = frozenset(missing)
    covered = tuple(path for path, _ in plain.paths if path not in absent)
    return Built(fd, covered, tuple(missing), tuple(feature.name for feature in handled(plan, abi)))


def _wanted_net(plan: RulesetPlan) -> NetRight:
    connect = NetRight.CONNECT_TCP if plan.handle_connect else NetRight(0)
    return connect | (NetRight.BIND_TCP if plan.handle_bind else NetRight(0))


def _wants(plan: RulesetPlan, feature: Feature) -> bool:
    return bool(feature.fs or feature.net & _wanted_net(plan) or (feature.scoped and plan.scopes))


def _fix(error: OSError, paths: int) -> str:
    if error.filename is not None:
        return f"look at {error.filename!r}: it is one of the {paths} paths of the lists"
    return "raise the limit of open files, or look into the kernel's log for what concerns landlock"
