"""``requests``: ``Session.send`` sends each hop, which is checked there unless ``urllib3`` checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .checks import is_web
from .patching import adapter as adapts
from .patching import check

if TYPE_CHECKING:
    from .patching import Method


def _checks_below(session: Any, own: Any, url: str) -> bool:
    """Return whether all requests of the session go through ``urllib3``, where they are checked as sent.

    URLs with a user or a fragment, which do not reach it, are checked as written.
    """
    if "@" in url or "#" in url:
        return False
    for adapter in session.adapters.values():  # noqa: SIM110 - on the way of every request; all() takes twice as long
        if type(adapter) is not own:
            return False
    return True


def _dials_nothing(session: Any, own: Any, url: str) -> bool:
    """Return whether a custom adapter serves the URL, such as an application in memory.

    Its use of the network is checked at the socket.
    """
    return own is not None and not issubclass(type(session.get_adapter(url=url)), own)


@check
def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPAdapter")

    def send(self: Any, request: Any, **_: Any) -> Any:
        url: Any = getattr(request, "url", None)
        if not is_web(url) or _checks_below(self, own, url) or _dials_nothing(self, own, url):
            return None
        return _core.request(request.method, url)

    return send


install = adapts(("Session", "send", _send))
