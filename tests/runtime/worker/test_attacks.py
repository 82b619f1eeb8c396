"""Attacks on the guard, played by a subject in a worker. `FRESH=1` plays all of them, not only the newest classes."""

from __future__ import annotations

import json
import os
import sys

from tests.guard.attacks.kit import Ground, Residual, Works, running_version
from tests.guard.attacks.test_attacks import ATTACKS, HERE, meets, unmet

sys.path.insert(0, os.path.dirname(__file__))
from attack_story import play_story

ALWAYS = ("class_34_", "class_35_", "class_36_", "class_37_", "class_38_", "class_39_")
DIFFERENT = {
    "class_01_forgotten_native:ssl_keylog_environment": "the interpreter of a worker ignores the environment",
    "class_04_traversal:resource_with_dots": "a worker has no such package",
    "class_04_traversal:loader_with_dots": "a worker has no such package",
    "class_27_ctypes:by_numpy": "a worker has no packages of the host",
    "class_30_debugging:breakpoint_hook": "the interpreter of a worker ignores the environment",
    "class_36_host_process:taken_screen": "curses ends a process without a terminal, here the worker",
    "class_36_host_process:unhandled_signal": "the process of a worker is the subject's, which may end it",
    "class_36_host_process:unhandled_timer": "the process of a worker is the subject's, which may end it",
}
"""Attacks that come to nothing in a worker without a denial, and why."""


def is_alone(entry):
    """Tell whether an attack needs nothing of its host but a folder."""
    host = (entry.early, entry.prepare, entry.after, entry.policy, entry.configure)
    return not any((*host, entry.network_only, entry.stage, entry.at_exit))


def attacks_by_file():
    """Return the attacks that a subject in a worker can play."""
    found = {}
    for entry in ATTACKS:
        fits = entry.since <= running_version() <= entry.until and not unmet(entry)
        if fits and is_alone(entry) and not isinstance(entry.expect, Residual | Works):
            found.setdefault(entry.file, {})[entry.name] = entry
    return found


PLAYED = attacks_by_file()


def came_to_nothing(entry, told):
    """Tell whether an attack in a worker came to its verdict, or to nothing where that is listed."""
    result = told if isinstance(told, dict) else {"verdict": "ended"}
    return result["verdict"] != "escaped" if entry.id in DIFFERENT else "code" in result and meets(entry.expect, result)


def pytest_generate_tests(metafunc):
    """Choose the files."""
    metafunc.parametrize("file", [file for file in PLAYED if file.startswith(ALWAYS) or metafunc.config.option.fresh])


def test_attacks_come_to_the_same_verdict_in_a_worker(case, file, monkeypatch):
    """The guard in a worker stops the same attacks as the guard in the process of the host."""
    monkeypatch.setenv("TMPDIR", str(case.base / "tmp"))
    grounds = {name: Ground(str(case.base / str(number))) for number, name in enumerate(PLAYED[file])}
    for ground in grounds.values():
        ground.build()
    before = {name: ground.snapshot() for name, ground in grounds.items()}
    told = case.run(play_story, file, {name: ground.base for name, ground in grounds.items()}, str(HERE))
    assert [name for name, ground in grounds.items() if ground.snapshot() != before[name]] == []
    wrong = {name: told[name] for name, entry in PLAYED[file].items() if not came_to_nothing(entry, told[name])}
    assert not wrong, json.dumps(wrong, indent=1)
