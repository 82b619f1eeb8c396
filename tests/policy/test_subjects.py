"""Subjects and call chains."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    InvalidInputError,
    Subject,
    SubjectKind,
    append_subject,
    chain_from_list,
    chain_to_list,
)
from tests.services.rows import rows

KINDS = ["module", "task", "engine", "extractor", "mcp", "tool", "agent", "pipeline", "skill", "core"]


def test_kinds_are_those_of_the_contract():
    """Exactly the subject kinds of the contract exist."""
    assert [kind.value for kind in SubjectKind] == KINDS


@rows("text", ["module:reports", "tool:demo.read_file", "mcp:https://host:1/x", "agent:für alle"])
def test_text_form_is_read_back(text):
    """The text form parses to the same subject, also with colons in the name."""
    subject = Subject.parse(text)
    assert str(subject) == text
    assert Subject.parse(str(subject)) == subject


def test_kind_may_be_given_as_text():
    """The constructor accepts a kind as text."""
    subject = Subject("engine", "whisper")
    assert subject.kind is SubjectKind.ENGINE
    assert hash(subject) == hash(Subject(SubjectKind.ENGINE, "whisper"))


def test_subjects_do_not_change():
    """Fields cannot be assigned and attributes cannot be added."""
    subject = Subject("module", "a")
    with pytest.raises(FrozenInstanceError):
        subject.name = "b"
    with pytest.raises((AttributeError, TypeError)):
        subject.other = 1


@rows("name", ["", "a\nb", "a\0", "\u202eb", "a\u200bb", " a", "a ", "x" * 256, "a\udc80", None, 3, b"a", ["a"]])
def test_odd_names_are_refused(name):
    """Empty, overlong, invisible and non-text names are rejected with a pointer."""
    with pytest.raises(InvalidInputError) as caught:
        Subject("module", name)
    assert caught.value.problems[0].pointer == "/name"


def test_the_longest_name_is_accepted():
    """A name of exactly the maximum length is accepted."""
    assert Subject("module", "x" * 255).name == "x" * 255


@rows("kind", ["", "Module", "modul", "module ", None, 1, b"module"])
def test_unknown_kinds_are_refused(kind):
    """A kind is matched exactly; a misspelled one gets a suggestion."""
    with pytest.raises(InvalidInputError) as caught:
        Subject(kind, "a")
    assert caught.value.problems[0].pointer == "/kind"
    if isinstance(kind, str):
        assert all(known in caught.value.problems[0].message for known in SubjectKind)
    if kind == "modul":
        assert caught.value.problems[0].suggestion == "module"


def test_all_problems_of_a_subject_are_told_at_once():
    """An invalid kind does not hide an invalid name."""
    with pytest.raises(InvalidInputError) as caught:
        Subject("modul", "")
    assert [problem.pointer for problem in caught.value.problems] == ["/kind", "/name"]


@rows("text", ["", "module", "reports", ":x", "module:", None, b"module:x"])
def test_text_that_is_no_subject_is_refused(text):
    """Kind and name are both required."""
    with pytest.raises(InvalidInputError):
        Subject.parse(text)


def test_name_of_a_text_subclass_is_copied():
    """A subject stores exact text only."""

    class Name(str):
        __slots__ = ()

        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    subject = Subject("module", Name("a"))
    assert type(subject.name) is str
    assert subject != Subject("module", "b")


def test_a_chain_grows_by_other_subjects_only():
    """Entering the same subject again is not a new link; returning to it later is."""
    module, tool = Subject("module", "a"), Subject("tool", "a")
    chain = append_subject((), module)
    assert append_subject(chain, module) == (module,)
    assert append_subject(append_subject(chain, tool), module) == (module, tool, module)


@given(st.lists(st.builds(Subject, st.sampled_from(SubjectKind), st.from_regex(r"[a-z:.]{1,9}", fullmatch=True))))
def test_a_chain_survives_json(subjects):
    """A chain written for a child process parses to the same chain."""
    chain = tuple(subjects)
    assert chain_from_list(json.loads(json.dumps(chain_to_list(chain)))) == chain


@rows("value", [None, "module:a", {"module": "a"}, 3])
def test_a_chain_is_a_list(value):
    """Anything except a list is rejected, never read as an empty chain."""
    with pytest.raises(InvalidInputError) as caught:
        chain_from_list(value)
    assert caught.value.problems[0].pointer == "/subject_chain"


def test_every_odd_link_of_a_chain_is_named():
    """Problems contain the index in the list."""
    with pytest.raises(InvalidInputError) as caught:
        chain_from_list(["module:a", "x:b", 3])
    assert [problem.pointer for problem in caught.value.problems] == ["/subject_chain/1", "/subject_chain/2"]
