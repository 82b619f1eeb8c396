"""The privileged helper: a process of its own that keeps the egress allowlist in force.

It is started as a script, by root or through ``sudo`` or ``pkexec``, and uses the standard library only. It imports
nothing else of this distribution: what runs with privileges can be read in one folder.
"""

from __future__ import annotations
