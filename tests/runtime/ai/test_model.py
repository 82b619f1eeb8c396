"""Models by name: an agent uses the model that has the name at the time of the call."""

from __future__ import annotations

import asyncio

import pytest

from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.runtime.ai.model import KnownModels, NamedModel


class Says:
    """A model that always gives the same answer."""

    def __init__(self, text):
        self.text = text

    async def complete(self, messages, tools):
        return (self.text, messages, tools)


def ask(model):
    return asyncio.run(model.complete(("m",), ("t",)))


def test_a_name_stands_for_the_model_of_the_moment():
    """An added, changed or removed model takes effect at the next call."""
    known = KnownModels()
    named = NamedModel("default", known)
    for text in ("first", "second"):
        known.exchange({"default": Says(text)})
        assert ask(named) == (text, ("m",), ("t",))
    known.exchange({"defualt": Says("near")})
    with pytest.raises(ModelFailed) as caught:
        ask(named)
    assert all(part in str(caught.value) for part in ("'default'", "'defualt'", "extensions.models"))


def test_a_fixed_model_stays():
    """Another one with its name does not replace it."""
    known = KnownModels({"fixed": Says("fixed")})
    known.exchange({"fixed": Says("other"), "more": Says("more")})
    assert (ask(NamedModel("fixed", known))[0], sorted(known), len(known)) == ("fixed", ["fixed", "more"], 2)
    known.exchange({})
    assert list(known) == ["fixed"]
