"""Guard: the native core and its Python interface. Importing it installs the patches permanently."""

from __future__ import annotations

import weakref
from contextlib import suppress
from importlib import import_module

from ._core import (
    AccessQuestion,
    Door,
    Entrance,
    Guard,
    ObservedEndpoint,
    access_changed,
    live_states,
    patched_entries,
    read_frame,
    small_frame,
    write_values,
)
from .boundary import ask_external_access, door, entrance, location_of, own_code, own_process, plain, serve, served
from .configuration import bare_policy, configure_guard, install_defaults
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
from .interface import (
    AllowLink,
    CandidateWatcher,
    Decider,
    DenialRecord,
    DenialRecorder,
    EndpointObserver,
    GuardView,
    current_guard,
    is_guarded,
    recent_denials,
)
from .stdlib_patches import check, facade_files, install, renew_capabilities

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
    "small_frame",
    "write_values",
]

# The first finalizer of a process registers an exit function for all finalizers. Do this before a subject can.
weakref.finalize(import_module, int).detach()
# Loading ctypes calls ctypes. Load it here once, so that every later call inside a guard can be refused.
with suppress(ImportError):
    import_module("ctypes")
install()
renew_capabilities()
install_defaults(environment_of, facade_files())
check(bare_policy("canary", ()))
