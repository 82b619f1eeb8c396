"""Compiled policies."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from democrai_sandbox.policy import (
    AccessRule,
    FileAccess,
    InvalidInputError,
    Operation,
    ResourceType,
    Subject,
    compile_policy,
    parse_access,
    parse_request_url,
    parse_socket,
    rules_for_paths,
    rules_for_targets,
)
from tests.services.rows import rows

SUBJECT = Subject("module", "reports")


def test_no_rules_allow_nothing():
    """The empty policy denies files, network, imports and processes."""
    policy = compile_policy(subject=SUBJECT, rules=())
    assert policy.file_entries == ()
    assert policy.paths.mask("/") == 0
    assert policy.paths.mask("/srv/x") == 0
    for operation in Operation:
        assert not policy.network.allows(operation, parse_request_url("https://example.com"))
        assert not policy.network.allows(operation, parse_socket("127.0.0.1", 80))
    assert policy.allowed_imports == frozenset()
    assert policy.allow_subprocess is False


def test_rules_become_indexes():
    """Filesystem rules of one path are combined into one mask; network rules answer requests."""
    rules = (
        *parse_access(
            [
                {"resource_type": "filesystem", "operation": ["read", "execute"], "target": "/srv/b"},
                {"resource_type": "system_dependency", "operation": "execute", "target": "/srv/c"},
            ],
            base=None,
        ),
        *rules_for_paths(["/srv/a"]),
        *rules_for_targets(["https://example.com/v1"]),
    )
    policy = compile_policy(subject=SUBJECT, rules=rules, allowed_imports=["ctypes"], allow_subprocess=True)
    assert policy.file_entries == (("/srv/a", 15), ("/srv/b", 17))
    assert all(type(mask) is int for _, mask in policy.file_entries)
    assert policy.paths.mask("/srv/a/x") == FileAccess(15)
    assert policy.paths.mask("/srv/c") == 0
    assert policy.network.allows(Operation.SEND, parse_request_url("https://example.com/v1/x"))
    assert policy.allowed_imports == {"ctypes"}
    assert policy.allow_subprocess is True


def test_equal_declarations_make_equal_policies():
    """Policies are values, usable as keys."""
    first, second = (compile_policy(subject=SUBJECT, rules=rules_for_paths(["/srv/a"])) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != compile_policy(subject=SUBJECT, rules=())


def test_policies_do_not_change():
    """A policy cannot be widened after it was created."""
    policy = compile_policy(subject=SUBJECT, rules=())
    with pytest.raises(FrozenInstanceError):
        policy.allow_subprocess = True


@rows("name", ["", "a b", "1a", "a-b", "ctypes.util", ".ctypes", "ctypes.", "class", "*", None, 3, b"ctypes", "a\0"])
def test_odd_import_roots_are_refused(name):
    """Only the root of an import is accepted, as an identifier."""
    with pytest.raises(InvalidInputError) as caught:
        compile_policy(subject=SUBJECT, rules=(), allowed_imports=["cffi", name])
    assert [problem.pointer for problem in caught.value.problems] == ["/allowed_imports/1"]


def test_a_dotted_import_is_told_its_root():
    """The suggestion can be pasted."""
    with pytest.raises(InvalidInputError) as caught:
        compile_policy(subject=SUBJECT, rules=(), allowed_imports=["ctypes.util"])
    assert caught.value.problems[0].suggestion == "ctypes"


@rows("imports", ["ctypes", None, 3, {"ctypes": 1}, b"ctypes"])
def test_imports_are_a_list(imports):
    """A single name is not read as a list of letters."""
    with pytest.raises(InvalidInputError):
        compile_policy(subject=SUBJECT, rules=(), allowed_imports=imports)


@rows("flag", ["false", "no", 0, 1, None, [], object()])
def test_the_subprocess_flag_is_a_bool(flag):
    """A text such as "false" must not count as true, nor None as false."""
    with pytest.raises(InvalidInputError) as caught:
        compile_policy(subject=SUBJECT, rules=(), allow_subprocess=flag)
    assert caught.value.problems[0].pointer == "/allow_subprocess"


def test_all_problems_are_told_at_once():
    """An invalid subject does not hide invalid rules, imports and flags."""
    with pytest.raises(InvalidInputError) as caught:
        compile_policy(subject="module:a", rules=[{}], allowed_imports=[""], allow_subprocess=1)
    pointers = [problem.pointer for problem in caught.value.problems]
    assert pointers == ["/subject", "/rules/0", "/allow_subprocess", "/allowed_imports/0"]


@rows(
    "rule",
    [
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "x", "x"),
        AccessRule(ResourceType.FILESYSTEM, Operation.CONNECT, "/x", "/x"),
        AccessRule(ResourceType.NETWORK, Operation.CONNECT, "*.com", "*.com"),
    ],
)
def test_unsound_rules_do_not_compile(rule):
    """A rule that bypassed parsing is rejected here."""
    with pytest.raises(ValueError):
        compile_policy(subject=SUBJECT, rules=[rule])
