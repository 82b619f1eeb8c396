"""Data of the runtimes in the database of the access-policy service: tasks, MCP servers, models, settings."""

from __future__ import annotations

from democrai_sandbox.errors.registry import EntryConfigured, EntryExists, EntryUnknown

from .modelling import StoredModel
from .registry import Configured
from .shadowing import Finding, ShadowEffect, ShadowRun
from .sql import RuntimeStore, open_runtime_store
from .values import Failure, NewTask, Progress, Task, TaskFilter, TaskOrigin, TaskState

__all__ = [
    "Configured",
    "EntryConfigured",
    "EntryExists",
    "EntryUnknown",
    "Failure",
    "Finding",
    "NewTask",
    "Progress",
    "RuntimeStore",
    "ShadowEffect",
    "ShadowRun",
    "StoredModel",
    "Task",
    "TaskFilter",
    "TaskOrigin",
    "TaskState",
    "open_runtime_store",
]
