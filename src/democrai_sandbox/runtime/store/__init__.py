"""Data of the runtimes in the database of the access-policy service: tasks, MCP servers, models, settings."""

from __future__ import annotations

from democrai_sandbox.errors.services import EntryConfigured, EntryExists, EntryUnknown

from .registration_rows import Configured, StoredModel
from .shadow_rows import ShadowDifference, ShadowEffect, ShadowRun
from .store import RuntimeStore, open_runtime_store
from .values import Failure, NewTask, Progress, Task, TaskCaller, TaskFilter, TaskState

__all__ = [
    "Configured",
    "EntryConfigured",
    "EntryExists",
    "EntryUnknown",
    "Failure",
    "NewTask",
    "Progress",
    "RuntimeStore",
    "ShadowDifference",
    "ShadowEffect",
    "ShadowRun",
    "StoredModel",
    "Task",
    "TaskCaller",
    "TaskFilter",
    "TaskState",
    "open_runtime_store",
]
