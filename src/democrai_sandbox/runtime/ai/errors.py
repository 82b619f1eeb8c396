"""Errors of a run, other than denials and invalid arguments."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError


class AssetUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """The name is unknown, or the caller may not use the tool, agent or pipeline."""

    code = "asset_unknown"


class NestingTooDeep(SandboxError, RecursionError):  # noqa: N818 - it says what happened
    """Tools, agents and pipelines call each other too deeply."""

    code = "nesting_too_deep"


class RunStopped(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """An agent or a pipeline did not finish within its limits."""

    code = "run_stopped"


class ModelFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The model could not be asked, or its answer is malformed. The run ends."""

    code = "model_failed"


class StepFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A step of a pipeline failed; the cause is chained."""

    code = "step_failed"


STOPPING: dict[str, type[SandboxError]] = {
    error.code: error for error in (AssetUnknown, NestingTooDeep, RunStopped, ModelFailed)
}
"""Errors that keep their type across guards, by code. Read only."""
