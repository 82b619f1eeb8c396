"""seccomp: table of system calls, filters, and their application to a process."""

from __future__ import annotations

from .filters import APPLICATION, NO_EXEC, Inet, Metadata, Profile, Unix, child_profile, program
from .process_filter import apply, give_up_programs, no_exec_program, now, support
from .syscalls import Architecture, this_architecture

__all__ = [
    "APPLICATION",
    "NO_EXEC",
    "Architecture",
    "Inet",
    "Metadata",
    "Profile",
    "Unix",
    "apply",
    "child_profile",
    "give_up_programs",
    "no_exec_program",
    "now",
    "program",
    "support",
    "this_architecture",
]
