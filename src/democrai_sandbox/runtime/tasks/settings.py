"""What a host settles about tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Limits and times; seconds where nothing else is said."""

    per_module: int = 4
    """Tasks of one module that run at a time."""
    in_all: int = 16
    queued_per_module: int = 100
    """Tasks of one module that wait; what is more is refused."""
    timeout: float = 3600.0
    """For a task that names none."""
    longest_timeout: float = 86_400.0
    heartbeat: float = 5.0
    silent_after: float = 30.0
    """A node that has said nothing for so long is taken for dead, and its tasks for lost."""
    patience: float = 5.0
    """For a task that was cancelled to end."""
    progress_every: float = 0.5
    """What a task says about its progress is written no more often than this."""
    keep: timedelta = timedelta(days=30)
    """How long the records of tasks that have ended are kept."""
