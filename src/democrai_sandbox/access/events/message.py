"""Event format, and its messages on a stream socket. Events contain a generation, never a decision."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.config_section import described

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
LONGEST_MESSAGE = 4096
"""Maximum size in bytes. Longer messages are rejected."""

_GENERATIONS = 2**63
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NOT_IN_A_HOST = re.compile(r"[^A-Za-z0-9.-]")
_LONGEST_HOST = 64


@dataclass(frozen=True, slots=True)
class Event:
    """Announcement of one node that the decisions have reached a generation."""

    node: str
    generation: int
    channel: str

    def encoded(self) -> bytes:
        """Return the event as JSON."""
        fields = {"v": VERSION, "node": self.node, "generation": self.generation, "channel": self.channel}
        return json.dumps(fields, separators=(",", ":")).encode()


def decoded(data: bytes) -> Event | None:
    """Decode an event; return None for anything else, such as an event of a later version."""
    fields = json_object(data)
    if fields is None or type(fields.get("v")) is not int or fields["v"] != VERSION:
        return None
    node, generation, channel = fields.get("node"), fields.get("generation"), fields.get("channel")
    if not isinstance(node, str) or not isinstance(channel, str):
        return None
    if type(generation) is not int or not 0 <= generation < _GENERATIONS:
        return None
    return Event(node, generation, channel)


def json_object(data: bytes) -> dict[str, object] | None:
    """Decode a JSON object; return None for anything else."""
    if len(data) > LONGEST_MESSAGE:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        # ValueError covers bytes that are not text, text that is not JSON, and numbers with too many digits.
        return None
    return fields if isinstance(fields, dict) else None


def new_node() -> str:
    """Return a globally unique node id: host, process, time and 64 random bits."""
    host = _NOT_IN_A_HOST.sub("-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}:{os.getpid()}:{time.time_ns():x}:{secrets.token_hex(8)}"


def checked_channel(channel: object) -> str:
    """Return a valid channel name; it becomes part of a file name or Redis key."""
    if not isinstance(channel, str) or not _CHANNEL.fullmatch(channel):
        message = f"expected a name of up to 64 letters, digits, '.', '_' and '-', got {described(channel)}"
        raise InvalidInputError.of(message, pointer="/channel")
    return channel


_LENGTH = 4


class StreamError(ValueError):
    """Data that violates this protocol."""


def to_frame(message: bytes) -> bytes:
    """Return the message with its length prefix."""
    return len(message).to_bytes(_LENGTH) + message


class FrameAssembler:
    """Assembler of received bytes into messages. Buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the complete messages; raises ``StreamError`` for an invalid length."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _LENGTH:
                length = int.from_bytes(self._data[start : start + _LENGTH])
                if not 0 < length <= LONGEST_MESSAGE:
                    raise StreamError(f"invalid message length of {length} bytes")
                end = start + _LENGTH + length
                if end > len(self._data):
                    return
                yield bytes(self._data[start + _LENGTH : end])
                start = end
        finally:
            del self._data[:start]
