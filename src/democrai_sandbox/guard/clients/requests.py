"""``requests``: each hop is sent by ``Session.send``, whatever adapter serves its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checks import checked, is_web, raise_denial
from .patching import adapter

if TYPE_CHECKING:
    from .patching import Method


def _checks_below(session: Any, own: Any, url: str) -> bool:
    """Tell whether all that the session sends goes through ``urllib3``, where it is checked as it will be sent.

    What does not get there, a user and a fragment, is checked as it is written.
    """
    return "@" not in url and "#" not in url and set(map(type, session.adapters.values())) <= {own}


def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPAdapter")

    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        url: Any = getattr(request, "url", None)
        if is_web(url) and not _checks_below(self, own, url):
            with checked(request.method, url):
                return original(self, request, **kwargs)
        try:
            return original(self, request, **kwargs)
        except OSError as error:
            raise_denial(error)
            raise

    return send


install = adapter(("Session", "send", _send))
