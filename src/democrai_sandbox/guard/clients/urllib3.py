"""``urllib3`` and ``requests``: each hop and retry is a separate HTTP request; subjects share no connections."""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING, Any
from weakref import ref

from democrai_sandbox.guard import _core

from .adapter import UNGUARDED, Apart, adapter, apart, check, drained, for_everyone, is_web, raise_denial, request_url
from .http_client import CHECKED, take_pending

if TYPE_CHECKING:
    from .adapter import Method

_ERROR = 3
"""Position of the error among the arguments of ``Retry.increment``."""


@check
def _urlopen(original: Method) -> Method:
    del original

    def urlopen(self: Any, method: str, url: str, *_: Any, **__: Any) -> Any:
        return _core.request(method, request_url(self.scheme, self.host, self.port, url))

    return urlopen


def _connect(original: Method) -> Method:
    """Open the connection of a request that was made on it directly, without a pool."""

    def connect(self: Any) -> Any:
        with take_pending(self) or UNGUARDED:
            return original(self)

    return connect


def _increment(original: Method) -> Method:
    """Prevent retries of a denied request."""

    def increment(self: Any, *args: Any, **kwargs: Any) -> Any:
        error = kwargs.get("error", args[_ERROR] if len(args) > _ERROR else None)
        if error is not None:
            raise_denial(error)
        return original(self, *args, **kwargs)

    return increment


# ---- connections by subject ------------------------------------------------------------------------------------------


class _Shares(Apart[Any]):
    """Subjects' shares of a pool; closed with it, also when it is garbage-collected."""

    def __del__(self) -> None:
        for share in self.drain():
            _close_all(share)


class _Share:
    """Pool as one subject sees it: only the queue of idle connections is separate."""

    def __init__(self, pool: Any) -> None:
        self._shared = ref(pool)
        self.block = pool.block
        self.pool = type(pool.pool)(pool.pool.maxsize)
        for _ in range(pool.pool.maxsize):
            self.pool.put(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared(), name)

    def __str__(self) -> str:
        return str(self._shared())


def _get_conn(original: Method) -> Method:
    def _get_conn(self: Any, timeout: Any = None) -> Any:
        if self.pool is None:
            return original(self, timeout)
        subject = _core.subject_key()
        share, surplus = apart(self, _Shares).get(subject, _Share, self)
        for old in surplus:
            _close_all(old)
        connection = original(share, timeout)
        setattr(connection, CHECKED, subject)
        return connection

    return _get_conn


@for_everyone
def _put_conn(original: Method) -> Method:
    def _put_conn(self: Any, conn: Any) -> Any:
        # A connection belongs to the subject it was opened for, whichever subject returns it.
        subject = _core.subject_key() if conn is None else getattr(conn, CHECKED, 0)
        if not subject or self.pool is None:
            return original(self, conn)
        share = apart(self, _Shares).find(subject)
        if share is not None:
            return original(share, conn)
        if conn is not None:
            conn.close()
        return None

    return _put_conn


@for_everyone
def _close(original: Method) -> Method:
    def close(self: Any) -> Any:
        result = original(self)
        for share in drained(self):
            _close_all(share)
        return result

    return close


def _close_all(share: _Share) -> None:
    try:
        while True:
            connection = share.pool.get(block=False)
            if connection is not None:
                connection.close()
    except Empty:
        pass


install = adapter(
    ("HTTPConnectionPool", "urlopen", _urlopen),
    ("HTTPConnectionPool", "_get_conn", _get_conn),
    ("HTTPConnectionPool", "_put_conn", _put_conn),
    ("HTTPConnectionPool", "close", _close),
    ("connection.HTTPConnection", "connect", _connect),
    ("connection.HTTPSConnection", "connect", _connect),
    ("Retry", "increment", _increment),
)


def _checks_below(session: Any, own: Any, url: str) -> bool:
    """Return whether all requests of the session go through ``urllib3``, where they are checked as sent.

    URLs with a user or a fragment, which do not reach it, are checked as written.
    """
    if "@" in url or "#" in url:
        return False
    for mounted in session.adapters.values():  # noqa: SIM110 - on the way of every request; all() takes twice as long
        if type(mounted) is not own:
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


install_requests = adapter(("Session", "send", _send))
