"""A guard that may start programs and names system dependencies starts only those."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from tests.guard.harness import Case

DENIED = "sandbox_filesystem_denied"


@pytest.fixture
def case(tmp_path):
    """Private world in which a body runs in a separate process."""
    return Case(tmp_path)


def rule(target):
    return {"resource_type": "system_dependency", "operation": "execute", "target": target}


def ways(world):
    """Return each way to start a program, with a name or path."""
    devnull = subprocess.DEVNULL

    def forked(path):
        child = os.fork()
        if child == 0:
            try:
                os.execv(path, [path])
            except OSError as error:
                os._exit(3 if getattr(error, "code", "") == DENIED else 4)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {0: "ok", 3: DENIED}[status]

    def spawned(path):
        return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(path, [path], os.environ), 0)[1])

    return {
        "run": lambda path: subprocess.run([path], stdout=devnull, check=True),
        "run by name": lambda path: subprocess.run([os.path.basename(path)], stdout=devnull, check=True),
        "shell": lambda path: subprocess.run(path, shell=True, stdout=devnull, check=True),
        "system": lambda path: os.system(path),
        "posix_spawn": spawned,
        "fork and exec": forked,
        "asyncio": lambda path: asyncio.run(asyncio.create_subprocess_exec(path)),
    }


def starts(world):
    from democrai_sandbox import process_guard_context

    targets, path = world.args

    def attempt(act):
        try:
            answer = act(path)
        except OSError as error:
            return getattr(error, "code", type(error).__name__)
        return answer if isinstance(answer, str) else "ok"

    found = ways(world)
    guard = process_guard_context(
        subject="demo", allowed_paths=[world.root], access=list(map(rule, targets)), allow_subprocess=True
    )
    return guard.run(lambda: {name: attempt(act) for name, act in found.items()})


SHELLS = ("shell", "system")
"""They start a shell, which must be declared and can start anything."""


@pytest.mark.parametrize("targets", [["true"], ["/usr/bin/true"]])
def test_a_named_program_starts(case, targets):
    """By its name or its path; an undeclared shell does not start."""
    told = case.run(starts, targets, "/usr/bin/true")
    assert {name for name, answer in told.items() if answer != "ok"} == set(SHELLS)
    assert {told[name] for name in SHELLS} == {DENIED}


def test_other_programs_do_not_start(case):
    """This applies to every way of starting."""
    assert set(case.run(starts, ["true"], "/usr/bin/env").values()) == {DENIED}


def test_without_named_programs_all_start(case):
    """A guard that may start programs and names none starts all."""
    assert set(case.run(starts, [], "/usr/bin/true").values()) == {"ok"}


def test_a_named_shell_starts_anything(case):
    """A shell can run any command."""
    told = case.run(starts, ["sh"], "/usr/bin/true")
    assert {name for name, answer in told.items() if answer == "ok"} == set(SHELLS)


def disguised(world):
    from democrai_sandbox import process_guard_context

    os.symlink("/bin/sh", world.inside("true"))

    def attempt(*argv, **options):
        try:
            return subprocess.run(argv, capture_output=True, **options).returncode
        except OSError as error:
            return getattr(error, "code", type(error).__name__)

    def body():
        return {
            "link": attempt(world.inside("true"), "-c", "exit 7"),
            "search path": attempt("true", "-c", "exit 7", env={"PATH": world.root}),
            "executable": attempt("true", "-c", "exit 7", executable="/bin/sh"),
            "missing": attempt("no-such-program"),
            "hidden": attempt("secret.txt", env={"PATH": f"{world.outside}:{world.root}"}),
            "descriptor": attempt_exec(),
        }

    def attempt_exec():
        number = os.open("/bin/sh", os.O_RDONLY)
        child = os.fork()
        if child == 0:
            try:
                os.execve(number, ["sh", "-c", "exit 7"], {})
            except OSError as error:
                os._exit(3 if error.code else 4)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    access = [rule("true")]
    return process_guard_context(subject="demo", allowed_paths=[world.root], access=access, allow_subprocess=True).run(
        body
    )


def test_a_program_in_disguise_does_not_start(case):
    """The file that would run counts; a search reveals nothing about undeclared files."""
    assert case.run(disguised) == {
        "link": DENIED,
        "search path": DENIED,
        "executable": DENIED,
        "missing": "FileNotFoundError",
        "hidden": "FileNotFoundError",
        "descriptor": 3,
    }
