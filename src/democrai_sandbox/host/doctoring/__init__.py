"""Check what this machine can enforce for a configuration, before anything is served.

Nothing is changed: tests that have effects run in separate processes, and folders, files and databases are only read.
"""

from __future__ import annotations

from .examining import examine

__all__ = ["examine"]
