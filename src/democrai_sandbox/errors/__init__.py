"""All errors of this package: denials, failures of the access check, and misuse.

A denial is a ``PermissionError`` (``SandboxDenied``), a failed check is ``ExternalAccessCheckFailed``, a wrong call is
``GuardUsageError`` or ``InvalidInputError``. Each class carries its code and its help; ``catalogue`` collects them.
"""

from __future__ import annotations

from democrai_sandbox.policy import InvalidInputError as InvalidInputError
from democrai_sandbox.policy import NetworkTargetMissingError as NetworkTargetMissingError
from democrai_sandbox.policy import Problem as Problem
from democrai_sandbox.policy import SandboxError as SandboxError

from .access import DecisionConflict as DecisionConflict
from .access import DecisionUnknown as DecisionUnknown
from .access import ExternalAccessAdminRequired as ExternalAccessAdminRequired
from .access import ExternalAccessCheckFailed as ExternalAccessCheckFailed
from .access import RequestUnknown as RequestUnknown
from .access import ResumeContextUnreadable as ResumeContextUnreadable
from .access import SchemaOutdated as SchemaOutdated
from .access import StoreBusy as StoreBusy
from .access import StoreUnavailable as StoreUnavailable
from .accounts import AccountConflict as AccountConflict
from .accounts import AccountUnknown as AccountUnknown
from .accounts import ConfirmationNeeded as ConfirmationNeeded
from .accounts import NotSignedIn as NotSignedIn
from .accounts import ScopeMissing as ScopeMissing
from .accounts import SignInRefused as SignInRefused
from .accounts import SignInThrottled as SignInThrottled
from .api import IdempotencyConflict as IdempotencyConflict
from .api import IdempotencyRunning as IdempotencyRunning
from .commands import CommandMisused as CommandMisused
from .commands import CommandRefused as CommandRefused
from .commands import ErrorUnknown as ErrorUnknown
from .commands import NodeRefused as NodeRefused
from .commands import NodeUnreachable as NodeUnreachable
from .denials import EnvironmentDenied as EnvironmentDenied
from .denials import FilesystemDenied as FilesystemDenied
from .denials import FilesystemFdDenied as FilesystemFdDenied
from .denials import GuardSealedError as GuardSealedError
from .denials import GuardUsageError as GuardUsageError
from .denials import ModuleDenied as ModuleDenied
from .denials import NetworkDenied as NetworkDenied
from .denials import SandboxDenied as SandboxDenied
from .denials import SubprocessDenied as SubprocessDenied
from .denials import TamperDenied as TamperDenied
from .extensions import CallTimeout as CallTimeout
from .extensions import ExtensionBroken as ExtensionBroken
from .extensions import ExtensionFailed as ExtensionFailed
from .extensions import ExtensionUnknown as ExtensionUnknown
from .extensions import InstallFailed as InstallFailed
from .extensions import NoRuntime as NoRuntime
from .extensions import NotInstalled as NotInstalled
from .extensions import ResultInvalid as ResultInvalid
from .extensions import RuntimeServiceFailed as RuntimeServiceFailed
from .extensions import TaskQueueFull as TaskQueueFull
from .extensions import TaskUnknown as TaskUnknown
from .host import AddressTaken as AddressTaken
from .host import ConfigInvalid as ConfigInvalid
from .host import DatabaseUnreachable as DatabaseUnreachable
from .host import HostRefused as HostRefused
from .host import StateUnusable as StateUnusable
from .kernel import HelperFailed as HelperFailed
from .kernel import HelperOpening as HelperOpening
from .kernel import KernelLayerError as KernelLayerError
from .kernel import KernelRefused as KernelRefused
from .kernel import KernelUnsupported as KernelUnsupported
from .kernel import PolicyFileRefused as PolicyFileRefused
from .kernel import SpawnFailed as SpawnFailed

__all__ = [name for name, value in vars().items() if isinstance(value, type)]


def _settle() -> None:
    """Set ``__module__`` to this package, so that tracebacks and pickles use the public name."""
    for name in __all__:
        kind = globals()[name]
        if kind.__module__.startswith(f"{__name__}."):
            kind.__module__ = __name__


_settle()
