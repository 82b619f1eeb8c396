"""Texts of refusals by a node."""

from __future__ import annotations

from democrai_sandbox.errors import NodeRefused


def test_one_problem_is_told_once():
    """The node repeats the problem in its detail, with an empty suggestion; the text has it once."""
    problem = {"pointer": "/subject", "message": "expected a subject", "suggestion": ""}
    detail = f"{problem['pointer']}: {problem['message']}"
    answer = {"code": "invalid_input", "detail": detail, "problems": [problem]}
    assert NodeRefused(422, answer).diagnostics() == f"invalid_input: {detail}"
    other = {**problem, "suggestion": "module:x"}
    _, first, second = NodeRefused(422, {**answer, "problems": [problem, other]}).diagnostics().splitlines()
    assert first == f"  - {detail}"
    assert second.startswith(f"  - {detail} ") and "'module:x'" in second
