"""Events between hosts, through a Redis stream."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

from .bus import ConnectedBus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

try:
    from redis import ConnectionPool, Redis, RedisError
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError
    from redis.retry import Retry
except ImportError as error:
    message = "the redis package is not installed; run: pip install 'democrai-sandbox[redis]'"
    raise InvalidInputError.of(message, pointer="/type") from error


_LONGEST_WAIT = 2.0
_CONNECT_WITHIN = 1.0
_ANSWER_WITHIN = 2.0
_PING_WITHIN = 3.0
_BLOCK = 1.0
"""Seconds that Redis waits for a new entry before it returns an empty result."""
_TRUSTED_FOR = 10.0
"""Seconds after which an idle connection is replaced, because network devices may drop it silently."""
_AT_ONCE = 500
_LEAST_KEPT = _AT_ONCE
_FIELD = b"event"
_BEGINNING = (0, 0)

_Id = tuple[int, int]


class RedisBus(ConnectedBus):
    """Bus between nodes with the same Redis server, database and channel.

    Every node reads all entries after the last one it knows, without consumer groups. A node that may have missed
    entries, because it was disconnected or the stream was trimmed or lost, is notified of a gap.

    A node needs the commands XADD, XREAD, XRANGE and XREVRANGE on ``democrai:events:<channel>``. With CLIENT ID and
    CLIENT UNBLOCK it stops immediately, otherwise within about a second.
    """

    def __init__(self, *, url: str, channel: str = "access", longest: int = 1000) -> None:
        super().__init__(kind="redis", channel=channel, longest_wait=_LONGEST_WAIT)
        self._key = f"democrai:events:{channel}".encode()
        self._url = _checked_url(url)
        self._longest = _checked_longest(longest)
        self._sender: _Connection | None = None
        self._listener_id: int | None = None

    def _listen(self) -> None:
        connection = _Connection(self._url, answer_within=_BLOCK + _ANSWER_WITHIN)
        try:
            with suppress(ResponseError):  # the Redis user may not have this command
                self._listener_id = connection.ask(b"CLIENT", b"ID")
            last = _first_id(connection.ask(b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1))
            self._has_joined()
            while not self._stopping.is_set():
                last = self._read(connection, last)
        finally:
            self._listener_id = None
            connection.close()

    def _read(self, connection: _Connection, last: _Id) -> _Id:
        """Receive the entries after ``last``, waiting for them; return the id of the last entry."""
        block = int(_BLOCK * 1000)
        after = b"%d-%d" % last
        answer, first, newest = connection.ask_all(
            (b"XREAD", b"COUNT", _AT_ONCE, b"BLOCK", block, b"STREAMS", self._key, after),
            (b"XRANGE", self._key, b"-", b"+", b"COUNT", 1),
            (b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1),
        )
        entries = answer[0][1] if answer else []
        for _, fields in entries:
            for name, value in zip(fields[::2], fields[1::2], strict=True):
                if name == _FIELD:
                    self._hear(value)
        # The stream was trimmed beyond the last read entry, or replaced by an older or empty one. An empty stream just
        # starts.
        if last != _BEGINNING and (_first_id(first) > last or _first_id(newest) < last):
            self._inbox.miss()
            return _first_id(newest)
        return _id(entries[-1]) if entries else last

    def _send(self, event: bytes) -> None:
        command = (b"XADD", self._key, b"MAXLEN", b"~", self._longest, b"*", _FIELD, event)
        if self._sender is not None and self._sender.idle < _TRUSTED_FOR:
            with suppress(RedisConnectionError):
                self._sender.ask(*command)
                return
        # No connection yet, or it has ended, or it may have ended unnoticed.
        self._let_go()
        self._sender = _Connection(self._url, answer_within=_ANSWER_WITHIN)
        self._sender.ask(*command)

    def _interrupt(self) -> None:
        """Let Redis end the wait of the listener; if that fails, the wait times out soon after."""
        listener = self._listener_id
        if listener is None:
            return
        with suppress(RedisError, OSError):
            if self._sender is None:
                self._sender = _Connection(self._url, answer_within=_ANSWER_WITHIN)
            self._sender.ask(b"CLIENT", b"UNBLOCK", listener)

    def _let_go(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


class _Connection:
    """Single connection that is never replaced silently, unlike those of a pooling client."""

    def __init__(self, url: str, *, answer_within: float) -> None:
        self._pool = _pool(url, answer_within)
        self._used = time.monotonic()
        try:
            self._connection: Any = self._pool.get_connection()
        except BaseException:
            self._pool.disconnect()
            raise

    @property
    def idle(self) -> float:
        """Seconds since it was last used."""
        return time.monotonic() - self._used

    def ask(self, *command: bytes | int) -> Any:
        """Send a command and return its reply."""
        self._used = time.monotonic()
        self._connection.send_command(*command, check_health=False)
        return self._connection.read_response()

    def ask_all(self, *commands: tuple[bytes | int, ...]) -> list[Any]:
        """Send commands together and return their replies."""
        self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [self._connection.read_response() for _ in commands]

    def close(self) -> None:
        """End the connection."""
        self._pool.disconnect()


def _pool(url: str, answer_within: float) -> ConnectionPool:
    # Not ConnectionPool.from_url, because there the query of a URL overrides these settings.
    settings: dict[str, Any] = {
        **parse_url(url),  # type: ignore[no-untyped-call]  # annotated in no version yet
        "protocol": 2,
        "decode_responses": False,
        "socket_connect_timeout": _CONNECT_WITHIN,
        "socket_timeout": answer_within,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    return ConnectionPool(**settings)


def _id(entry: Any) -> _Id:
    milliseconds, _, sequence = entry[0].partition(b"-")
    return int(milliseconds), int(sequence)


def _first_id(entries: list[Any]) -> _Id:
    return _id(entries[0]) if entries else _BEGINNING


def _checked_url(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidInputError.of(f"expected a URL as text, got {shown(url)}", pointer="/url")
    try:
        _pool(url, _ANSWER_WITHIN).make_connection()
    except (ValueError, TypeError):
        # Show neither the URL, which may contain a password, nor the error text.
        text = "invalid Redis URL; expected redis://host:port/0, rediss://... or unix:///path"
        raise InvalidInputError.of(text, pointer="/url") from None
    return url


def _checked_longest(longest: object) -> int:
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < _LEAST_KEPT:
        text = f"expected an integer of at least {_LEAST_KEPT}, got {shown(longest)}"
        raise InvalidInputError.of(text, pointer="/longest")
    return longest


CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({"url": _checked_url, "longest": _checked_longest})
"""Validator of each setting except the channel."""


def why_unreachable(url: str) -> str:
    """Ping a server and return the error, or an empty text. The text may contain parts of the URL."""
    try:
        with closing(Redis.from_url(url, socket_connect_timeout=_PING_WITHIN, socket_timeout=_PING_WITHIN)) as server:
            cast("Any", server).ping()
    except (RedisError, OSError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""
