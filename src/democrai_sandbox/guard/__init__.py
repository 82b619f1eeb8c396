"""Guard: the native core and its Python interface. Importing it installs the patches permanently."""

from __future__ import annotations

import weakref
from contextlib import suppress
from importlib import import_module

from ._core import Guard, access_changed, live_states, patched_entries
from .boundary import Door, Entrance, door, entrance, own_code, own_process, plain, read_frame, serve, served
from .canaries import check
from .configuration import configure_guard, install_defaults
from .contexts import (
    child_environment,
    environment_of,
    exact_guard_context,
    network_policy_context,
    policy_of,
    process_guard_bypass_context,
    process_guard_context,
    process_guard_context_from_env,
)
from .denials import DenialRecord, recent_denials
from .external_access import ask_external_access, location_of
from .interface import (
    AccessQuestion,
    AllowLink,
    CandidateWatcher,
    Decider,
    DenialRecorder,
    EndpointObserver,
    GuardView,
    ObservedEndpoint,
    current_guard,
    is_guarded,
)
from .stdlib_patches import facade_files, install, renew_capabilities

__all__ = [
    "AccessQuestion",
    "AllowLink",
    "CandidateWatcher",
    "Decider",
    "DenialRecord",
    "DenialRecorder",
    "Door",
    "EndpointObserver",
    "Entrance",
    "Guard",
    "GuardView",
    "ObservedEndpoint",
    "access_changed",
    "ask_external_access",
    "child_environment",
    "configure_guard",
    "current_guard",
    "door",
    "entrance",
    "exact_guard_context",
    "is_guarded",
    "live_states",
    "location_of",
    "network_policy_context",
    "own_code",
    "own_process",
    "patched_entries",
    "plain",
    "policy_of",
    "process_guard_bypass_context",
    "process_guard_context",
    "process_guard_context_from_env",
    "read_frame",
    "recent_denials",
    "serve",
    "served",
]

# The first finalizer of a process registers an exit function for all finalizers. Do this before a subject can.
weakref.finalize(import_module, int).detach()
# Loading ctypes calls ctypes. Load it here once, so that every later call inside a guard can be refused.
with suppress(ImportError):
    import_module("ctypes")
install()
renew_capabilities()
install_defaults(environment_of, facade_files())
check()
