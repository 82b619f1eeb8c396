"""Apply a ruleset to this process, and report its coverage."""

from __future__ import annotations

import errno
import os
import threading

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel.states import ControlState, ControlStatus

from .rights import THREAD_SYNC
from .rulesets import Built, RulesetPlan, build, lacking
from .support import LandlockSupport, landlock_support, native_module

NAME = "landlock"
_TASKS = "/proc/self/task"
_MOST_LAYERS = 16

_FIX_THREADS = "apply Landlock before any thread starts"
_FIX_KERNEL = "use a newer kernel: Linux 6.12 supports all restrictions"


def apply(plan: RulesetPlan, *, support: LandlockSupport | None = None) -> ControlStatus:
    """Restrict the calling thread and everything that it starts, permanently; return the coverage."""
    support = landlock_support() if support is None else support
    if support.abi < 1:
        return unsupported(support)
    with build(plan, support.abi) as built:
        # Read before and after: a thread that another thread starts meanwhile is not covered.
        others = _other_threads()
        synchronised = _restrict(built.fd, synchronise=support.synchronises_threads)
        threads = 1 + len(others | _other_threads())
    return _status(plan, support, built, threads, threads if synchronised else 1)


def unsupported(support: LandlockSupport) -> ControlStatus:
    """Return the status of a machine without Landlock."""
    return ControlStatus(
        NAME,
        ControlState.UNSUPPORTED,
        support.reason,
        support.fix,
        {"abi": support.abi, "kernel_abi": support.kernel_abi, "forced": support.forced},
    )


def _restrict(ruleset: int, *, synchronise: bool) -> bool:
    """Restrict; return whether all threads are covered."""
    native = native_module()
    if synchronise:
        try:
            native.landlock_restrict(ruleset, THREAD_SYNC)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: the kernel does not know the flag
                raise _refused(error) from error
        else:
            return True
    try:
        native.landlock_restrict(ruleset)
    except OSError as error:
        raise _refused(error) from error
    return False


def _refused(error: OSError) -> KernelLayerError:
    if error.errno == errno.E2BIG:
        return KernelLayerError(
            f"Landlock was not applied: this process already has {_MOST_LAYERS} Landlock layers, the maximum",
            fix="start the application from a process with fewer layers",
        )
    return KernelLayerError(f"Landlock was not applied: {error}", fix="check the kernel log for landlock")


def _other_threads() -> set[int]:
    """Return the other threads. They keep all their rights, also for the threads that they start."""
    try:
        numbers = {int(name) for name in os.listdir(_TASKS)}  # noqa: PTH208 - only names are needed
    except OSError:
        # /proc is missing or no longer readable: use the threads that Python knows.
        numbers = {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}
    return numbers - {threading.get_native_id()}


def _status(plan: RulesetPlan, support: LandlockSupport, built: Built, threads: int, covered: int) -> ControlStatus:
    without = lacking(plan, support.abi)
    holes = [feature.without for feature in without if feature.without]
    reasons = [f"{_threads(threads - covered)} not covered, because they existed before"] if covered < threads else []
    reasons += [f"ABI {support.abi}: {hole}" for hole in holes]
    fixes = ([_FIX_THREADS] if covered < threads else []) + ([_FIX_KERNEL] if holes else [])
    details = {
        "abi": support.abi,
        "kernel_abi": support.kernel_abi,
        "forced": support.forced,
        "features": built.features,
        "lacking": tuple(feature.name for feature in without),
        "paths": len(built.covered),
        "missing": built.missing,
        "threads": threads,
        "threads_covered": covered,
    }
    state = ControlState.PARTIAL if reasons else ControlState.ACTIVE
    return ControlStatus(NAME, state, "; ".join(reasons), "; ".join(fixes), details)


def _threads(count: int) -> str:
    return "1 thread is" if count == 1 else f"{count} threads are"
