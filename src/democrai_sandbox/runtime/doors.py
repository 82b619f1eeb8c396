"""Services of the runtime that extension code can call by name. The SDK is a thin layer over ``call``.

The host creates each service before the first guard. It takes plain data, and the core supplies the caller's identity.
In a worker, the same services forward calls over the channel to the host.
"""

from __future__ import annotations

import functools
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import NoRuntime, RuntimeServiceFailed, SandboxDenied, TamperDenied
from democrai_sandbox.guard import Door, door
from democrai_sandbox.guard.views import RawView
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.guard import DenialRecorder

_log = logging.getLogger(__name__)

USED_PROGRAM = "used.program"
"""Reports a declared program to a test; served only in tests."""
_FOR_NARROWED = frozenset({"cancelled", "declare", "output.write", "places", "request", "tasks.progress", USED_PROGRAM})
"""Services that a narrowed guard may call, because they grant no access.

The other services use the declarations of the subject, and those are wider than the rights of code that narrowed
itself.
"""

_installed: Mapping[str, Door] = MappingProxyType({})


def call(name: str, *args: Any) -> Any:
    """Call a service of the runtime; plain data in, plain data or a future of it out."""
    try:
        found = _installed[name]
    except KeyError:
        raise NoRuntime(f"no runtime serves {name} in this process") from None
    return found(*args)


def is_served(name: str) -> bool:
    """Return whether this process has a service."""
    return name in _installed


def install(services: Mapping[str, Callable[..., Any]], recorder: DenialRecorder | None = None) -> None:
    """Add services as ``function(view, *args)`` with the caller's ``RawView`` or None. Refused inside a guard.

    Denials by a service go to the recorder, like denials by the guard.
    """
    global _installed  # noqa: PLW0603 - one table for the process, replaced as a whole
    made = {name: door(_served(name, function, recorder)) for name, function in services.items()}
    _installed = MappingProxyType({**_installed, **made})


def _served(name: str, function: Callable[..., Any], recorder: DenialRecorder | None) -> Callable[..., Any]:
    """Wrap a service so that its failures do not expose objects of the host to the caller."""

    @functools.wraps(function)
    def serve(view: tuple[Any, ...] | None, *args: Any) -> Any:
        try:
            caller = None if view is None else RawView(*view)
            if caller is not None and caller.narrowed and name not in _FOR_NARROWED:
                raise _narrowed(name, caller)  # noqa: TRY301 - denied like what the service itself denies
            return function(caller, *args)
        except SandboxDenied as denial:
            _record(recorder, denial)
            raise
        except SandboxError:
            raise
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise RuntimeServiceFailed(f"{name} was called with wrong arguments") from None
            _log.exception("service %s failed", name)
        except Exception:  # noqa: BLE001 - errors of the host stay in its log
            _log.exception("service %s failed", name)
        raise RuntimeServiceFailed(f"{name} failed in the runtime")

    return serve


def _narrowed(name: str, caller: RawView) -> TamperDenied:
    kind, subject = caller.actor
    return TamperDenied(name, subject=subject, subject_kind=kind, chain=caller.labels)


def _record(recorder: DenialRecorder | None, denial: SandboxDenied) -> None:
    if recorder is not None:
        try:
            recorder.record(denial)
        except Exception:  # noqa: BLE001 - a failing recorder must not change the denial
            _log.exception("the denial recorder failed")
