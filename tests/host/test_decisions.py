"""Effect of a decision in one sentence."""

from __future__ import annotations

from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionReach, DecisionScope
from democrai_sandbox.host.decisions import answered_words, answers_words, effect_words
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.services.golden import sentence

ACCESS = AccessTuple(Subject.parse("module:weather"), ResourceType.NETWORK, Operation.SEND, "https://a.example/v1")


def test_whom_it_covers_and_for_how_long():
    """Every user and session, or one; until it is revoked, for a time, or until the session ends."""
    told = (
        effect_words(ACCESS, DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        effect_words(ACCESS, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, until="for 7 days"),
        effect_words(ACCESS, DecisionEffect.APPROVAL, DecisionScope.SESSION, user="uma", session="s1"),
        effect_words(ACCESS, DecisionEffect.APPROVAL, DecisionScope.SESSION, session="s1"),
        effect_words(ACCESS, DecisionEffect.DENIAL, DecisionScope.PERMANENT),
    )
    sentence("effects", "\n".join(told))


def test_what_else_it_answers():
    """Requests of other users count for permanent decisions, those of the same session for session approvals."""
    reach = DecisionReach(requests=1200, users=2, in_session=1, more=True)
    told = (
        answers_words(DecisionReach(0, 0, 0), DecisionScope.PERMANENT),
        answers_words(DecisionReach(1, 1, 0), DecisionScope.PERMANENT),
        answers_words(DecisionReach(1, 1, 0), DecisionScope.SESSION),
        answers_words(reach, DecisionScope.PERMANENT),
        answers_words(reach, DecisionScope.SESSION),
        *map(answered_words, (0, 1, 2)),
    )
    sentence("answers", "\n".join(told))
