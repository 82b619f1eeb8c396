"""Children: programs that extensions start through the SDK, with limits, stopped with everything they started."""

from __future__ import annotations

from .launch_request import ChildLauncher, ChildProgram, ChildrenSettings, LaunchRequest
from .path_rights import PathRights
from .service import ChildService, PopenLauncher

__all__ = [
    "ChildLauncher",
    "ChildProgram",
    "ChildService",
    "ChildrenSettings",
    "LaunchRequest",
    "PathRights",
    "PopenLauncher",
]
