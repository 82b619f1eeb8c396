"""The configuration: one YAML file or what an application hands over, the environment over it, and the origins of all.

Everything that is wrong is told at once, each with the file and line, the variable or the argument that it stands in.
"""

from __future__ import annotations

from .loading import Loaded, load
from .origins import ConfigProblem, Origin

__all__ = ["ConfigProblem", "Loaded", "Origin", "load"]
