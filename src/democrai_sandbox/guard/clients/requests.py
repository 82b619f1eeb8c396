"""``requests``: each hop is sent by ``Session.send``, and checked there if an adapter of its own serves the URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checks import checked, is_web, raise_denial
from .patching import adapter as adapts
from .patching import usual

if TYPE_CHECKING:
    from .patching import Method


def _checks_below(session: Any, own: Any, url: str) -> bool:
    """Tell whether all that the session sends goes through ``urllib3``, where it is checked as it will be sent.

    What does not get there, a user and a fragment, is checked as it is written.
    """
    if "@" in url or "#" in url:
        return False
    for adapter in session.adapters.values():  # noqa: SIM110 - on the way of every request; all() takes twice as long
        if type(adapter) is not own:
            return False
    return True


def _dials_nothing(session: Any, own: Any, url: str) -> bool:
    """Tell whether an adapter serves the URL that is not the library's own: an application in memory, say.

    Its use of the network is checked at the socket.
    """
    return own is not None and not issubclass(type(session.get_adapter(url=url)), own)


def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPAdapter")

    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        url: Any = getattr(request, "url", None)
        if is_web(url) and not _checks_below(self, own, url) and not _dials_nothing(self, own, url):
            with checked(request.method, url):
                return original(self, request, **kwargs)
        try:
            return original(self, request, **kwargs)
        except OSError as error:
            raise_denial(error)
            raise

    return usual("requests.send", send, raise_denial, own)


install = adapts(("Session", "send", _send))
