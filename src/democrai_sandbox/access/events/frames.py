"""Messages on a stream socket: four bytes of length, then JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .message import LONGEST_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = 4


class FrameError(ValueError):
    """The other side does not speak this protocol."""


def framed(message: bytes) -> bytes:
    """Return the message as it is sent."""
    return len(message).to_bytes(_LENGTH) + message


class Frames:
    """Puts together what came in pieces. Never keeps more than one message that is not whole yet."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are whole now; raises ``FrameError`` at a length that no message has."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _LENGTH:
                length = int.from_bytes(self._data[start : start + _LENGTH])
                if not 0 < length <= LONGEST_MESSAGE:
                    raise FrameError(f"a message of {length} bytes")
                end = start + _LENGTH + length
                if end > len(self._data):
                    return
                yield bytes(self._data[start + _LENGTH : end])
                start = end
        finally:
            del self._data[:start]
