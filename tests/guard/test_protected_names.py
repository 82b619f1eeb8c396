"""Names of the sandbox's modules, which guarded code cannot replace."""

from __future__ import annotations

import pytest

from tests.services.environments import Environment

LIBRARY = """
import sys, time

def replace(module, name, value):
    setattr(module, name, value)

def freeze(instead):
    clocks = (time.time, time.monotonic)
    for module in list(sys.modules.values()):
        for name in dir(module) if module not in (None, time) else ():
            if any(getattr(module, name, None) is clock for clock in clocks):
                setattr(module, name, instead)
"""

PROGRAM = """
import json, sys, time
import freezer
from democrai_sandbox import configure_guard, process_guard_context

class Never:
    def decide(self, question):
        return False

configure_guard(decider=Never())
from democrai_sandbox.guard import callback_log, contexts
callback_log.borrowed = time.monotonic

def told(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return type(error).__name__
    return "done"

def own(module, name, value):
    setattr(module, name, value)

def attempts():
    return {
        "freeze": told(freezer.freeze, lambda: 4711),
        "own code": told(own, callback_log, "borrowed", None),
        "function of ours": told(freezer.replace, contexts, "make_guard", None),
        "removal": told(lambda: delattr(callback_log, "borrowed")),
        "new name": told(freezer.replace, callback_log, "new", time.monotonic),
    }

found = process_guard_context(subject="demo", access=[]).run(attempts)
found["kept"] = callback_log.borrowed is time.monotonic and callable(contexts.make_guard)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("names") / "env")
    made.package("freezer", LIBRARY)
    return made.answers(PROGRAM)


def test_a_library_that_replaces_the_clock_everywhere_works(found):
    """Libraries such as freezegun; modules of the sandbox keep their clock."""
    assert found["freeze"] == "done"
    assert found["kept"]


@pytest.mark.parametrize("act", ["own code", "function of ours", "removal", "new name"])
def test_all_other_changes_are_refused(found, act):
    """The host uses these names next."""
    assert found[act] == "TamperDenied"
