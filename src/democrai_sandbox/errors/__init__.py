"""All errors of this package: denials, failures of the access check, and misuse.

A denial is a ``PermissionError`` (``SandboxDenied``), a failed check is ``ExternalAccessCheckFailed``, a wrong call is
``GuardUsageError`` or ``InvalidInputError``. Each class carries its code and its help; ``catalogue`` collects them.
"""

from __future__ import annotations

from democrai_sandbox.policy import InvalidInputError, NetworkTargetMissingError, Problem, SandboxError

from .access import (
    DecisionConflict,
    DecisionUnknown,
    ExternalAccessAdminRequired,
    ExternalAccessCheckFailed,
    RequestUnknown,
    ResumeContextUnreadable,
    SchemaOutdated,
    StoreBusy,
    StoreUnavailable,
)
from .accounts import (
    AccountConflict,
    AccountUnknown,
    ConfirmationNeeded,
    NotSignedIn,
    ScopeMissing,
    SignInRefused,
    SignInThrottled,
)
from .api import IdempotencyConflict, IdempotencyRunning
from .commands import CommandMisused, CommandRefused, ErrorUnknown, NodeRefused, NodeUnreachable
from .denials import (
    EnvironmentDenied,
    FilesystemDenied,
    FilesystemFdDenied,
    GuardSealedError,
    GuardUsageError,
    ModuleDenied,
    NetworkDenied,
    SandboxDenied,
    SubprocessDenied,
    TamperDenied,
)
from .extensions import (
    CallTimeout,
    ExtensionBroken,
    ExtensionFailed,
    ExtensionUnknown,
    InstallFailed,
    NoRuntime,
    NotInstalled,
    ResultInvalid,
    RuntimeServiceFailed,
    TaskQueueFull,
    TaskUnknown,
)
from .host import AddressTaken, ConfigInvalid, DatabaseUnreachable, HostRefused, StateUnusable
from .kernel import (
    HelperFailed,
    HelperOpening,
    KernelLayerError,
    KernelRefused,
    KernelUnsupported,
    PolicyFileRefused,
    SpawnFailed,
)

__all__ = [
    "AccountConflict",
    "AccountUnknown",
    "AddressTaken",
    "CallTimeout",
    "CommandMisused",
    "CommandRefused",
    "ConfigInvalid",
    "ConfirmationNeeded",
    "DatabaseUnreachable",
    "DecisionConflict",
    "DecisionUnknown",
    "EnvironmentDenied",
    "ErrorUnknown",
    "ExtensionBroken",
    "ExtensionFailed",
    "ExtensionUnknown",
    "ExternalAccessAdminRequired",
    "ExternalAccessCheckFailed",
    "FilesystemDenied",
    "FilesystemFdDenied",
    "GuardSealedError",
    "GuardUsageError",
    "HelperFailed",
    "HelperOpening",
    "HostRefused",
    "IdempotencyConflict",
    "IdempotencyRunning",
    "InstallFailed",
    "InvalidInputError",
    "KernelLayerError",
    "KernelRefused",
    "KernelUnsupported",
    "ModuleDenied",
    "NetworkDenied",
    "NetworkTargetMissingError",
    "NoRuntime",
    "NodeRefused",
    "NodeUnreachable",
    "NotInstalled",
    "NotSignedIn",
    "PolicyFileRefused",
    "Problem",
    "RequestUnknown",
    "ResultInvalid",
    "ResumeContextUnreadable",
    "RuntimeServiceFailed",
    "SandboxDenied",
    "SandboxError",
    "SchemaOutdated",
    "ScopeMissing",
    "SignInRefused",
    "SignInThrottled",
    "SpawnFailed",
    "StateUnusable",
    "StoreBusy",
    "StoreUnavailable",
    "SubprocessDenied",
    "TamperDenied",
    "TaskQueueFull",
    "TaskUnknown",
]


def _settle() -> None:
    """Set ``__module__`` to this package, so that tracebacks and pickles use the public name."""
    for name in __all__:
        kind = globals()[name]
        if kind.__module__.startswith(f"{__name__}."):
            kind.__module__ = __name__


_settle()
