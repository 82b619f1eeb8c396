"""Settings of a host for tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Limits and times, in seconds unless noted."""

    per_module: int = 4
    """Maximum running tasks of one module."""
    in_all: int = 16
    queued_per_module: int = 100
    """Maximum queued tasks of one module; further ones are refused."""
    timeout: float = 3600.0
    """Default timeout of a task."""
    longest_timeout: float = 86_400.0
    heartbeat: float = 5.0
    silent_after: float = 30.0
    """A node without a heartbeat for this long is considered dead, and its tasks are lost."""
    patience: float = 5.0
    """Time for a canceled task to stop."""
    progress_every: float = 0.5
    """Minimum interval between stored progress reports of a task."""
    keep: timedelta = timedelta(days=30)
    """Retention of the records of ended tasks."""
