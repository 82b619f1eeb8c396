"""What runtimes keep in the database of the access-policy service: tasks, MCP servers, settings of engines."""

from __future__ import annotations

from .errors import EntryExists, EntryUnknown, TaskUnknown
from .shadowing import Finding, ShadowEffect, ShadowRun
from .sql import RuntimeStore, open_runtime_store
from .values import Failure, NewTask, Progress, Task, TaskFilter, TaskOrigin, TaskState

__all__ = [
    "EntryExists",
    "EntryUnknown",
    "Failure",
    "Finding",
    "NewTask",
    "Progress",
    "RuntimeStore",
    "ShadowEffect",
    "ShadowRun",
    "Task",
    "TaskFilter",
    "TaskOrigin",
    "TaskState",
    "TaskUnknown",
    "open_runtime_store",
]
