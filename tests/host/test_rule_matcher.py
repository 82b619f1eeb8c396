"""Observed accesses, matched with declarations and decisions."""

from __future__ import annotations

from datetime import UTC, datetime

from democrai_sandbox.access.values import AccessTuple, Decision, DecisionEffect, DecisionScope
from democrai_sandbox.host.observations import ObservedAccess, RuleMatcher
from democrai_sandbox.policy import Operation, ResourceType, Subject, parse_access
from tests.services.rows import rows

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def rule(operation, target, kind="network"):
    entry = {"resource_type": kind, "operation": operation, "target": target}
    return parse_access([entry], base="/srv")[0]


def seen(operation, target, kind="network", result="denied", count=1):
    return ObservedAccess(operation, kind, target, result, count, NOW, NOW)


def decided(operation, target, effect=DecisionEffect.APPROVAL):
    access = AccessTuple(Subject.parse("module:x"), ResourceType.NETWORK, Operation(operation), target)
    return Decision("1", access, effect, DecisionScope.PERMANENT, "", NOW, "ada", "", "", 1)


@rows(
    ("declared", "observed", "fits"),
    [
        (rule("receive", "https://a.example/v1"), seen("receive", "https://a.example/v1/x"), True),
        (rule("receive", "https://a.example/v1"), seen("receive", "https://a.example/v2"), False),
        (rule("receive", "https://a.example/v1"), seen("send", "https://a.example/v1"), False),
        (rule("receive", "https://a.example"), seen("connect", "a.example:443", result="allowed"), True),
        (rule("receive", "https://a.example"), seen("connect", "a.example:8443", result="allowed"), False),
        (rule("receive", "https://a.example"), seen("connect", "a.example:443", result="denied"), False),
        (rule("receive", "a.example"), seen("connect", "a.example:8443", result="allowed"), True),
        (rule("read", "/srv/a", "filesystem"), seen("read", "/srv/a/b", "filesystem"), True),
        (rule("read", "/srv/a", "filesystem"), seen("read", "/srv/ab", "filesystem"), False),
        (rule("read", "/srv/a", "filesystem"), seen("delete", "/srv/a/b", "filesystem"), False),
        (rule("execute", "ffmpeg", "system_dependency"), seen("execute", "ffmpeg", "system_dependency"), True),
        (rule("receive", "https://a.example"), seen("read", "/srv/a", "filesystem"), False),
    ],
)
def test_a_rule_speaks_of_what_it_would_allow(declared, observed, fits):
    """The matching is that of a check; an allowed connection belongs to the HTTP request it was opened for."""
    assert bool(RuleMatcher([observed]).times(declared)) is fits


@rows("target", ["", "\x00", "not a url://", "socket:raw", "http://[", "relative/path", "\ud800"])
@rows("kind", ["network", "filesystem", "process", "nothing"])
def test_whatever_code_tried_is_only_compared(target, kind):
    """An invalid target matches no rule and raises no error."""
    matching = RuleMatcher([seen("use", target, kind), seen("receive", target, kind), seen("read", target, kind)])
    assert matching.times(rule("receive", "https://a.example")) == 0
    assert matching.times(rule("read", "/srv/a", "filesystem")) == 0


def test_everything_observed_comes_with_what_stands_behind_it():
    """The rule and the decision are named; without them, both are empty; accesses without possible rules are marked."""
    tried = [
        seen("receive", "https://a.example/x", count=3),
        seen("send", "https://a.example/x"),
        seen("send", "https://b.example"),
        seen("use", "ctypes", "import"),
    ]
    approval = decided("send", "https://a.example")
    declared = rule("receive", "https://a.example")
    first, second, third, fourth = RuleMatcher(tried).explained([declared], [approval])
    assert (first.declared, first.decided) == (declared, None)
    assert (second.declared, second.decided) == (None, approval)
    assert (third.declared, third.decided, third.is_ruled) == (None, None, True)
    assert not fourth.is_ruled
    assert RuleMatcher(tried).times(declared) == 3


def test_a_decision_whose_target_cannot_be_read_is_about_nothing():
    """A database can contain targets of an earlier version; the page of their subject must show the others."""
    unreadable = decided("receive", "https://hostile.example/\U000e0041")
    (found,) = RuleMatcher([seen("receive", "https://a.example/v1")]).explained(
        [], [unreadable, decided("receive", "https://a.example")]
    )
    assert found.decided.access.target == "https://a.example"
