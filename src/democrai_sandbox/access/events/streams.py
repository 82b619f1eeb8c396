"""Events between hosts, through a Redis stream.

Every node reads everything from the last entry that it knows; there are no consumer groups. A node that cannot know
what it missed, because it was away or because the stream was cut or lost, is told so.

A node needs the commands XADD, XREAD, XRANGE and XREVRANGE on ``democrai:events:<channel>``. With CLIENT ID and
CLIENT UNBLOCK it stops at once, without them within a second or so.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

from .linked import LinkedBus

try:
    from redis import ConnectionPool, RedisError
    from redis.backoff import NoBackoff
    from redis.connection import parse_url
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import ResponseError
    from redis.retry import Retry
except ImportError as error:
    message = "redis events need a package that is not installed: pip install 'democrai-sandbox[redis]'"
    raise InvalidInputError.of(message, pointer="/type") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LONGEST_WAIT = 2.0
_CONNECT_WITHIN = 1.0
_ANSWER_WITHIN = 2.0
_BLOCK = 1.0
"""Seconds that Redis waits for a new entry before it says that there is none."""
_TRUSTED_FOR = 10.0
"""Seconds that a connection may be idle and still be taken for one: what lies between may forget it silently."""
_AT_ONCE = 500
_LEAST_KEPT = _AT_ONCE
_FIELD = b"event"
_BEGINNING = (0, 0)

_Id = tuple[int, int]


class RedisBus(LinkedBus):
    """Reaches the nodes that use the same Redis server, database and channel."""

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
            with suppress(ResponseError):  # Not every user of a Redis server may ask.
                self._listener_id = connection.ask(b"CLIENT", b"ID")
            last = self._newest(connection)
            self._has_joined()
            while not self._stopping.is_set():
                last = self._read(connection, last)
        finally:
            self._listener_id = None
            connection.close()

    def _newest(self, connection: _Connection) -> _Id:
        return _first_id(connection.ask(b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1))

    def _read(self, connection: _Connection, last: _Id) -> _Id:
        """Hear what came after an entry, waiting for it; return which entry is the last one now."""
        block = int(_BLOCK * 1000)
        after = b"%d-%d" % last
        answer, first, newest = connection.ask_all(
            (b"XREAD", b"COUNT", _AT_ONCE, b"BLOCK", block, b"STREAMS", self._key, after),
            (b"XRANGE", self._key, b"-", b"+", b"COUNT", 1),
            (b"XREVRANGE", self._key, b"+", b"-", b"COUNT", 1),
        )
        entries = answer[0][1] if answer else []
        for _, fields in entries:
            for event in _events(fields):
                self._hear(event)
        # Cut beyond what was read, or replaced by an older or an empty one. A stream that was empty just begins.
        if last != _BEGINNING and (_first_id(first) > last or _first_id(newest) < last):
            self._ear.inbox.miss()
            return _first_id(newest)
        return _id(entries[-1]) if entries else last

    def _send(self, event: bytes) -> None:
        command = (b"XADD", self._key, b"MAXLEN", b"~", self._longest, b"*", _FIELD, event)
        if self._sender is not None and self._sender.idle < _TRUSTED_FOR:
            with suppress(RedisConnectionError):
                self._sender.ask(*command)
                return
        # None yet, or one that has ended, or that may have ended unseen.
        self._close_sender()
        self._sender = _Connection(self._url, answer_within=_ANSWER_WITHIN)
        self._sender.ask(*command)

    def _interrupt(self) -> None:
        """Have Redis end the wait of the listener; where it does not, the wait ends by itself a moment later."""
        listener = self._listener_id
        if listener is None:
            return
        with suppress(RedisError, OSError):
            if self._sender is None:
                self._sender = _Connection(self._url, answer_within=_ANSWER_WITHIN)
            self._sender.ask(b"CLIENT", b"UNBLOCK", listener)

    def _let_go(self) -> None:
        self._close_sender()

    def _close_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


class _Connection:
    """One connection that is never exchanged for another unseen, as those of a client with a pool are."""

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
        """Return the answer to a command."""
        self._used = time.monotonic()
        self._connection.send_command(*command, check_health=False)
        return self._connection.read_response()

    def ask_all(self, *commands: tuple[bytes | int, ...]) -> list[Any]:
        """Return the answers to commands that are sent together."""
        self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
        return [self._connection.read_response() for _ in commands]

    def close(self) -> None:
        """End the connection."""
        self._pool.disconnect()


def _pool(url: str, answer_within: float) -> ConnectionPool:
    # Not ConnectionPool.from_url, with which the query of a URL wins over what is needed here.
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


def _events(fields: list[bytes]) -> Iterator[bytes]:
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name == _FIELD:
            yield value


def _id(entry: Any) -> _Id:
    milliseconds, _, sequence = entry[0].partition(b"-")
    return int(milliseconds), int(sequence)


def _first_id(entries: list[Any]) -> _Id:
    return _id(entries[0]) if entries else _BEGINNING


def _checked_url(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidInputError.of(f"a URL is text, got {shown(url)}", pointer="/url")
    try:
        _pool(url, _ANSWER_WITHIN).make_connection()
    except (ValueError, TypeError):
        # The URL may hold a password: it is not shown, and neither is the error's text.
        text = "not a URL of a Redis server; written redis://host:port/0, rediss://... or unix:///path"
        raise InvalidInputError.of(text, pointer="/url") from None
    return url


def _checked_longest(longest: object) -> int:
    if not isinstance(longest, int) or isinstance(longest, bool) or longest < _LEAST_KEPT:
        text = f"the stream keeps {_LEAST_KEPT} events or more, got {shown(longest)}"
        raise InvalidInputError.of(text, pointer="/longest")
    return longest


CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({"url": _checked_url, "longest": _checked_longest})
"""What reads each setting but the channel."""
