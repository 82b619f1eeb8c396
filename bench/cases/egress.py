"""Swap of an allowlist of a thousand endpoints, compared with three ``iptables-restore`` runs with as many rules."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import Case, UnavailableError, add

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

LIMIT = 1.0
ENDPOINTS = 1000
_RESTORES = 3
_NEWNET = 0x40000000
_ADDRESSES = [f"198.18.{number // 250}.{number % 250}" for number in range(ENDPOINTS)]


def _elsewhere() -> ThreadPoolExecutor:
    """Return a thread in a separate network, which does not see or change the machine's rules."""
    if os.geteuid() != 0:
        raise UnavailableError("needs root for the packet filter")
    if shutil.which("iptables-restore") is None or shutil.which("ip6tables-restore") is None:
        raise UnavailableError("install iptables")
    thread = ThreadPoolExecutor(1)
    libc = ctypes.CDLL(None, use_errno=True)
    if thread.submit(libc.unshare, _NEWNET).result():
        raise UnavailableError("needs permission to create a network namespace")
    return thread


def _timed(thread: ThreadPoolExecutor, act: Callable[[], object]) -> Loop:
    def turn(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            act()
        return perf_counter_ns() - start

    return lambda turns: thread.submit(turn, turns).result()


def _restoring(thread: ThreadPoolExecutor) -> Loop:
    rules = [f"-A BENCH -d {address} -p tcp --dport 443 -j RETURN" for address in _ADDRESSES]
    text = "\n".join(["*filter", ":BENCH - [0:0]", *rules, "COMMIT", ""])
    command = [shutil.which("iptables-restore"), "--noflush", "-w", "10"]

    def restore() -> None:
        for _ in range(_RESTORES):
            subprocess.run(command, input=text, text=True, check=True, capture_output=True)

    return _timed(thread, restore)


def _swapping(thread: ThreadPoolExecutor) -> Loop:
    from democrai_sandbox.kernel.helper.cgroups import find_tree
    from democrai_sandbox.kernel.helper.enforcer import Enforcer
    from democrai_sandbox.kernel.helper.policy import Policy, PolicyEndpoint
    from democrai_sandbox.kernel.helper.processes import facts

    # An application in that network, which does nothing and ends with this process.
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    application = thread.submit(subprocess.Popen, ["/bin/cat"], **streams).result()
    enforcer = Enforcer(application.pid, facts(application.pid).start_time)
    numbers = count()
    policies = [
        Policy(tuple(PolicyEndpoint(address, port) for address in _ADDRESSES), digest=str(port)) for port in (443, 8443)
    ]

    def end() -> None:
        application.kill()
        application.wait()
        # The rules end with the network, which ends with this process.
        find_tree().application(application.pid).remove()

    atexit.register(end)

    def swap() -> None:
        if not enforcer.apply(policies[next(numbers) % 2], application.pid)["changed"]:
            raise RuntimeError("the swap changed nothing")

    return _timed(thread, swap)


def swap_of_a_thousand(bed: Fixture) -> Loop:
    thread = _elsewhere()
    return _swapping(thread) if bed.guarded else _restoring(thread)


add(
    Case(
        "swap of 1000 endpoints (to three iptables-restore)",
        swap_of_a_thousand,
        limit=LIMIT,
        wrapped=False,
        reference=False,
        parts=3,
        samples=8,
    )
)
