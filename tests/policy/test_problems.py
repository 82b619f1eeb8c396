"""Problems, the root error and the input errors."""

from __future__ import annotations

import pickle

import pytest

from democrai_sandbox.policy import (
    InvalidInputError,
    NetworkTargetMissingError,
    Problem,
    SandboxError,
    nearest,
    parse_declaration,
    pointer_to,
)
from tests.services.golden import sentence
from tests.services.rows import rows


def test_input_errors_are_value_errors_of_our_tree():
    """Code that expects a ValueError works, and so does code that catches all our errors."""
    error = InvalidInputError.of("odd")
    assert isinstance(error, ValueError)
    assert isinstance(error, SandboxError)
    assert not isinstance(error, PermissionError)
    assert error.code == "invalid_input"


def test_text_lists_every_problem():
    """The text contains the place, the problem and the suggestion of each problem."""
    error = InvalidInputError([Problem("/a/0", "odd key 'opration'", "operation"), Problem("", "too long")])
    first, second = str(error).split("; ")
    assert first.startswith("/a/0: odd key 'opration'")
    assert "'operation'" in first
    assert second == "too long"
    assert error.diagnostics().splitlines()[1:] == [f"  - {first}", f"  - {second}"]
    assert error.diagnostics().startswith("invalid_input: 2 ")
    sentence("two problems", error.diagnostics())


def test_an_error_without_problems_cannot_be_made():
    """An error without problems is a mistake in our code."""
    with pytest.raises(TypeError):
        InvalidInputError(())


@rows("error", [InvalidInputError.of("odd", pointer="/x"), NetworkTargetMissingError()])
def test_errors_survive_pickling(error):
    """An error survives pickling with its problems."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.problems == error.problems
    assert str(copy) == str(error)


def test_empty_network_target_has_the_documented_shape():
    """The text of the error for an empty target is only the code."""
    with pytest.raises(NetworkTargetMissingError) as caught:
        parse_declaration("")
    assert caught.value.code == "network_target_missing"
    assert str(caught.value) == "network_target_missing"
    assert isinstance(caught.value, InvalidInputError)
    assert caught.value.diagnostics().startswith("network_target_missing: ")
    sentence("empty target", caught.value.diagnostics())
    assert NetworkTargetMissingError([Problem("/url", "no host")]).diagnostics().endswith("\n  - /url: no host")


def test_diagnostics_of_the_root_do_not_repeat_the_code():
    """A text that equals the code is shown once."""
    assert SandboxError("sandbox_error").diagnostics() == "sandbox_error"
    assert SandboxError("odd").diagnostics() == "sandbox_error: odd"


@rows(
    ("name", "expected"), [("raed", "read"), ("Read", "read"), ("delte", "delete"), ("zzz", None), ("r" * 10_000, None)]
)
def test_nearest_name(name, expected):
    """A misspelled name finds its right spelling, a foreign one finds nothing."""
    assert nearest(name, ["read", "create", "delete"]) == expected


def test_pointer_tokens_are_escaped():
    """Slashes and tildes in keys do not add levels to a JSON pointer."""
    assert pointer_to("/access", 3, "a/b~c") == "/access/3/a~1b~0c"
    assert pointer_to("", "x") == "/x"
