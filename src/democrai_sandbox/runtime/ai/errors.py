"""What can go wrong with a run besides a denial and a bad argument."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError


class AssetUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """There is no tool, agent or pipeline of this name for whoever asked."""

    code = "asset_unknown"


class NestingTooDeep(SandboxError, RecursionError):  # noqa: N818 - it says what happened
    """Tools, agents and pipelines call each other without end."""

    code = "nesting_too_deep"


class RunStopped(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """An agent or a pipeline did not come to an end within its limits."""

    code = "run_stopped"


class ModelFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The model could not be asked, or what it answered makes no sense. The run ends: nothing can go on without it."""

    code = "model_failed"


class StepFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A step of a pipeline failed; the cause is chained."""

    code = "step_failed"


STOPPING: dict[str, type[SandboxError]] = {
    error.code: error for error in (AssetUnknown, NestingTooDeep, RunStopped, ModelFailed)
}
"""The errors that cross guards as what they are, by their code. Read only."""
