"""Configuration: a YAML file or values from the application, overridden by the environment, with the origins.

One error reports all problems, each with the file and line, the variable or the argument.
"""

from __future__ import annotations

from .loading import Loaded, load
from .origins import ConfigProblem, Origin

__all__ = ["ConfigProblem", "Loaded", "Origin", "load"]
