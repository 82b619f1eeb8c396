"""Rules in words: every form of target says how far it reaches."""

from __future__ import annotations

import pytest

from democrai_sandbox.host.wording import rule_words
from democrai_sandbox.policy import VALID_OPERATIONS, Operation, ResourceType, Subject

REPORTS = Subject.parse("module:reports")


@pytest.mark.parametrize(
    ("resource_type", "operation", "target", "words"),
    [
        ("network", "receive", "https://a.example/v1", "receive from https://a.example/v1 and everything below it"),
        ("network", "send", "https://a.example:8443", "send to everything at https://a.example:8443"),
        ("network", "connect", "a.example:5432", "connect to a.example on port 5432, with any protocol"),
        ("network", "connect", "a.example", "connect to a.example on any port, with any protocol"),
        ("network", "connect", "*.a.example", "connect to every host below a.example on any port, with any protocol"),
        ("network", "connect", "*.a.example:1", "connect to every host below a.example on port 1, with any protocol"),
        ("network", "send", "10.0.0.0/8", "send to every address in 10.0.0.0/8 on any port, with any protocol"),
        ("network", "connect", "unix:/run/db", "connect to the unix socket /run/db"),
        ("network", "receive", "not a target", "receive from not a target"),
        ("filesystem", "read", "/srv/a", "read /srv/a and everything below it"),
        ("filesystem", "create", "/srv/a", "create /srv/a and anything below it"),
        ("filesystem", "modify", "/srv/a", "change /srv/a and anything below it"),
        ("filesystem", "delete", "/srv/a", "delete /srv/a and anything below it"),
        ("filesystem", "execute", "/srv/a", "run /srv/a and anything below it"),
        ("system_dependency", "execute", "git", "run the program git"),
    ],
)
def test_what_a_rule_allows(resource_type, operation, target, words):
    """Each operation and each form of target has words of its own."""
    wording = rule_words(REPORTS, ResourceType(resource_type), Operation(operation), target)
    assert wording == f"module reports may {words}"


def test_a_denial_says_so():
    """The same sentence, with a not in it."""
    words = rule_words(REPORTS, ResourceType.FILESYSTEM, Operation.READ, "/srv/a", may=False)
    assert words == "module reports may not read /srv/a and everything below it"


def test_kinds_of_subjects_are_told():
    """As people call them."""
    found = [
        rule_words(Subject.parse(name), ResourceType.SYSTEM_DEPENDENCY, Operation.EXECUTE, "git").partition(" may")[0]
        for name in ("mcp:files", "tool:reports.get", "core:host")
    ]
    assert found == ["MCP server files", "tool reports.get", "host component host"]


def test_no_operation_is_without_words():
    """Whatever can be asked for can be said."""
    targets = {"network": "https://a.example/x", "filesystem": "/srv/a", "system_dependency": "git"}
    said = {
        rule_words(REPORTS, kind, operation, targets[kind])
        for kind, operations in VALID_OPERATIONS.items()
        for operation in operations
    }
    assert len(said) == sum(map(len, VALID_OPERATIONS.values()))
