"""``requests``: each hop is sent by ``Session.send``, whatever adapter serves its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .checks import checked, is_web, raise_denial
from .patching import adapter

if TYPE_CHECKING:
    from .patching import Method


def _checks_below(session: Any, own: Any) -> bool:
    """Tell whether all that the session sends goes through ``urllib3``, where it is checked as it will be sent."""
    return set(map(type, session.adapters.values())) <= {own}


def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPAdapter")

    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not _core.subject_key() or _checks_below(self, own) or not is_web(getattr(request, "url", None)):
            return original(self, request, *args, **kwargs)
        with checked(request.method, request.url):
            return original(self, request, *args, **kwargs)

    return send


def _adapter_send(original: Method) -> Method:
    """Its own adapter goes on to ``urllib3``, which checks: here only the denial is taken out."""

    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except OSError as error:
            raise_denial(error)
            raise

    return send


install = adapter(
    ("Session", "send", _send),
    ("adapters.HTTPAdapter", "send", _adapter_send),
)
