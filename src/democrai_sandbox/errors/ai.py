"""Errors of tools, agents and pipelines."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance


class AssetUnknown(SandboxError, LookupError):
    """No tool, agent or pipeline of this name is visible to the caller.

    Nothing ran. The text suggests the nearest name.
    """

    code = "asset_unknown"
    guidance = Guidance(
        cause="The name is misspelled, or the asset belongs to another module that does not share it.",
        fix="Correct the name, or declare the asset with `shared=True` in the other module.",
        example="""\
await sdk.ai.run_tool("fetch_repotr", {"id": 7})
-> AssetUnknown: ... 'fetch_repotr'; did you mean 'fetch_report'?""",
        see=("ai.md",),
    )


class NestingTooDeep(SandboxError, RecursionError):
    """Tools, agents and pipelines call each other too deeply.

    The innermost call was refused; the text shows the end of the call chain.
    """

    code = "nesting_too_deep"
    guidance = Guidance(
        cause="An asset calls itself through other assets.",
        fix="Break the cycle that the text shows.",
        example="""\
Agent planner calls tool search, and tool search calls agent planner:
-> NestingTooDeep: ... agent:demo.planner -> tool:demo.search -> agent:demo.planner is nested more than 24 deep""",
        see=("ai.md",),
    )


class RunStopped(SandboxError, RuntimeError):
    """An agent or pipeline exceeded its limits.

    The run ended without a result. Tool calls that completed are not undone.
    """

    code = "run_stopped"
    guidance = Guidance(
        cause="The run needed more turns, more tool calls or more time than its declaration or the host allows.",
        fix="Raise `max_turns`, `max_tool_calls` or `timeout` in the declaration, or split the work.",
        example="""\
@sdk.pipeline("answer", steps=["fetch"], timeout=10)      # and one step takes 30 s
-> RunStopped""",
        see=("ai.md",),
    )


class ModelFailed(SandboxError, RuntimeError):
    """The model could not be called, or its answer is malformed.

    The run ends. If the address of the model is not declared, the error is ``sandbox_network_denied`` instead.
    """

    code = "model_failed"
    guidance = Guidance(
        cause="The model's server is down or refuses the key, or the host has no model of this name.",
        fix=(
            "Add a missing model with `democrai-sandbox models add`, or under `extensions.models` in the "
            "configuration; `democrai-sandbox models list` shows the models that agents name. Otherwise fix the "
            "failure in the text."
        ),
        example="""\
@sdk.agent("helper", model="small")      # and the host has no model "small"
-> ModelFailed""",
        see=("ai.md", "configuration.md"),
    )


class StepFailed(SandboxError, RuntimeError):
    """A step of a pipeline failed.

    Later steps did not run. The text names the step and its error, which is also the ``__cause__``.
    """

    code = "step_failed"
    guidance = Guidance(
        cause="A tool, agent or function of the step raised an error, for example a denial or a bad argument.",
        fix="Read the error after the name of the step, and fix that step or its input.",
        example="""\
A pipeline has the steps fetch and summarize, and fetch opens an undeclared URL:
-> StepFailed: ... NetworkDenied: External URL is locked. (sandbox_network_denied:...)""",
        see=("ai.md",),
    )


STOPPING: dict[str, type[SandboxError]] = {
    error.code: error for error in (AssetUnknown, NestingTooDeep, RunStopped, ModelFailed)
}
"""Errors that cross guards unchanged, by code. Read only."""
