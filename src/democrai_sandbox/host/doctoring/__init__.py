"""What this machine and a configuration can enforce, found out by trying, before anything is served.

Nothing is changed: what can only be tried by doing it is done in processes that are there for nothing else, and
folders, files and databases are looked at without being made.
"""

from __future__ import annotations

from .examining import examine

__all__ = ["examine"]
