"""Orders for a program: what the application says, what crosses the link, and what a refusal means."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import SpawnFailed

from . import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_PASSED = wire.MOST_DESCRIPTORS - 8
"""Streams, lifeline, body and cgroup need their places too."""
_CALLER_STEPS = {"program", "folder"}
"""What fails because of what was asked for, as it would without a server."""


@dataclass(frozen=True, slots=True)
class SpawnOrder:
    """A program to start and how it is confined. Descriptors are the application's, and stay its own."""

    program: str
    """Absolute; what is executed, whatever ``argv[0]`` says."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """All of it; nothing is inherited."""
    folder: str
    stdin: int = wire.NOTHING
    stdout: int = wire.NOTHING
    stderr: int = wire.NOTHING
    pass_fds: tuple[int, ...] = ()
    """Further descriptors, which keep their numbers."""
    plan: wire.LandlockPlan | None = None
    """None applies no Landlock of the child's own; the application's baseline holds all the same."""
    filter: bytes = field(default=b"", repr=False)
    """A seccomp program; empty for none."""
    limits: tuple[tuple[int, int], ...] = ()
    wall_seconds: float | None = None
    cgroup: int = wire.NOTHING
    """By what the child joins its cgroup: a socket of the helper, or ``cgroup.procs`` open for writing."""
    umask: int = wire.NOTHING
    """The one that the application had when it started the server, if not given."""
    keep_caps: int = wire.CHILD_CAPABILITIES
    """Of root's capabilities, at most these: the server has given up all others itself."""


class Passed:
    """The descriptors that go along with a request, each once."""

    def __init__(self) -> None:
        """Begin with none."""
        self.numbers: list[int] = []

    def index(self, descriptor: int) -> int:
        """Return the place of a descriptor in the packet."""
        if descriptor == wire.NOTHING:
            return wire.NOTHING
        if descriptor not in self.numbers:
            self.numbers.append(descriptor)
        return self.numbers.index(descriptor)


def body_of(order: SpawnOrder, passed: Passed) -> bytes:
    """Return an order in the form that crosses the link; refuse what ``subprocess`` would refuse too."""
    if "" in order.environment or "=" in "".join(order.environment):
        raise ValueError("illegal environment variable name")
    if len(order.pass_fds) > _MOST_PASSED:
        raise ValueError(f"at most {_MOST_PASSED} descriptors can be passed on")
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
        raise ValueError(f"the order takes {len(body)} bytes; at most {wire.LARGEST_BODY} can be passed on")
    return body


def failure_of(answer: dict[str, Any], order: SpawnOrder) -> Exception:
    """Return the error of a program that was not started."""
    number, step = answer.get("errno"), answer.get("step")
    if type(number) is int and step in _CALLER_STEPS:
        return OSError(number, os.strerror(number), order.program if step == "program" else order.folder)
    if type(number) is int:
        what = f"confining {order.program} failed at the step {step!r}: {os.strerror(number)}"
        return SpawnFailed(f"{what}; it was not started", fix="see what this kernel supports in the status")
    return SpawnFailed(f"the spawn server refused to start {order.program}: {answer.get('error')}")
