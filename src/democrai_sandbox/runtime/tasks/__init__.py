"""Tasks of modules: started by calls or by a schedule, run under the module's guard, recorded in the store."""

from __future__ import annotations

from democrai_sandbox.errors import TaskQueueFull

from .interface import SurfaceRunner
from .runtime import TaskRuntime
from .service import TaskService
from .settings import TaskSettings

__all__ = ["SurfaceRunner", "TaskQueueFull", "TaskRuntime", "TaskService", "TaskSettings"]
