"""Authorization of a URL for a subject: its own rules first, then decisions, as for every other check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from democrai_sandbox.errors import ExternalAccessCheckFailed, NetworkDenied
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.policy import (
    AccessDecision,
    DecisionCode,
    NetworkIndex,
    Operation,
    ResourceType,
    SandboxError,
)

from .values import rules_of

if TYPE_CHECKING:
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.runtime.shadows import Shadows

    from .flowlog import FlowLog
    from .hops import Hop
    from .values import Asker


class Question(NamedTuple):
    """Access question for the service, with the same fields as a question of the guard."""

    subject: str
    subject_kind: str
    subject_chain: tuple[str, ...]
    resource_type: str
    operation: str
    target: str
    register_request: bool
    user_id: Any
    organization_id: Any
    session_key: Any
    resume_action: str = ""
    resume_context: str | None = None


class Judge(Protocol):
    """The part of the access-policy service that is needed here."""

    def decide(self, question: Any, /) -> AccessDecision:
        """Return the decision about a question, and file a request if none exists."""
        ...


class Authority:
    """Authorizes each hop separately."""

    def __init__(self, judge: Judge, log: FlowLog, shadows: Shadows | None = None) -> None:
        """Ask this service about URLs that the rules of a subject do not cover.

        ``shadows`` records where the candidate of a subject would decide differently.
        """
        self._judge = judge
        self._shadows = shadows
        self._log = log

    def authorise(self, asker: Asker, hop: Hop) -> DecisionCode:
        """Return the reason that allows this URL, or raise the same denial as for a request of the subject itself."""
        if self._is_declared(asker, hop):
            code = DecisionCode.SANDBOX_ALLOWLIST
        else:
            decision = self._decide(asker, hop)
            if not decision.allowed:
                self._log("locked", subject=str(asker.subject), url=hop.url, code=str(decision.code))
                raise _denial(asker, hop, decision)
            code = decision.code
        self._log("allowed", subject=str(asker.subject), session=asker.session_key, url=hop.url, code=str(code))
        return code

    def _is_declared(self, asker: Asker, hop: Hop) -> bool:
        if self._shadows is None or asker.view is None:
            return NetworkIndex(asker.rules).allows(Operation.RECEIVE, hop.target)
        wish = (ResourceType.NETWORK.value, Operation.RECEIVE.value, hop.target.normalized)
        return self._shadows.compare(
            asker.view, wish, lambda view: NetworkIndex(rules_of(view)).allows(Operation.RECEIVE, hop.target)
        )

    def _decide(self, asker: Asker, hop: Hop) -> AccessDecision:
        question = Question(
            subject=asker.subject.name,
            subject_kind=asker.subject.kind.value,
            subject_chain=asker.chain,
            resource_type=ResourceType.NETWORK.value,
            operation=Operation.RECEIVE.value,
            # Ambiguous paths differ only in their spelling.
            target=hop.url if hop.target.ambiguous else hop.target.normalized,
            register_request=True,
            user_id=asker.user_id,
            organization_id=asker.organization_id,
            session_key=asker.session_key,
        )
        try:
            return self._judge.decide(question)
        except SandboxError:
            raise
        except Exception as error:
            # As in the guard: an error in a check is a failure, not a denial, and allows nothing.
            raise ExternalAccessCheckFailed(str(error)) from error


def scoped_guard(asker: Asker, hop: Hop) -> Guard:
    """Return the guard for one hop: this subject and this URL, without other network access."""
    rule = {"resource_type": "network", "operation": "receive", "target": hop.scope}
    return make_guard(
        subject=asker.subject.name,
        subject_kind=asker.subject.kind.value,
        access=[rule],
        user_id=asker.user_id,
        organization_id=asker.organization_id,
        session_key=asker.session_key,
        network_only=True,
    )


def _denial(asker: Asker, hop: Hop, decision: AccessDecision) -> NetworkDenied:
    denial = NetworkDenied(
        hop.target.normalized,
        subject=asker.subject.name,
        subject_kind=asker.subject.kind.value,
        chain=asker.chain,
        operations=(Operation.RECEIVE.value,),
    )
    denial.decision = decision
    return denial
