"""Rules as sentences: every form of target shows its coverage."""

from __future__ import annotations

import re

from democrai_sandbox.host.decisions import rule_words
from democrai_sandbox.policy import VALID_OPERATIONS, Operation, ResourceType, Subject
from tests.services.golden import sentence

REPORTS = Subject.parse("module:reports")


RULES = [
    ("network", "receive", "https://a.example/v1"),
    ("network", "send", "https://a.example:8443"),
    ("network", "connect", "a.example:5432"),
    ("network", "connect", "a.example"),
    ("network", "connect", "*.a.example"),
    ("network", "connect", "*.a.example:1"),
    ("network", "send", "10.0.0.0/8"),
    ("network", "connect", "unix:/run/db"),
    ("network", "receive", "not a target"),
    ("filesystem", "read", "/srv/a"),
    ("filesystem", "create", "/srv/a"),
    ("filesystem", "modify", "/srv/a"),
    ("filesystem", "delete", "/srv/a"),
    ("filesystem", "execute", "/srv/a"),
    ("system_dependency", "execute", "git"),
]
"""Each operation and each form of target."""


def words(resource_type, operation, target, **how):
    return rule_words(REPORTS, ResourceType(resource_type), Operation(operation), target, **how)


def test_what_a_rule_allows():
    """Each operation and each form of target has a distinct sentence, which contains the target."""
    said = [words(*rule) for rule in RULES]
    assert len(set(said)) == len(RULES)
    assert all("reports" in text for text in said)
    for (_, _, target), text in zip(RULES, said):
        assert all(part in text for part in re.findall(r"[\w./]{4,}", target.removeprefix("*.").removeprefix("unix:")))
    sentence("rules", "\n".join(said))


def test_a_denial_says_so():
    """A denial differs from a rule about the same access."""
    said = words("filesystem", "read", "/srv/a", may=False)
    assert said != words("filesystem", "read", "/srv/a")
    sentence("denial", said)


def test_kinds_of_subjects_are_told():
    """A subject has a readable name."""
    names = ("mcp:files", "tool:reports.get", "core:host")
    said = [rule_words(Subject.parse(name), ResourceType.SYSTEM_DEPENDENCY, Operation.EXECUTE, "git") for name in names]
    assert all(f" {name.partition(':')[2]} " in text for name, text in zip(names, said))
    sentence("kinds of subjects", "\n".join(said))


def test_no_operation_is_without_words():
    """Every valid access has a sentence."""
    targets = {"network": "https://a.example/x", "filesystem": "/srv/a", "system_dependency": "git"}
    said = {
        rule_words(REPORTS, kind, operation, targets[kind])
        for kind, operations in VALID_OPERATIONS.items()
        for operation in operations
    }
    assert len(said) == sum(map(len, VALID_OPERATIONS.values()))
