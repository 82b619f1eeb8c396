"""Attacks on the guard, run by a subject in a worker. `FRESH=1` runs all of them, not only the families of `ALWAYS`."""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path

from tests.guard.attacks.kit import Ground, Residual, Works, running_version
from tests.guard.attacks.test_attacks import ATTACKS, HERE, meets, unmet

sys.path.insert(0, os.path.dirname(__file__))
from attack_story import play_story

ALWAYS = (
    *("reloaded_modules", "native_modules", "descriptor_requests", "host_process", "library_files", "failing_checks"),
    "application_folders",
)
"""The newest families, which run each time."""
DIFFERENT = {
    "native_openings:ssl_keylog_environment": "the interpreter of a worker ignores the environment",
    "next_guard:next_guard_": "a worker has one subject, and its host ends it at a question of another",
    "environment:new_name": "a worker has that variable already",
    "own_configuration:paths_for_the_next_guard": "as for next_guard",
    "deferred_calls:signal_handler": "the main thread of a worker handles a signal at the next call",
    "deferred_calls:c_signal_handler": "likewise",
    "debugging:breakpoint_hook": "the interpreter of a worker ignores the environment",
    "host_process:taken_screen": "curses ends a process without a terminal, here the worker",
    "host_process:unhandled_signal": "the process of a worker is the subject's, which may end it",
    "host_process:unhandled_timer": "the process of a worker is the subject's, which may end it",
}
"""Attacks, or prefixes of their names, that fail in a worker without a denial, with the reason."""
HARMLESS = {
    "host_descriptors:stream_": "the standard streams of a worker are the subject's",
    "object_graph:function_code": "the function is the subject's own",
}
"""Attacks, or prefixes of their names, that do no harm in a worker, with the reason."""


def fits_a_worker(entry):
    """Return whether a worker can run an attack, with the host's part outside the guard."""
    other_host = (entry.early, entry.policy, entry.configure, entry.network_only, entry.stage, entry.at_exit)
    if any(other_host) or entry.id.startswith(tuple(HARMLESS)):
        return False
    if entry.file == "host_process" and (entry.prepare or entry.after):
        return False  # it changes settings of a process that others use too
    return {"cffi", "numpy"}.isdisjoint(entry.needs)  # a worker does not have the host's packages


def attacks_by_file():
    """Return the attacks that a subject in a worker can run."""
    found = {}
    for entry in ATTACKS:
        fits = entry.since <= running_version() <= entry.until and not unmet(entry)
        if fits and fits_a_worker(entry) and not isinstance(entry.expect, Residual | Works):
            found.setdefault(entry.file, {})[entry.name] = entry
    return found


PLAYED = attacks_by_file()


def came_to_nothing(entry, told):
    """Return whether an attack in a worker has its verdict, or fails as listed."""
    result = told if isinstance(told, dict) else {"verdict": "ended"}
    if entry.id.startswith(tuple(DIFFERENT)):
        return result["verdict"] != "escaped"
    return "code" in result and meets(entry.expect, result)


def pytest_generate_tests(metafunc):
    """Choose the files."""
    metafunc.parametrize("file", [file for file in PLAYED if file in ALWAYS or metafunc.config.option.fresh])


def test_attacks_come_to_the_same_verdict_in_a_worker(case, file, monkeypatch):
    """The guard in a worker stops the same attacks as the guard in the process of the host."""
    monkeypatch.setenv("TMPDIR", str(case.base / "tmp"))
    grounds = {name: Ground(str(case.base / str(number))) for number, name in enumerate(PLAYED[file])}
    for ground in grounds.values():
        ground.build()
    awaiting = [name for name, entry in PLAYED[file].items() if inspect.iscoroutinefunction(entry.act)]
    told = case.run(play_story, file, {name: ground.base for name, ground in grounds.items()}, awaiting, str(HERE))
    notes = {name: Path(f"{ground.base}.host/before") for name, ground in grounds.items()}
    kept = {name: note.read_text() for name, note in notes.items() if note.exists()}
    assert [name for name, before in kept.items() if repr(grounds[name].snapshot()) != before] == []
    wrong = {name: told[name] for name, entry in PLAYED[file].items() if not came_to_nothing(entry, told[name])}
    assert not wrong, json.dumps(wrong, indent=1)
