"""The guard of a suite's process: none, an idle one, or one that grants the suite's folder."""

from __future__ import annotations

from typing import Any

from outcomes import Lines, Recorder


def guard_for(spec: dict[str, Any], lines: Lines) -> Any:
    """Return the guard to run a suite in, or None; an idle one was entered and left before."""
    if spec["mode"] == "plain":
        return None
    from democrai_sandbox import configure_guard, process_guard_context
    from democrai_sandbox.guard import own_process

    configure_guard(recorder=Recorder(lines))
    own_process()
    guard = process_guard_context(
        subject="suite",
        allowed_paths=[spec["folder"]],
        allowed_targets=spec["targets"],
        allow_subprocess=spec["processes"],
    )
    if spec["mode"] == "guarded":
        return guard
    guard.run(int)
    return None
