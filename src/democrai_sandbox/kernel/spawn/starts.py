"""Start a program under its rulesets, in the spawn server. The server loads this file without the package."""

from __future__ import annotations

import errno
import os
import struct
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from democrai_sandbox.kernel.landlock import raw_ruleset

    from . import children, protocol
else:
    # Loaded by the server, without the package.
    protocol, children, raw_ruleset = (sys.modules[name] for name in ("protocol", "children", "raw_ruleset"))


_REPORT = struct.Struct("=i16s")
"""Format written by ``_native/confined.c``."""


class FailedStepError(Exception):
    """Failed step of a start; the program does not run."""

    def __init__(self, step: str, error: OSError) -> None:
        """Store the details for the application."""
        super().__init__(step)
        self.step = step
        self.errno = error.errno or errno.EIO


class Starts:
    """State shared by all starts."""

    def __init__(self, native: Any, baseline: list[int]) -> None:
        """Start without a baseline, or with that of the previous server."""
        self._native = native
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._ignored = _ignored_signals()
        self.baseline = baseline
        """Ruleset of the first layer of every child, after it was sent."""

    def give_baseline(self, plan: protocol.LandlockPlan) -> list[str]:
        """Store the application's lists, once; return the missing paths."""
        if self.baseline:
            raise protocol.BadRequestError("the baseline is already set")
        ruleset, missing = self._ruleset(plan)
        self.baseline = [ruleset]
        return missing

    def start(
        self, body: bytes, files: list[int], plan: protocol.LandlockPlan | None, mark: int
    ) -> tuple[int, int, int, list[str]]:
        """Execute a request; return the pid, the pidfd, the report, and the missing paths of the plan.

        The report is -1 for a running program. A program that must wait for the helper has a descriptor, which closes
        when the program runs, or contains data for ``failure_of``.
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
            raise protocol.BadRequestError(str(error)) from error
        except OSError as error:
            raise FailedStepError((error.strerror or "").partition(":")[0], error) from error
        return pid, pidfd, report[0] if report else -1

    def _ruleset(self, plan: protocol.LandlockPlan) -> tuple[int, list[str]]:
        try:
            return raw_ruleset.build(
                self._native, plan.fs, plan.net, plan.scoped, plan.paths, plan.ports, exact=bool(plan.exact)
            )
        except OSError as error:
            raise FailedStepError("landlock", error) from error


def failure_of(report: bytes) -> FailedStepError | None:
    """Return the step at which a program failed; None for a running program."""
    if len(report) < _REPORT.size:
        return None
    number, step = _REPORT.unpack_from(report)
    return FailedStepError(step.rstrip(b"\0").decode("ascii", "replace"), OSError(number, os.strerror(number)))


def _ignored_signals() -> int:
    """Return the ignored signals of this process as a bit mask; all if the kernel does not report them."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("SigIgn:"):
                return int(line.split()[1], 16)
    return (1 << 64) - 1
