"""All functions that start a process or replace the running one."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import PROCESS, SANDBOX, Ground, attack, attacks_of, raw_fork_exec

ESCAPED = '{"verdict": "escaped", "error_type": null, "code": null}'


def steal_command(ground: Ground) -> list[str]:
    return ["/bin/sh", "-c", f"cat {ground.outside} > {ground.inside}/stolen"]


def stolen(ground: Ground) -> object:
    path = f"{ground.inside}/stolen"
    return open(path).read() if os.path.exists(path) else None


def reap(pid: int) -> None:
    os.waitpid(pid, 0)


def leave_child(pid: int) -> bool:
    if pid == 0:
        os._exit(0)
    reap(pid)
    return True


def fork_exec(ground: Ground) -> None:
    import _posixsubprocess

    raw_fork_exec(_posixsubprocess.fork_exec, steal_command(ground))


def pty_spawn(ground: Ground) -> None:
    import pty

    pty.spawn(steal_command(ground))


def imap(ground: Ground) -> None:
    import imaplib

    command = f"cat {ground.outside} > {ground.inside}/stolen; echo '* PREAUTH'; sleep 1"
    imaplib.IMAP4_stream(command)


def text_pager(ground: Ground) -> None:
    import pydoc

    (getattr(pydoc, "pipe_pager", None) or pydoc.pipepager)("text", f"cat {ground.outside} > {ground.inside}/stolen")


def passed_descriptors(ground: Ground) -> None:
    from multiprocessing import util

    reap(util.spawnv_passfds(b"/bin/sh", [item.encode() for item in steal_command(ground)], ()))


attacks_of(
    {
        "system": lambda ground: os.system(steal_command(ground)[2]) and None,
        "posix_system": lambda ground: __import__("posix").system(steal_command(ground)[2]) and None,
        "popen": lambda ground: os.popen(steal_command(ground)[2]).read(),
        "subprocess_run": lambda ground: __import__("subprocess").run(steal_command(ground)),
        "subprocess_call": lambda ground: __import__("subprocess").call(steal_command(ground)),
        "subprocess_check_output": lambda ground: __import__("subprocess").check_output(steal_command(ground)),
        "subprocess_getoutput": lambda ground: __import__("subprocess").getoutput(steal_command(ground)[2]),
        "subprocess_Popen": lambda ground: __import__("subprocess").Popen(steal_command(ground)).wait(),
        "subprocess_shell": lambda ground: __import__("subprocess").run(steal_command(ground)[2], shell=True),
        "posix_spawn": lambda ground: reap(os.posix_spawn("/bin/sh", steal_command(ground), {})),
        "posix_spawnp": lambda ground: reap(os.posix_spawnp("sh", steal_command(ground), {})),
        "posix_posix_spawn": lambda ground: reap(__import__("posix").posix_spawn("/bin/sh", steal_command(ground), {})),
        "spawnv": lambda ground: os.spawnv(os.P_WAIT, "/bin/sh", steal_command(ground)) and None,
        "spawnlp": lambda ground: os.spawnlp(os.P_WAIT, "sh", *steal_command(ground)) and None,
        "fork_exec": fork_exec,
        "passed_descriptors": passed_descriptors,
        "pty_spawn": pty_spawn,
        "imap_stream": imap,
        "pydoc_pager": text_pager,
    },
    "{} starts a program that reads the secret",
    expect=PROCESS,
    after=stolen,
)


@attack("the pipes module starts a shell", expect=PROCESS, after=stolen, until=(3, 12))
def pipes_template(ground: Ground) -> None:
    import pipes

    template = pipes.Template()
    template.append(f"cat {ground.outside}", "--")
    template.open(f"{ground.inside}/stolen", "w").close()


attacks_of(
    {
        "fork": lambda ground: leave_child(os.fork()),
        "posix_fork": lambda ground: leave_child(__import__("posix").fork()),
        "forkpty": lambda ground: leave_child(os.forkpty()[0]),
        "pty_fork": lambda ground: leave_child(__import__("pty").fork()[0]),
    },
    "{} makes a copy of the process",
    expect=PROCESS,
)

SCRIPT = ["/bin/sh", "-c", f"echo '{ESCAPED}'"]


def execute_descriptor(ground: Ground) -> None:
    os.execve(os.open("/bin/sh", os.O_RDONLY), SCRIPT, {})


def execute_memory(ground: Ground) -> None:
    descriptor = os.memfd_create("program", 0)
    with open("/bin/sh", "rb") as program:
        os.write(descriptor, program.read())
    os.execve(descriptor, SCRIPT, {})


attacks_of(
    {
        "execv": lambda ground: os.execv("/bin/sh", SCRIPT),
        "execve": lambda ground: os.execve("/bin/sh", SCRIPT, {}),
        "execvp": lambda ground: os.execvp("sh", SCRIPT),
        "execl": lambda ground: os.execl("/bin/sh", *SCRIPT),
        "posix_execv": lambda ground: __import__("posix").execv("/bin/sh", SCRIPT),
        "execve_descriptor": execute_descriptor,
        "execve_memory": execute_memory,
    },
    "{} replaces the process",
    expect=PROCESS,
)


def child_writes(ground: Ground) -> None:
    ground.write(f"{ground.inside}/stolen", open(ground.outside).read())


class Task:
    """A picklable order for a process made by `multiprocessing`."""

    def __init__(self, ground: Ground) -> None:
        self.outside, self.target = ground.outside, f"{ground.inside}/stolen"

    def __reduce__(self) -> object:
        return exec, (f"open({self.target!r}, 'w').write(open({self.outside!r}).read())",)


def multiprocessing_with(method: str):
    def act(ground: Ground) -> None:
        import multiprocessing

        process = multiprocessing.get_context(method).Process(
            target=exec, args=(f"open('{ground.inside}/stolen', 'w').write(open({ground.outside!r}).read())",)
        )
        process.start()
        process.join()

    return act


def hide_main(ground: Ground) -> None:
    """A spawned child must not run this runner again."""
    main = sys.modules["__main__"]
    main.__dict__.pop("__file__", None)
    main.__spec__ = None


attacks_of(
    {f"multiprocessing_{method}": multiprocessing_with(method) for method in ("fork", "spawn", "forkserver")},
    "{} starts a worker process",
    expect=PROCESS,
    early=hide_main,
    after=stolen,
)


def process_pool(ground: Ground) -> object:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(eval, f"open({ground.outside!r}).read()").result()


attacks_of(
    {
        "ProcessPoolExecutor": process_pool,
        "multiprocessing_Pool": lambda ground: (
            __import__("multiprocessing").get_context("fork").Pool(1).apply(eval, (f"open({ground.outside!r}).read()",))
        ),
    },
    "{} starts worker processes",
    expect=PROCESS,
    early=hide_main,
)


@attack("the resource tracker of multiprocessing is started", expect=PROCESS, early=hide_main)
def resource_tracker(ground: Ground) -> bool:
    from multiprocessing.resource_tracker import _resource_tracker

    _resource_tracker.ensure_running()
    return _resource_tracker._fd is not None


@attack("asyncio starts a program", expect=PROCESS, after=stolen)
async def asyncio_exec(ground: Ground) -> None:
    import asyncio

    process = await asyncio.create_subprocess_exec(*steal_command(ground))
    await process.wait()


@attack("asyncio starts a shell", expect=PROCESS, after=stolen)
async def asyncio_shell(ground: Ground) -> None:
    import asyncio

    process = await asyncio.create_subprocess_shell(steal_command(ground)[2])
    await process.wait()


@attack("the loop's own method starts a program", expect=PROCESS, after=stolen)
async def loop_subprocess(ground: Ground) -> None:
    import asyncio

    ended = asyncio.Event()

    class Ending(asyncio.SubprocessProtocol):
        def process_exited(self) -> None:
            ended.set()

    await asyncio.get_running_loop().subprocess_exec(Ending, *steal_command(ground))
    await ended.wait()


@attack("a Tcl interpreter starts a program", expect=SANDBOX, needs=("_tkinter",))
def tcl_exec(ground: Ground) -> object:
    import _tkinter

    return _tkinter.create(None, "x", "X", False, 1, False).eval(f"exec cat {ground.outside}")


def prepare_fork_exec(ground: Ground) -> None:
    import _posixsubprocess
    import posix
    import subprocess

    ground.held.fork_exec = _posixsubprocess.fork_exec
    ground.held.system = posix.system
    ground.held.Popen = subprocess.Popen


@attack(
    "a reference to posix.system from before the guard is called", expect=PROCESS, early=prepare_fork_exec, after=stolen
)
def captured_system(ground: Ground) -> None:
    ground.held.system(steal_command(ground)[2])


@attack("a reference to Popen from before the guard is called", expect=PROCESS, early=prepare_fork_exec, after=stolen)
def captured_popen(ground: Ground) -> None:
    ground.held.Popen(steal_command(ground)).wait()


@attack(
    "the reference to fork_exec that subprocess holds is called", expect=PROCESS, early=prepare_fork_exec, after=stolen
)
def captured_fork_exec(ground: Ground) -> None:
    raw_fork_exec(ground.held.fork_exec, steal_command(ground))


@attack("a subclass of Popen skips the announcement that Popen makes", expect=PROCESS, after=stolen)
def popen_without_event(ground: Ground) -> None:
    import subprocess

    class Quiet(subprocess.Popen):
        def _execute_child(self, args, *rest) -> None:
            raw_fork_exec(subprocess._fork_exec, args)
            self.returncode = 0

    Quiet(steal_command(ground))
