"""How the spawn server starts a program: an order carried out, under its rulesets. The server loads this file alone."""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from democrai_sandbox.kernel.landlock import building

    from . import children, wire
else:
    # Loaded by the server, without the package.
    wire, children, building = (sys.modules[name] for name in ("wire", "children", "building"))


_REPORT = struct.Struct("=i16s")
"""As ``_native/confined.c`` writes it."""


class FailedStepError(Exception):
    """A step on the way to a confined program failed; nothing runs."""

    def __init__(self, step: str, error: OSError) -> None:
        """Keep what the application is told."""
        super().__init__(step)
        self.step = step
        self.errno = error.errno or errno.EIO


class Starts:
    """What is the same for all programs that are started."""

    def __init__(self, native: Any, baseline: list[int]) -> None:
        """Begin without a baseline, or with that of the server before."""
        self._native = native
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._ignored = _ignored_signals()
        self.baseline = baseline
        """The ruleset that is the first layer of every child, once it was given."""

    def give_baseline(self, plan: wire.LandlockPlan) -> list[str]:
        """Take the application's own lists, once; return the paths that are missing."""
        if self.baseline:
            raise wire.BadRequestError("the baseline was given before, and holds")
        ruleset, missing = self._ruleset(plan)
        self.baseline = [ruleset]
        return missing

    def start(
        self, body: bytes, files: list[int], plan: wire.LandlockPlan | None, mark: int
    ) -> tuple[int, int, int, list[str]]:
        """Carry out an order; return the pid, the pidfd, the report, and the paths of the plan that are missing.

        The report is -1 for a program that runs. Otherwise it has to wait for the helper first: a descriptor that ends
        when the program runs, or has what ``failure_of`` reads.
        """
        if plan is None:
            return (*self._carried_out(body, files, self.baseline, mark), [])
        own, missing = self._ruleset(plan)
        try:
            return (*self._carried_out(body, files, [*self.baseline, own], mark), missing)
        finally:
            os.close(own)

    def _carried_out(self, body: bytes, files: list[int], rulesets: list[int], mark: int) -> tuple[int, int, int]:
        try:
            pid, pidfd, *report = self._native.spawn(
                body, files, rulesets, self._null, (children.MARKING, mark), self._ignored
            )
        except ValueError as error:
            raise wire.BadRequestError(str(error)) from error
        except OSError as error:
            raise FailedStepError((error.strerror or "").partition(":")[0], error) from error
        return pid, pidfd, report[0] if report else -1

    def _ruleset(self, plan: wire.LandlockPlan) -> tuple[int, list[str]]:
        try:
            return building.build(
                self._native, plan.fs, plan.net, plan.scoped, plan.paths, plan.ports, exact=bool(plan.exact)
            )
        except OSError as error:
            raise FailedStepError("landlock", error) from error


def failure_of(report: bytes) -> FailedStepError | None:
    """Return what a program failed at on its way; None for one that runs."""
    if len(report) < _REPORT.size:
        return None
    number, step = _REPORT.unpack_from(report)
    return FailedStepError(step.rstrip(b"\0").decode("ascii", "replace"), OSError(number, os.strerror(number)))


def _ignored_signals() -> int:
    """Return the signals that this process ignores, as the kernel has them; all where it does not say."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("SigIgn:"):
                return int(line.split()[1], 16)
    return (1 << 64) - 1
