"""The one error tree: denials, failures of the check itself, and misuse. Bad input is in ``policy.problems``.

Three different things, three branches: policy said no (``SandboxDenied``, a ``PermissionError``), no decision could be
had (``ExternalAccessCheckFailed``), and the call itself was wrong (``GuardUsageError``, ``InvalidInputError``).
What each code means, where it comes from and what to do about it is in ``catalogue``.
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
from .commands import (
    CommandMisused,
    CommandRefused,
    ErrorUnknown,
    NodeRefused,
    NodeUnreachable,
)
from .denials import (
    EnvironmentDenied,
    FilesystemDenied,
    FilesystemFdDenied,
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
from .guard import (
    GuardSealedError,
    GuardUsageError,
)
from .host import (
    AddressTaken,
    ConfigInvalid,
    DatabaseUnreachable,
    HostRefused,
    IdempotencyConflict,
    IdempotencyRunning,
    StateUnusable,
)
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
    """Have tracebacks, pickles and whoever looks a class up by its name know it here, wherever it is written down."""
    for name in __all__:
        kind = globals()[name]
        if kind.__module__.startswith(f"{__name__}."):
            kind.__module__ = __name__


_settle()
