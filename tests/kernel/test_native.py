"""Compiled module of the kernel layer: its calls, its refusals, and its protection from guarded code."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from democrai_sandbox.kernel import _native
from tests.services.rows import rows

STUB = Path(_native.__file__).parent / "_native.pyi"
STUBBED = frozenset(re.findall(r"^def (\w+)\(", STUB.read_text(), re.MULTILINE))
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

PACKAGED = "from democrai_sandbox.kernel import _native as native"
ALONE = """
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("_native", sys.argv.pop())
native = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
loader.exec_module(native)
"""
PRELUDE = """
import errno, json, os, signal, sys, threading
def tried(act, *args, **options):
    try:
        return act(*args, **options)
    except BaseException as error:
        kernels = isinstance(error, OSError) and type(error).__module__ == "builtins"
        return errno.errorcode[error.errno] if kernels else type(error).__name__
def status(field, task="self"):
    for line in open(f"/proc/{task}/status"):
        if line.startswith(field + ":"):
            return line.split(":")[1].strip()
def say(answer):
    print(json.dumps(answer))
def apart(act, *args):
    "Run it in a fork, and return its result."
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(start, json.dumps(act(*args)).encode())
        os._exit(0)
    os.close(start)
    with open(end) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)
"""
AUDIT_ARCH = {"aarch64": 0xC00000B7, "x86_64": 0xC000003E}
# Filters are hand-made here: (code, jump if true, jump if false, constant).
ALLOW = (0x06, 0, 0, 0x7FFF0000)
LOAD_NUMBER = (0x20, 0, 0, 0)


def packed(*instructions):
    import struct

    return b"".join(struct.pack("<HBBI", *one) for one in instructions)


def run(body, *args):
    """Run code in a separate process, with the module alone as in the spawn server; return its output."""
    return started(["-I", "-S"], PRELUDE + ALONE + textwrap.dedent(body), *args, _native.__file__)


def started(options, code, *args):
    command = [sys.executable, *options, "-c", code, *map(str, args)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


# --- its interface --------------------------------------------------------------------------------------------------


def test_the_stub_names_every_function():
    """The stub file matches the module."""
    assert {name for name in dir(_native) if not name.startswith("_")} == STUBBED


def test_every_function_announces_itself_by_name_before_it_looks_at_anything():
    """An audit hook that refuses the event stops each function, in any way of calling it."""
    answer = run(
        """
        seen, on = [], True
        def hook(event, args):
            if on and event == "democrai.kernel":
                seen.append(args[0])
                raise RuntimeError("refused")
        sys.addaudithook(hook)
        outcomes = []
        for name in sys.argv[2:]:
            function = getattr(native, name)
            one = name in sys.argv[1].split()
            outcomes.append(tried(function, object()) if one else tried(function))
        on = False
        say([seen, outcomes, native.no_new_privs(), status("Seccomp")])
        """,
        "set_dumpable set_parent_death_signal set_name drop_capabilities probe receive hear exit_code",
        *sorted(STUBBED),
    )
    seen, outcomes, privileges, filtered = answer
    assert seen == sorted(STUBBED)
    assert set(outcomes) == {"RuntimeError"}
    assert (privileges, filtered) == (False, "0")


GUARDED = """
from democrai_sandbox import process_guard_context
import importlib.machinery, importlib.util
calls = {
    "landlock_abi": (), "landlock_errno": (), "landlock_create": (4, 0, 0), "landlock_add_path": (3, "/", 4, True),
    "landlock_add_port": (3, 80, 1), "landlock_add_own_proc": (3, 4), "landlock_restrict": (3,),
    "seccomp_install": (bytes(8), 0), "seccomp_mode": (), "no_new_privs": (), "set_subreaper": (),
    "set_dumpable": (False,), "set_parent_death_signal": (9,), "set_name": (b"x",),
    "drop_capabilities": (0,), "probe": ("unshare",), "receive": (0,), "tell": (1, b"x", -1), "hear": (0,),
    "exit_code": (0,), "strangers": (0, {}), "spawn": (b"S", [], [], 0, (10, 1), 0),
    "fork_worker": (), "confine_worker": (1, b"S", [], [], 0, (10, 1), 0), "supervise": (0, []),
}
FIELDS = ("NoNewPrivs", "CapBnd", "CapEff", "Seccomp")
def everything(module):
    return {name: tried(getattr(module, name), *args) for name, args in calls.items()}
def imported():
    import democrai_sandbox.kernel._native as module
    return module
def loaded():
    loader = importlib.machinery.ExtensionFileLoader("_native", native.__file__)
    return importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
def attempt(get):
    try:
        module = get()
    except BaseException as error:
        return {"import": type(error).__name__}
    return everything(module)
before, answers = [status(name) for name in FIELDS], []
for programs in (True, False):
    with process_guard_context(subject="guarded", access=[], allow_subprocess=programs):
        answers.append([everything(native), attempt(imported), attempt(loaded)])
after = [status(name) for name in FIELDS]
say([answers, before, after, native.landlock_abi() >= 0])
"""


def test_guarded_code_cannot_call_any_of_it():
    """Kept from before, imported, or loaded from the file: each call is refused, even with allow_subprocess."""
    answers, before, after, host = started([], PRELUDE + PACKAGED + GUARDED)
    for kept, imported, loaded in answers:
        assert set(kept) == STUBBED
        assert set(kept.values()) == {"TamperDenied"}
        for answer in (imported, loaded):  # a failed import is equivalent
            assert set(answer.values()) <= {"TamperDenied", "ImportDenied", "FilesystemDenied"}
    assert len(answers) == 2
    assert before == after
    assert host is True


BAD_ARGUMENTS = {
    "landlock_create(-1, 0, 0)": "OverflowError",
    "landlock_create(1 << 64, 0, 0)": "OverflowError",
    "landlock_create(1.0, 0, 0)": "TypeError",
    "landlock_create(0, 0, 0)": "ENOMSG",
    "landlock_create(1 << 63, 0, 0)": "EINVAL",
    "landlock_add_path(-1, '/', 4, True)": "EBADF",
    "landlock_add_path(-1, chr(0), 4, True)": "ValueError",
    "landlock_add_path(-1, 0, 4, True)": "TypeError",
    "landlock_add_port(-1, 65536, 1)": "ValueError",
    "landlock_add_port(-1, -1, 1)": "ValueError",
    "landlock_add_port(-1, 80, 1)": "EBADF",
    "landlock_add_own_proc(-1, 4)": "EBADF",
    "landlock_add_own_proc(-1, -1)": "OverflowError",
    "landlock_restrict(-1)": "EBADF",
    "landlock_restrict(-1, 1 << 40)": "EINVAL",
    "landlock_restrict(-1, flags=-1)": "OverflowError",
    "seccomp_install(b'', 0)": "EINVAL",
    "seccomp_install(bytes(7), 0)": "EINVAL",
    "seccomp_install(bytes(9), 0)": "EINVAL",
    "seccomp_install(bytes(8 * 4097), 0)": "EINVAL",
    "seccomp_install(bytes(8), 0)": "EINVAL",
    "seccomp_install(bytes(8), 1 << 31)": "EINVAL",
    "seccomp_install(bytes(8), 1 << 32)": "EINVAL",
    "seccomp_install(bytes(8), 1 << 3)": "ValueError",
    "seccomp_install('text', 0)": "TypeError",
    "set_parent_death_signal(-1)": "OverflowError",
    "set_parent_death_signal(1000)": "EINVAL",
    "set_parent_death_signal(1 << 32 | 9)": "EINVAL",
    "drop_capabilities(-1)": "OverflowError",
    "drop_capabilities('all')": "TypeError",
    "receive(-1)": "EBADF",
    "receive('0')": "TypeError",
    "tell(-1, b'', -1)": "EBADF",
    "tell(1, 'text', -1)": "TypeError",
    "hear(None)": "TypeError",
    "exit_code(-1)": "EINVAL",
    "strangers(-1, {})": "EBADF",
    "strangers(0, [])": "TypeError",
    "confine_worker(1, b'S', [], [], 0, (10, 1), 0)": "ValueError",
    "confine_worker(1, b'S', [-1], [], 0, (10, 1), 0)": "ValueError",
    "supervise(-1, [])": "EBADF",
    "supervise(0, ())": "TypeError",
    "supervise(0, [0])": "TypeError",
    "supervise(0, [('text', 1, 1)])": "TypeError",
    "supervise(0, [(b'/', 1)])": "TypeError",
    "spawn(b'S', [], [], 0, (10, 1), 0)": "ValueError",
    "spawn(bytearray(b'S'), [], [], 0, (10, 1), 0)": "TypeError",
    "spawn(b'S', [-1], [], 0, (10, 1), 0)": "ValueError",
    "spawn(b'S', [1 << 40], [], 0, (10, 1), 0)": "ValueError",
    "spawn(b'S', [0] * 254, [], 0, (10, 1), 0)": "ValueError",
    "spawn(b'S', [], ['0'], 0, (10, 1), 0)": "TypeError",
    "spawn(b'S', [], [], 0, (10, -1), 0)": "OverflowError",
    "probe('execve')": "ValueError",
    "probe(7)": "ValueError",
    "probe('\\udc80')": "UnicodeEncodeError",
}


def test_bad_arguments_are_refused_by_name():
    """Values are not truncated, and nothing is installed."""
    answers = run(
        """
        def bad(call):
            return [tried(lambda: eval("native." + call)), status("Seccomp")]
        say({call: apart(bad, call) for call in sys.argv[1:]})
        """,
        *BAD_ARGUMENTS,
    )
    assert answers == {call: [raised, "0"] for call, raised in BAD_ARGUMENTS.items()}


# --- Landlock -------------------------------------------------------------------------------------------------------

CREATE_RULESET = 444


@pytest.mark.skipif(platform.machine() not in AUDIT_ARCH, reason="the filter is for x86_64 and aarch64")
@pytest.mark.skipif(_native.landlock_abi() < 6, reason="needs Landlock ABI 6")
@rows(("known", "taken"), [(8, [True, False, False]), (16, [True, True, False]), (24, [True] * 3)])
def test_a_ruleset_is_described_no_longer_than_it_needs(known, taken):
    """Kernels and filters that know a shorter struct do not get a longer one with zeros."""
    size_argument = 16 + 8
    refuses_longer = packed(
        LOAD_NUMBER,
        (0x15, 0, 2, CREATE_RULESET),
        (0x20, 0, 0, size_argument),
        (0x25, 1, 0, known),  # greater: skip one
        ALLOW,
        (0x06, 0, 0, 0x00050000 | errno.E2BIG),
    )
    answer = run(
        """
        assert native.seccomp_install(bytes.fromhex(sys.argv[1]), 0) == 0
        made = [tried(native.landlock_create, *numbers) for numbers in ((4, 0, 0), (4, 2, 0), (4, 0, 1))]
        say(made)
        """,
        refuses_longer.hex(),
    )
    assert [type(outcome) is int for outcome in answer] == taken
    assert {outcome for outcome in answer if type(outcome) is not int} <= {"E2BIG"}


@pytest.mark.skipif(platform.machine() not in AUDIT_ARCH, reason="the filter is for x86_64 and aarch64")
@rows("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_kernel_without_landlock_has_abi_0_and_says_why(number):
    """Neither raises: the caller handles it."""
    none_at_all = packed(LOAD_NUMBER, (0x15, 0, 1, CREATE_RULESET), (0x06, 0, 0, 0x00050000 | number), ALLOW)
    answer = run(
        """
        before = native.landlock_abi(), native.landlock_errno()
        native.seccomp_install(bytes.fromhex(sys.argv[1]), 0)
        say([before[1] == 0 or before[0] == 0, native.landlock_abi(), native.landlock_errno()])
        """,
        none_at_all.hex(),
    )
    assert answer == [True, 0, number]


@pytest.mark.skipif(_native.landlock_abi() < 1, reason="needs Landlock")
def test_restricting_sets_no_new_privs_of_the_thread_that_asks():
    """Without it an unprivileged user would be refused; other threads stay unchanged."""
    answer = run(
        """
        def restrict():
            native.landlock_restrict(native.landlock_create(1, 0, 0))
            seen.append(native.no_new_privs())
        seen = [native.no_new_privs()]
        worker = threading.Thread(target=restrict)
        worker.start()
        worker.join()
        say([*seen, native.no_new_privs()])
        """
    )
    assert answer == [False, True, False]


# --- seccomp --------------------------------------------------------------------------------------------------------


def test_a_filter_is_installed_for_the_calling_thread():
    """The result is 0, and the kernel reports the new mode, count and no_new_privs."""
    answer = run(
        """
        before = native.seccomp_mode(), native.no_new_privs()
        result = native.seccomp_install(bytes.fromhex(sys.argv[1]), 0)
        say([before, result, native.seccomp_mode(), native.no_new_privs(), status("Seccomp")])
        """,
        packed(ALLOW).hex(),
    )
    assert answer == [[0, False], 0, 2, True, "2"]


def test_a_thread_that_cannot_follow_is_returned_as_a_number_above_0():
    """Nothing is installed then: code that only checks for errors would treat it as success."""
    answer = run(
        """
        program, ready, go, tid = bytes.fromhex(sys.argv[1]), threading.Event(), threading.Event(), []
        def different():
            native.seccomp_install(program, 0)
            tid.append(threading.get_native_id())
            ready.set()
            go.wait(40)
        threading.Thread(target=different, daemon=True).start()
        ready.wait(40)
        result = native.seccomp_install(program, 1)
        answer = [result == tid[0], native.seccomp_mode()]
        go.set()
        say(answer)
        """,
        packed(ALLOW).hex(),
    )
    assert answer == [True, 0]


# --- processes ------------------------------------------------------------------------------------------------------


@root_only
def test_capabilities_are_dropped_from_every_set_and_do_not_come_back():
    """Only those in the mask stay: in the process, and in a program that root executes."""
    keep = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
    answer = run(
        """
        import subprocess
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        native.drop_capabilities(int(sys.argv[1]))
        own = [int(status(name), 16) for name in sets]
        told = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True).stdout
        lines = dict(line.split(":\\t") for line in told.splitlines() if line.startswith("Cap"))
        say([own, [int(lines[name], 16) for name in sets], tried(os.setuid, 65534), tried(os.chroot, "/")])
        """,
        keep,
    )
    own, program, setuid, chroot = answer
    assert own == [0, keep, keep, keep, 0]
    assert program == [0, keep, keep, keep, 0]
    assert (setuid, chroot) == ("EPERM", "EPERM")


@root_only
def test_an_ordinary_user_drops_what_it_has_without_an_error():
    """It cannot lower the bounding set, and gains nothing by it after no_new_privs is set."""
    answer = run(
        """
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        say([tried(native.drop_capabilities, 0), status("CapEff"), status("CapPrm")])
        """
    )
    assert answer == [None, "0" * 16, "0" * 16]


def test_keeping_everything_changes_nothing():
    """A mask of all bits drops none."""
    answer = run(
        """
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        before = [status(name) for name in sets]
        native.drop_capabilities((1 << 64) - 1)
        say([before, [status(name) for name in sets]])
        """
    )
    assert answer[0] == answer[1]


def test_a_subreaper_becomes_the_parent_of_orphans():
    """A grandchild whose parent has ended becomes a child of this process."""
    answer = run(
        """
        native.set_subreaper()
        end, start = os.pipe()
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            if grandchild == 0:
                os.close(start)
                os.read(end, 1)
                os._exit(9)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(start)
        say(os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]))
        """
    )
    assert answer == 9


def test_a_process_ends_with_its_parent_when_it_asked_for_that():
    """The signal arrives when the thread that started it has ended."""
    answer = run(
        """
        native.set_subreaper()
        end, start = os.pipe()
        ready_end, ready_start = os.pipe()
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                native.set_parent_death_signal(signal.SIGKILL)
                os.write(ready_start, b"x")
                os.close(start)
                os.read(end, 1)
                os._exit(0)
            os.read(ready_end, 1)
            os._exit(0)
        os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]))
        """
    )
    assert answer == -signal.SIGKILL


def test_a_process_can_shut_itself_to_others_of_its_user():
    """Its files in /proc then belong to root, and it writes no core dump."""
    answer = run(
        """
        import ctypes
        get = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
        before = get()
        native.set_dumpable(False)
        shut = get()
        native.set_dumpable(True)
        say([before, shut, get()])
        """
    )
    assert answer == [1, 0, 1]


PROBES = {
    "ptrace": {"ESRCH", "EPERM"},
    "unshare": {"ok"},
    "bpf": {"EINVAL", "EPERM"},
    "perf_event_open": {"EFAULT", "EACCES", "EPERM", "ENOSYS"},
    "userfaultfd": {"EINVAL", "EPERM", "ENOSYS"},
    "io_uring_setup": {"EFAULT", "EPERM", "ENOSYS"},
    "keyctl": {"EOPNOTSUPP", "ENOTSUP", "ENOSYS"},
    "process_vm_readv": {"ok"},
    "setns": {"EBADF", "EPERM"},
    "mount": {"EFAULT", "EPERM"},
    "pivot_root": {"EFAULT", "EPERM"},
    "seccomp": {"EFAULT"},
}


def test_a_probe_reaches_the_kernel_and_does_nothing():
    """Without a filter the kernel itself answers; the process is unchanged."""
    answers = run(
        """
        def probed(name):
            return errno.errorcode.get(native.probe(name), "ok")
        say({name: apart(probed, name) for name in sys.argv[1:]})
        """,
        *PROBES,
    )
    assert {name for name, outcomes in PROBES.items() if answers[name] not in outcomes} == set(), answers
