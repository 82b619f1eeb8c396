"""Check of an endpoint before it is contacted, and the guard for the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import NetworkDenied
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.policy import DecisionCode, Operation, ResourceType, Subject, SubjectKind

from .interface import EndpointQuestion

if TYPE_CHECKING:
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.policy import AccessDecision

    from .interface import EndpointDecider

_USED = (Operation.SEND, Operation.RECEIVE)
"""Operations of both transports: they post messages and receive answers. They need no other sockets."""


def check_endpoint(
    decider: EndpointDecider, server: McpServer, caller: Caller, chain: tuple[str, ...], *, required: bool
) -> None:
    """Ask about the endpoint before anything is sent; raise the guard's own ``NetworkDenied``.

    The guard will allow the registry entry. A denial of the endpoint for this server is the later and narrower
    decision, and wins; so the question bypasses the allowlist, which would otherwise answer it. If approval is
    ``required`` and missing, a request is filed.
    """
    questions = [_question(server, operation, caller, chain, register=required) for operation in _USED]
    # Ask all questions before refusing one, so that the administrator sees all necessary approvals together.
    answers = [(question, decider.decide(question)) for question in questions]
    for question, answer in answers:
        if not _passes(answer, required=required):
            raise _denial(question, answer)


def guard_of(server: McpServer, caller: Caller, chain: tuple[str, ...]) -> Guard:
    """Return the guard of one conversation: only the endpoint, without paths, imports, children or inherited rights."""
    return make_guard(
        subject=server.name,
        subject_kind=SubjectKind.MCP.value,
        access=tuple(rule for rule in server.access if rule.operation in _USED),
        include_runtime_paths=False,
        ancestors=tuple(map(Subject.parse, chain)),
        exact=True,
        user_id=caller.user_id or None,
        organization_id=caller.organization_id or None,
        session_key=caller.session_key or None,
    )


def _question(
    server: McpServer, operation: Operation, caller: Caller, chain: tuple[str, ...], *, register: bool
) -> EndpointQuestion:
    subject = Subject(SubjectKind.MCP, server.name)
    return EndpointQuestion(
        subject=subject.name,
        subject_kind=subject.kind.value,
        subject_chain=(*chain, str(subject)),
        resource_type=ResourceType.NETWORK.value,
        operation=operation.value,
        target=server.target,
        register_request=register,
        user_id=caller.user_id or None,
        organization_id=caller.organization_id or None,
        session_key=caller.session_key or None,
    )


def _passes(answer: AccessDecision, *, required: bool) -> bool:
    """Return whether the server may be contacted."""
    return answer.allowed is True if required else answer.code != DecisionCode.DENIED


def _denial(question: EndpointQuestion, answer: AccessDecision) -> NetworkDenied:
    denial = NetworkDenied(
        question.target,
        subject=question.subject,
        subject_kind=question.subject_kind,
        chain=question.subject_chain,
        operations=(question.operation,),
    )
    denial.decision = answer
    return denial
