"""Requests to start a program: their fields, their encoding, and the error for a refusal."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import SpawnFailed

from . import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_PASSED = wire.MOST_DESCRIPTORS - 8
"""Limit that leaves room for streams, lifeline, body and cgroup."""
_CALLER_STEPS = {"program", "folder"}
"""Steps whose failure is caused by the request, as without a server."""


@dataclass(frozen=True, slots=True)
class SpawnOrder:
    """Program to start, with its confinement. The application keeps its descriptors."""

    program: str
    """Absolute path of the executed file, independent of ``argv[0]``."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Complete environment; nothing is inherited."""
    folder: str
    stdin: int = wire.NOTHING
    stdout: int = wire.NOTHING
    stderr: int = wire.NOTHING
    pass_fds: tuple[int, ...] = ()
    """Additional descriptors, which keep their numbers."""
    plan: wire.LandlockPlan | None = None
    """None applies no Landlock rules except the application's baseline."""
    filter: bytes = field(default=b"", repr=False)
    """seccomp program; empty for none."""
    limits: tuple[tuple[int, int], ...] = ()
    wall_seconds: float | None = None
    cgroup: int = wire.NOTHING
    """Descriptor for joining its cgroup: a socket of the helper, or ``cgroup.procs`` open for writing."""
    umask: int = wire.NOTHING
    """``wire.NOTHING`` for the application's umask when it started the server."""
    keep_caps: int = wire.CHILD_CAPABILITIES
    """Upper bound of root's capabilities; the server has dropped all others."""


class Passed:
    """Descriptors of a request, without duplicates."""

    def __init__(self) -> None:
        """Start without descriptors."""
        self.numbers: list[int] = []

    def index(self, descriptor: int) -> int:
        """Return the index of a descriptor in the packet."""
        if descriptor == wire.NOTHING:
            return wire.NOTHING
        if descriptor not in self.numbers:
            self.numbers.append(descriptor)
        return self.numbers.index(descriptor)


def body_of(order: SpawnOrder, passed: Passed) -> bytes:
    """Encode a request; reject values that ``subprocess`` rejects too."""
    if "" in order.environment or "=" in "".join(order.environment):
        raise ValueError("illegal environment variable name")
    if len(order.pass_fds) > _MOST_PASSED:
        raise ValueError(f"at most {_MOST_PASSED} descriptors can be passed")
    body = wire.packed_order(
        wire.Order(
            argv=order.argv,
            program=order.program,
            env=[f"{name}={value}" for name, value in order.environment.items()],
            cwd=order.folder,
            stdio=(passed.index(order.stdin), passed.index(order.stdout), passed.index(order.stderr)),
            pass_fds=[(passed.index(number), number) for number in dict.fromkeys(order.pass_fds)],
            plan=order.plan,
            filter=order.filter,
            limits=order.limits,
            wall_seconds=order.wall_seconds,
            cgroup=passed.index(order.cgroup),
            umask=order.umask,
            keep_caps=order.keep_caps,
        )
    )
    if len(body) > wire.LARGEST_BODY:
        raise ValueError(f"the request has {len(body)} bytes; the limit is {wire.LARGEST_BODY}")
    return body


def failure_of(answer: dict[str, Any], order: SpawnOrder) -> Exception:
    """Return the error of a program that was not started."""
    number, step = answer.get("errno"), answer.get("step")
    if type(number) is int and step in _CALLER_STEPS:
        return OSError(number, os.strerror(number), order.program if step == "program" else order.folder)
    if type(number) is int:
        what = f"confining {order.program} failed at the step {step!r}: {os.strerror(number)}"
        return SpawnFailed(f"{what}; it was not started", fix="check the status for the features of this kernel")
    return SpawnFailed(f"the spawn server refused to start {order.program}: {answer.get('error')}")
