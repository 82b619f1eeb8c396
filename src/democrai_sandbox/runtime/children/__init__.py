"""Children: programs that extensions start through the SDK, with limits, stopped with everything they started."""

from __future__ import annotations

from .interface import Child, Launcher, Order
from .launching import PopenLauncher
from .rights import Rights
from .service import Children, ChildrenSettings

__all__ = ["Child", "Children", "ChildrenSettings", "Launcher", "Order", "PopenLauncher", "Rights"]
