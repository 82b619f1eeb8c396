"""Errors of the runtime's store, other than an unavailable database."""

from __future__ import annotations

from democrai_sandbox.errors import TaskUnknown
from democrai_sandbox.policy import SandboxError

__all__ = ["EntryConfigured", "EntryExists", "EntryUnknown", "TaskUnknown"]


class EntryUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """The registry has no entry with this name."""

    code = "runtime_entry_unknown"


class EntryExists(SandboxError, ValueError):  # noqa: N818 - it says what happened
    """The registry already has an entry with this name."""

    code = "runtime_entry_exists"


class EntryConfigured(SandboxError, ValueError):  # noqa: N818 - it says what happened
    """The configuration sets this entry, so it cannot be changed while the host runs."""

    code = "runtime_entry_configured"
