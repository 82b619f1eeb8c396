"""Messages on a stream socket: four bytes of length, then JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .message import LONGEST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = 4


class FrameError(ValueError):
    """Data that violates this protocol."""


def framed(message: bytes) -> bytes:
    """Return the message with its length prefix."""
    return len(message).to_bytes(_LENGTH) + message


class Frames:
    """Assembler of received bytes into messages. Buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the complete messages; raises ``FrameError`` for an invalid length."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _LENGTH:
                length = int.from_bytes(self._data[start : start + _LENGTH])
                if not 0 < length <= LONGEST_MESSAGE:
                    raise FrameError(f"invalid message length of {length} bytes")
                end = start + _LENGTH + length
                if end > len(self._data):
                    return
                yield bytes(self._data[start + _LENGTH : end])
                start = end
        finally:
            del self._data[:start]
