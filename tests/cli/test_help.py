"""``--help``: quick, and says what each command takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

from democrai_sandbox.cli.commands import COMMANDS
from tests.cli.goldens import COMMAND, environment, golden, terminal, within

TIMES = 3
TRIES = 3


def seconds(command):
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(), timeout=60)
    return time.perf_counter() - begun


def test_help_takes_at_most_three_bare_starts_of_python():
    """The median of --help is within three times that of an interpreter that does nothing, measured side by side."""
    for left in reversed(range(TRIES)):
        pairs = [(seconds([sys.executable, "-c", ""]), seconds([*COMMAND, "--help"])) for _ in range(9)]
        bare, helped = map(statistics.median, zip(*pairs, strict=True))
        if helped <= TIMES * bare:
            return
    assert left, f"--help takes {helped / bare:.1f} bare starts ({helped * 1000:.0f} ms)"


def test_help_imports_next_to_nothing():
    """What would make it slow is not imported for it."""
    program = "import sys; from democrai_sandbox.cli.entry import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60)
    if done.returncode:  # without its site the interpreter may not find the package
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert not imported & {"argparse", "typing", "sqlalchemy", "json", "enum", "asyncio", "democrai_sandbox.errors"}


def test_the_overview():
    """The same in a terminal and in a pipe, without colours, and within 120 columns."""
    done = within(("--help",))
    assert (done.status, done.err) == (0, "")
    golden("help", done.out)
    assert terminal(("--help",)).text == done.out
    assert max(map(len, done.out.splitlines())) <= 120


@pytest.mark.parametrize(
    "words",
    [("requests", "list"), ("requests", "approve"), ("approvals", "revoke"), ("audit", "export"), ("status",)],
    ids="-".join,
)
def test_help_of_a_command(words):
    """What it changes, what it takes, one plain line per option."""
    golden(f"help-{'-'.join(words)}", terminal((*words, "--help")).text)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help(command):
    """Each command of the overview can say what it takes."""
    done = within((command, "--help"))
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"usage: democrai-sandbox {command}")
