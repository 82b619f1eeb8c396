"""Create a kernel ruleset from a plan of allowed access."""

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
    """Allowed rights for a path and everything below it."""

    path: str
    rights: FsRight

    def __post_init__(self) -> None:
        """Reject relative paths, which depend on the working directory."""
        if not self.path.startswith("/") or "\0" in self.path:
            raise KernelLayerError(f"the Landlock rule path {self.path!r} is not absolute", fix="use an absolute path")


@dataclass(frozen=True, slots=True)
class PortRule:
    """Allowed rights for a TCP port."""

    port: int
    rights: NetRight

    def __post_init__(self) -> None:
        """Reject invalid port numbers."""
        if not 0 <= self.port <= _HIGHEST_PORT:
            raise KernelLayerError(
                f"the Landlock rule port {self.port!r} is invalid", fix=f"use a number from 0 to {_HIGHEST_PORT}"
            )


@dataclass(frozen=True, slots=True)
class RulesetPlan:
    """Allowed access. All other handled access is refused."""

    paths: tuple[PathRule, ...] = ()
    ports: tuple[PortRule, ...] = ()
    handle_connect: bool = False
    """Whether TCP is restricted to the listed ports."""
    handle_bind: bool = False
    scopes: bool = True
    """Whether signals and abstract unix sockets are limited to the confined processes."""


class Numbers(NamedTuple):
    """Plan for one ABI, in the format of :func:`building.build` and the spawn server."""

    fs: int
    net: int
    scoped: int
    paths: list[tuple[str, int]]
    ports: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Built:
    """Open ruleset in the kernel."""

    fd: int
    covered: tuple[str, ...]
    missing: tuple[str, ...]
    """Missing paths. Files created there later stay inaccessible."""
    features: tuple[str, ...]

    def close(self) -> None:
        """Close the descriptor. Existing restrictions stay."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        """Close it at the end of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def numbers(plan: RulesetPlan, abi: int) -> Numbers:
    """Return the plan in numbers, limited to the rights of this ABI."""
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
    """Return the features of this plan that a kernel with this ABI enforces."""
    return tuple(feature for feature in supported(abi).features if _wants(plan, feature))


def lacking(plan: RulesetPlan, abi: int) -> tuple[Feature, ...]:
    """Return the features of this plan that a kernel with this ABI lacks."""
    return tuple(feature for feature in supported(abi).lacking if _wants(plan, feature))


def build(plan: RulesetPlan, abi: int) -> Built:
    """Create the ruleset without applying it."""
    native = native_module()
    if abi < 1:
        raise KernelUnsupported("Landlock is not available", fix="use Linux 5.13 or newer")
    try:
        fd, missing = building.build(native, *(plain := numbers(plan, abi)))
    except OSError as error:
        raise KernelLayerError(
            f"the Landlock ruleset could not be created for ABI {abi}: {error}", fix=_fix(error, len(plan.paths))
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
        return f"check {error.filename!r}, one of the {paths} paths of the lists"
    return "raise the limit of open files, or check the kernel log for landlock"
