"""``--help``: fast and complete."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

import pytest

from democrai_sandbox.cli.commands import COMMANDS
from democrai_sandbox.cli.parser import parser_of
from tests.cli.goldens import COMMAND, environment, golden, terminal, within
from tests.services.rows import rows

TIMES = 3
TRIES = 3
SLOWEST = 3
HELPING = """
import os, sys, time

def helped(words):
    begun = time.process_time()
    if words:
        from democrai_sandbox.cli.entry import main
        try:
            main([*words, "--help"])
        except SystemExit as ended:
            assert not ended.code
    else:
        import argparse, importlib
        argparse.ArgumentParser().format_help()
    return time.process_time() - begun

for line in sys.stdin:
    if os.fork() == 0:
        report, sys.stdout = sys.stdout, open(os.devnull, "w")
        print(helped(line.split()), *sys.modules, file=report, flush=True)
        os._exit(0)
    os.wait()
"""
"""Gives the help for each line in a fork of an interpreter that has done nothing yet, and tells of it in a line.

An empty line is for a parser of argparse that takes nothing.
"""
LIGHT = {"", "._moved", ".cli", ".cli.arguments", ".cli.commands", ".cli.entry", ".cli.parser", ".cli.terminal"}
ARGUMENTS = "democrai_sandbox.cli.arguments."


class Helped(NamedTuple):
    """Measurements of a help text."""

    seconds: float
    modules: set[str]


def paths(parser, words):
    """The words of a parser and of its verbs."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                yield from paths(verb, (*words, name))


EVERY = [words for command in COMMANDS for words in paths(parser_of(command), (command.name,))]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """An environment with compiled code, as of an installed package."""
    return environment({"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled")), "PYTHONDONTWRITEBYTECODE": ""})


@pytest.fixture(scope="module")
def helped(compiled):
    """Measurements of the help of every command and verb, and of plain argparse."""
    asked = [(), *EVERY]
    given = "".join(f"{' '.join(words)}\n" for words in asked)
    for _ in range(2):  # the first one compiles
        done = subprocess.run(
            [sys.executable, "-c", HELPING], input=given, capture_output=True, text=True, env=compiled, timeout=120
        )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    return {words: Helped(float(line[0]), set(line[1:])) for words, line in zip(asked, lines, strict=True)}


def seconds(command, environ):
    """The processor's time that a command takes to its end.

    By the clock, a short one would seem even shorter: it is over before the tests beside it have their turn.
    """
    quietly = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    _, status, used = os.wait4(os.posix_spawn(command[0], command, environ, file_actions=quietly), 0)
    assert status == 0
    return used.ru_utime + used.ru_stime


def test_help_takes_at_most_three_bare_starts_of_python(helped, compiled):
    """The median is within three times that of an interpreter that does nothing, measured side by side.

    Of the overview, and of the commands and verbs whose help takes longest.
    """
    slowest = sorted(EVERY, key=lambda words: helped[words].seconds)[-SLOWEST:]
    slow = [words for words in ((), *slowest) if not is_quick(words, compiled)]
    assert slow == []


def is_quick(words, environ):
    """Whether it is within the limit in one of several tries, because other tests run beside it."""
    for _ in range(TRIES):
        pairs = [
            (seconds([sys.executable, "-c", ""], environ), seconds([*COMMAND, *words, "--help"], environ))
            for _ in range(5)
        ]
        bare, whole = map(statistics.median, zip(*pairs, strict=True))
        print(f"{' '.join(words)} --help: {whole / bare:.2f} bare starts ({whole * 1000:.0f} ms)")
        if whole <= TIMES * bare:
            return True
    return False


def test_help_of_commands_imports_no_more_than_argparse(helped):
    """Help imports no module of a command."""
    light = {f"democrai_sandbox{name}" for name in LIGHT} | helped[()].modules | {"__future__"}
    more = {
        words: {name for name in helped[words].modules - light if not name.startswith(ARGUMENTS)} for words in EVERY
    }
    assert {words: left for words, left in more.items() if left} == {}
    assert len(EVERY) > 2 * len(COMMANDS)


def test_help_imports_next_to_nothing():
    """Slow modules are not imported."""
    program = "import sys; from democrai_sandbox.cli.entry import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60)
    if done.returncode:  # without its site the interpreter may not find the package
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert not imported & {"argparse", "typing", "sqlalchemy", "json", "enum", "asyncio", "democrai_sandbox.errors"}


def test_the_overview():
    """The overview is the same in a terminal and in a pipe, without colors, within 120 columns."""
    done = within(("--help",))
    assert (done.status, done.err) == (0, "")
    golden("help", done.out)
    assert terminal(("--help",)).text == done.out
    assert max(map(len, done.out.splitlines())) <= 120


@rows(
    "words",
    [("requests", "list"), ("requests", "approve"), ("approvals", "revoke"), ("audit", "export"), ("status",)],
)
def test_help_of_a_command(words):
    """The help has the effect and one plain line per option."""
    golden(f"help-{'-'.join(words)}", terminal((*words, "--help")).text)


@rows("words", EVERY)
def test_every_command_and_verb_has_help(words):
    """Each command and verb has a help text."""
    done = within((*words, "--help"))
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"usage: democrai-sandbox {' '.join(words)} ")
