"""Privileged helper: a separate process that keeps the egress allowlist in force.

It runs as a script, started by root or through ``sudo`` or ``pkexec``. It uses the standard library only and imports
nothing else from this distribution, so that all privileged code is in one folder.
"""

from __future__ import annotations
