"""What a refusal of a node says."""

from __future__ import annotations

from democrai_sandbox.errors import NodeRefused


def test_one_problem_is_told_once():
    """The node names a problem in its detail too, and an empty suggestion, which is none."""
    problem = {"pointer": "/subject", "message": "expected a subject", "suggestion": ""}
    detail = f"{problem['pointer']}: {problem['message']}"
    answer = {"code": "invalid_input", "detail": detail, "problems": [problem]}
    assert NodeRefused(422, answer).diagnostics() == f"invalid_input: {detail}"
    other = {**problem, "suggestion": "module:x"}
    _, first, second = NodeRefused(422, {**answer, "problems": [problem, other]}).diagnostics().splitlines()
    assert first == f"  - {detail}"
    assert second.startswith(f"  - {detail} ") and "'module:x'" in second
