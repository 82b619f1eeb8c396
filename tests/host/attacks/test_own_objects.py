"""A module that obtains the application's sandbox: a global, or an argument."""

from __future__ import annotations

import os

import pytest

from tests.services.forks import HostCase as Case

EMBEDDED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "embedded.py")
GREEDY = """
import sys

PARTS = ("settings", "access", "runtime", "kernel", "accounts", "authenticator", "roles", "observations", "closing")

def outcome(act, *args):
    try:
        return repr(act(*args))
    except Exception as error:
        return type(error).__name__

@sdk.action("grab")
def grab():
    sandbox = sys.modules["__main__"].sandbox
    told = {name: outcome(getattr, sandbox, name) for name in PARTS}
    told["caller"] = outcome(sandbox.caller, None)
    told["close"] = outcome(sandbox.close)
    told["setattr"] = outcome(setattr, sandbox, "roles", None)
    told["kept in it"] = [name for name in vars(sandbox) if name != "is_started"]
    return told
"""


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def in_reach(world):
    import sys

    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("greedy", GREEDY)
    sys.modules["__main__"].sandbox = app.make(sandbox={"isolation": {"default": "in_process"}})

    async def story(app):
        return {"told": await app.action("greedy", "grab", user="ada"), "goes on": app.caller("ada").may_decide}

    return app.play(story)


def test_a_sandbox_in_the_hands_of_a_module_gives_away_nothing(case):
    """Guarded code can neither read nor replace its parts, nor stop anything through it."""
    told = case.run(in_reach)
    assert told["goes on"] is True
    assert told["told"].pop("kept in it") == []
    assert set(told["told"].values()) == {"TamperDenied"}
