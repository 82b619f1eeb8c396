"""Configuration: a YAML file or values from the application, overridden by the environment, with the origins.

One error reports all problems, each with the file and line, the variable or the argument.
"""

from __future__ import annotations

from .keys import ConfigProblem, Origin
from .loader import Loaded, load

__all__ = ["ConfigProblem", "Loaded", "Origin", "load"]
