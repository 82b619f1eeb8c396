"""The inputs that fuzzing has found worth keeping, read again by every parser in C, under sanitizers."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.fuzz import building

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def programs():
    """The fuzzers, without an engine."""
    if why := building.unavailable("gcc"):
        pytest.skip(why)
    return building.build("gcc")


def test_no_kept_input_breaks_a_parser(programs):
    """Every input of the corpus is read to its end: no property fails, no sanitizer reports anything."""
    running = {}
    for name, program in programs.items():
        inputs = sorted((building.HERE / "corpus" / name).iterdir())
        assert inputs, f"the fuzzer {name} has no corpus"
        running[name] = subprocess.Popen(
            [program, *inputs], stderr=subprocess.PIPE, text=True, env=os.environ | building.OPTIONS
        )
    told = {name: process.communicate()[1] for name, process in running.items()}
    assert {name: told[name][-3000:] for name, process in running.items() if process.returncode} == {}
