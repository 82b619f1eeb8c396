"""Folders for what tests create; those of a supervised run are removed with it, however it ends."""

from __future__ import annotations

import os

SHORT = os.environ.get("RUN_FOLDER") or "/tmp"
"""A folder with a short name, for unix sockets, whose paths have to fit into 108 bytes."""
MEMORY = os.environ.get("RUN_MEMORY") or "/dev/shm"
"""A folder in memory."""
