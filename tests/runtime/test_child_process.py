"""Children are watched and reaped even if the system refuses ``pidfd_open`` with EPERM: a real seccomp filter."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="the filter is for two machines"),
]
REFUSING = """
import ctypes, os, struct, sys

def refuse_pidfd_open():
    # Load the number of the call; 434 is pidfd_open on every machine; EPERM for it, all else is allowed.
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
    try:
        os.pidfd_open(os.getpid())
    except PermissionError:
        return
    raise AssertionError("the filter does nothing")

refuse_pidfd_open()
"""


def refused(code):
    """Run code in a process in which the call is refused, and return its output."""
    program = REFUSING + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_program_of_an_extension():
    """It runs to its end, and its exit status is known."""
    found = refused(
        """
        import select
        from democrai_sandbox.runtime.children.launch_request import LaunchRequest
        from democrai_sandbox.runtime.children.service import PopenChild

        exits = ("sh", "-c", "exit 3")
        order = LaunchRequest(program="/bin/sh", argv=exits, environment={}, folder="/", view=None, mark="")
        child = PopenChild(order)
        select.select([child.ended], [], [])
        print(child.collect())
        """
    )
    assert found == ["3"]


def test_a_worker():
    """It is awaited on the loop, and killed with its group."""
    found = refused(
        """
        import asyncio
        from democrai_sandbox.runtime.worker.process import PlainStarter

        async def main():
            started = await PlainStarter().start(["/bin/sleep", "600"], env={}, pass_fds=(), cwd="/")
            waiting = asyncio.create_task(started.wait())
            await asyncio.sleep(0.1)
            started.kill()
            print(await waiting)
            started.close()

        asyncio.run(main())
        """
    )
    assert found == ["-9"]


def test_a_script():
    """It runs to its end."""
    found = refused(
        """
        from democrai_sandbox.runtime.single_run import Command, PlainStart, run_program

        print(run_program(Command(("/bin/sh", "-c", "exit 4"), {}, "/", ()), start=PlainStart))
        """
    )
    assert found == ["4"]


def test_the_spawn_server():
    """It starts programs, and ends with the application."""
    found = refused(
        """
        from democrai_sandbox.kernel.spawn import SpawnOrder, SpawnServer

        server = SpawnServer.start()
        child = server.spawn(SpawnOrder(program="/bin/sh", argv=("sh", "-c", "exit 5"), environment={}, folder="/"))
        print(child.collect())
        server.stop()
        print(server.alive)
        """
    )
    assert found == ["5", "False"]


def test_the_keeper():
    """It starts its program, and returns its status."""
    found = refused(
        """
        import socket
        from democrai_sandbox.kernel.egress import keeper

        ours, theirs = socket.socketpair()
        print(keeper.main([str(theirs.fileno()), "/bin/sh", "-c", "exit 6"]))
        """
    )
    assert found == ["6"]


def test_the_standby_of_the_keeper():
    """It takes over, and detects the end of a helper that is not its child."""
    found = refused(
        """
        import signal, time
        from democrai_sandbox.kernel.egress.helper_process import Way
        from democrai_sandbox.kernel.egress.helper_process import RunningHelper

        def numbers(count):
            while len(helpers) < count:
                running.read_log(0.1)

        helpers, log = [], lambda line: helpers.append(int(line)) if line.isdecimal() else None
        running = RunningHelper.launch(Way.DIRECT, ["/bin/sh", "-c", "echo $$; exec sleep 600"], log)
        first = running.keeper_pid
        numbers(1)
        running._tell(b"k")
        children = f"/proc/{first}/task/{first}/children"
        while len(open(children).read().split()) < 2:
            time.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        while running.keeper_pid == first:
            time.sleep(0.01)
        os.kill(helpers[0], signal.SIGKILL)
        numbers(2)
        print(running.is_kept)
        running.stop()
        print(running.is_kept)
        """
    )
    assert found == ["True", "False"]


def test_the_helper_finds_processes():
    """A running process is found by its other known properties."""
    found = refused(
        """
        from democrai_sandbox.kernel.helper.processes import _opened

        print(_opened(os.getpid()))
        """
    )
    assert found == ["None"]


def test_what_a_program_left_behind():
    """It is killed, found by its environment."""
    found = refused(
        """
        import subprocess
        from democrai_sandbox.runtime.children import supervision

        left = subprocess.Popen(["/bin/sleep", "600"], env={"MARK": "mine"})
        while b"MARK=mine" not in supervision._environment(left.pid):
            pass
        print(supervision._end(left.pid, b"MARK=mine"), left.wait())
        """
    )
    assert found == ["True", "-9"]
