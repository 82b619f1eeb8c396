"""What a refusal of a node says."""

from __future__ import annotations

from democrai_sandbox.errors import NodeRefused


def test_one_problem_is_told_once():
    """The node names a problem in its detail too, and an empty suggestion, which is none."""
    problem = {"pointer": "/subject", "message": "expected a subject", "suggestion": ""}
    answer = {"code": "invalid_input", "detail": "/subject: expected a subject", "problems": [problem]}
    assert NodeRefused(422, answer).diagnostics() == "invalid_input: /subject: expected a subject"
    other = {**problem, "suggestion": "module:x"}
    told = NodeRefused(422, {**answer, "problems": [problem, other]}).diagnostics().splitlines()
    assert told[1:] == [
        "  - /subject: expected a subject",
        "  - /subject: expected a subject (did you mean 'module:x'?)",
    ]
