"""The services of the runtime that extension code can reach, by name. The SDK is a thin face over ``call``.

Each is a door of the guard: made by the host before the first guard, called with plain data, told by the core who is
asking. In a worker process the same doors lead over the channel to the host.
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
"""Tells a test of a declared program that was asked about; served there alone."""
_FOR_NARROWED = frozenset({"cancelled", "declare", "output.write", "places", "request", "tasks.progress", USED_PROGRAM})
"""Services that give nothing which a caller could have given up. The others work by its declarations, and code that
narrowed itself has fewer rights than these say."""

_installed: Mapping[str, Door] = MappingProxyType({})


def call(name: str, *args: Any) -> Any:
    """Ask the runtime for something; plain data in, plain data or a future of it out."""
    try:
        found = _installed[name]
    except KeyError:
        raise NoRuntime(f"no runtime serves {name} in this process") from None
    return found(*args)


def is_served(name: str) -> bool:
    """Tell whether this process has such a service."""
    return name in _installed


def install(services: Mapping[str, Callable[..., Any]], recorder: DenialRecorder | None = None) -> None:
    """Add services, each as ``function(view, *args)`` with the caller's ``RawView`` or None. Refused inside a guard.

    What they deny is told to the recorder, like what the guard itself denies.
    """
    global _installed  # noqa: PLW0603 - one table for the process, replaced as a whole
    made = {name: door(_served(name, function, recorder)) for name, function in services.items()}
    _installed = MappingProxyType({**_installed, **made})


def _served(name: str, function: Callable[..., Any], recorder: DenialRecorder | None) -> Callable[..., Any]:
    """Keep what the host works with out of what a caller gets to see when a service fails."""

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
                raise RuntimeServiceFailed(f"{name} was called with other arguments than it takes") from None
            _log.exception("service %s failed", name)
        except Exception:  # noqa: BLE001 - whatever it is, it is the host's, and stays in its log
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
        except Exception:  # noqa: BLE001 - a recorder that fails changes nothing about the denial
            _log.exception("the recorder of denials failed")
