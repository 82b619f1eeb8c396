"""Frames: messages between host and worker over a socket.

A frame is a header, a JSON text, and the raw bytes values of the message. Reading one creates only plain data, in
linear time and within limits (``guard/_core/edge/worker_messages.c``). The native JSON functions are called directly,
because guarded code could replace those of the ``json`` module.
"""

from __future__ import annotations

import struct
from json import encoder
from json.encoder import encode_basestring_ascii
from os import urandom
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from democrai_sandbox.errors.extensions import FrameError
from democrai_sandbox.guard import plain, read_frame
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LARGEST = 64 * 1024 * 1024
"""Default maximum bytes of one frame."""
CHUNK = 256 * 1024
"""Bytes to receive from a socket at a time."""
LARGE = 32 * 1024
"""Bytes above which a text is not read on an event loop, and a frame is not copied."""
_LARGE_BLOBS = 4 * 1024 * 1024
"""The same limit for bytes values, which are only copied."""
_MOST_PARTS = 64
"""Bytes values of a frame that are sent separately; a frame with more is joined."""
_HEADER = struct.Struct("!III")  # bytes of the text, bytes of the blobs, number of blobs
_SIZE = _HEADER.size
_unpack = _HEADER.unpack_from
_pack = _HEADER.pack


class _BytesInside(Exception):  # noqa: N818 - a signal, not an error
    """Signal that the message contains bytes values."""


def _bytes_inside(value: object) -> NoReturn:
    if type(value) is bytes:
        raise _BytesInside
    raise FrameError(f"not plain data: {type(value).__name__}")


# The stubs know only the Python versions. Saved here, where guarded code cannot replace them.
_make_writer: Any = encoder.c_make_encoder  # type: ignore[attr-defined]


def _writer(default: Callable[[object], object]) -> Callable[[Any, int], tuple[str, ...]]:
    """Return the native encoder, without the check for cycles, which plain data cannot have, and without NaN."""
    sort_keys = skip_keys = allow_nan = False
    made: Callable[[Any, int], tuple[str, ...]] = _make_writer(
        None, default, encode_basestring_ascii, None, ":", ",", sort_keys, skip_keys, allow_nan
    )
    return made


_write = _writer(_bytes_inside)


# ---- writing ---------------------------------------------------------------------------------------------------------


def encode(message: Any, *, largest: int = LARGEST) -> bytes:
    """Return the frame of a message of plain data; tuples become lists.

    Raise ``InvalidInputError`` with the location of a value that is not plain, and for a frame that is too large.
    """
    parts = encode_parts(message, largest=largest)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def encode_parts(message: Any, *, largest: int = LARGEST) -> tuple[bytes, ...]:
    """Return the frame as texts to send one after another: large bytes values are not copied. Else as ``encode``."""
    message = plain(message, lists=True)
    blobs: list[bytes] = []
    try:
        text = "".join(_write(message, 0))
    except _BytesInside:
        text, blobs = _text_and_blobs(message)
    rest = sum(map(len, blobs)) if blobs else 0
    if len(text) + rest > largest:
        raise InvalidInputError.of(f"the message has {len(text) + rest} bytes; at most {largest} are allowed")
    head = _pack(len(text), rest, len(blobs)) + text.encode("ascii")
    if not blobs:
        return (head,)
    return (head, *blobs) if rest > LARGE and len(blobs) <= _MOST_PARTS else (b"".join((head, *blobs)),)


def unsent(parts: Iterable[bytes], sent: int) -> Iterator[memoryview]:
    """Yield what is left of the parts of a frame after ``sent`` bytes."""
    for part in parts:
        if sent < len(part):
            yield memoryview(part)[sent:]
        sent = max(0, sent - len(part))


def _text_and_blobs(message: Any) -> tuple[str, list[bytes]]:
    """Return the text, in which each bytes value is an object with one key, and the bytes values.

    The key is random and does not occur in the message otherwise, and the text begins with it. So a subject's own keys
    can never be taken for bytes values, nor the other way round.
    """
    while True:
        tag = f"\0{urandom(8).hex()}"
        blobs: list[bytes] = []
        key = encode_basestring_ascii(tag)
        text = "".join(_writer(_collector(blobs, tag))(message, 0))
        if text.count(f"{key}:") == len(blobs):
            sizes = ",".join([str(len(blob)) for blob in blobs])
            return f"[{key},[{sizes}],{text}]", blobs


def _collector(blobs: list[bytes], tag: str) -> Callable[[object], object]:
    def collect(value: object) -> dict[str, int]:
        if type(value) is not bytes:
            raise FrameError(f"not plain data: {type(value).__name__}")
        blobs.append(value)
        return {tag: len(blobs) - 1}

    return collect


# ---- reading ---------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """A complete frame that is not decoded yet."""

    text: bytes | memoryview
    raw: bytes | memoryview
    blobs: int
    size: int

    @property
    def is_slow(self) -> bool:
        """Whether decoding it would block an event loop for too long."""
        return self.size > LARGE and (len(self.text) > LARGE or self.size > _LARGE_BLOBS)

    def kept(self) -> Frame:
        """Return it with its own copy of the memory."""
        return self if self.size > LARGE else self._replace(text=bytes(self.text), raw=bytes(self.raw))


def decode(frame: Frame) -> tuple[Any, int]:
    """Return the message in a frame and its number of values; raise ``FrameError`` if it is malformed.

    A slow frame releases the GIL meanwhile.
    """
    try:
        return read_frame(frame.text, frame.raw, frame.blobs, frame.is_slow)
    except (ValueError, MemoryError) as error:
        raise FrameError(str(error) or "it needs too much memory") from None


class FrameReader:
    """Assembles frames from received bytes."""

    __slots__ = ("_at", "_begun", "_end", "_filled", "_largest", "_pieces", "_room", "_spare", "room")

    def __init__(self, *, largest: int = LARGEST) -> None:
        """Refuse frames that are larger than ``largest``."""
        self._largest = largest
        self._pieces = bytearray()
        """Unused bytes of earlier reads; empty while the room holds everything."""
        self._room = bytearray(CHUNK)
        self.room = memoryview(self._room)
        """Buffer to receive into: allocated once, except for the rest of a large frame, which is received in place."""
        self._at = self._end = 0
        self._begun: Frame | None = None
        """Large frame of which a part has arrived."""
        self._filled = 0
        self._spare = bytearray()
        """Memory for the next large frame."""

    @property
    def size(self) -> int:
        """Received bytes that were not returned yet."""
        return self._end - self._at if self._begun is None else self._filled

    @property
    def is_empty(self) -> bool:
        """Whether no received bytes are left."""
        return self._at == self._end and not self._pieces and self._begun is None

    def add(self, size: int) -> None:
        """Add ``size`` received bytes after those that were kept."""
        if self._begun is not None:
            self._filled += size
            self.room = self.room[size:]
        elif self._pieces:
            self._pieces += self.room[:size]
            self._at, self._end = 0, len(self._pieces)
        else:
            self._at, self._end = 0, size

    def keep(self) -> None:
        """Move the remaining bytes out of the room, so that more can be received."""
        if self._begun is not None:
            return
        if self._pieces:
            del self._pieces[: self._at]
        else:
            self._pieces += self.room[self._at : self._end]
        self._at, self._end = 0, len(self._pieces)

    def next(self) -> Frame | None:
        """Return the next frame; None if it is incomplete. Raise ``FrameError`` if it is malformed."""
        if self._begun is not None:
            return self._completed(self._begun)
        start = self._at + _SIZE
        if start > self._end:
            self.keep()
            return None
        size, rest, blobs = _unpack(self._pieces or self._room, self._at)
        if size + rest > self._largest or blobs > size:  # the text contains the size of each blob
            raise FrameError(f"a frame announces {size + rest} bytes; at most {self._largest} are allowed")
        end = start + size + rest
        if end > self._end:
            if size + rest > LARGE:
                self._begin(size, rest, blobs)
            else:
                self.keep()
            return None
        self._at = end
        if size + rest > LARGE:
            return self._large(start, start + size, end, blobs)
        if not self._pieces:
            room = self.room
            return Frame(room[start : start + size], room[start + size : end] if rest else b"", blobs, size + rest)
        pieces = self._pieces
        return Frame(bytes(pieces[start : start + size]), bytes(pieces[start + size : end]), blobs, size + rest)

    def _begin(self, size: int, rest: int, blobs: int) -> None:
        """Receive the rest of a large frame directly into its memory."""
        spare, self._spare = self._spare, bytearray()
        whole = memoryview(spare if len(spare) >= size + rest else bytearray(size + rest))[: size + rest]
        arrived = memoryview(self._pieces or self._room)[self._at + _SIZE : self._end]
        self._filled = len(arrived)
        whole[: self._filled] = arrived
        arrived.release()
        self._begun = Frame(whole[:size], whole[size:], blobs, size + rest)
        self._pieces = bytearray()
        self._at = self._end = 0
        self.room = whole[self._filled :]

    def reuse(self, frame: Frame) -> None:
        """Use the memory of a decoded frame again: new memory for each large frame costs more than its transfer."""
        memory = frame.raw.obj if isinstance(frame.raw, memoryview) else None
        if isinstance(memory, bytearray) and memory is not self._room and len(memory) <= _LARGE_BLOBS:
            self._spare = memory

    def _completed(self, frame: Frame) -> Frame | None:
        if self._filled < frame.size:
            return None
        self._begun = None
        self.room = memoryview(self._room)
        return frame

    def count(self, most: int) -> int:
        """Return the number of complete frames, counted up to ``most``."""
        if self._begun is not None:
            return int(self._filled == self._begun.size)
        found, at, data = 0, self._at, self._pieces or self._room
        while found < most and at + _SIZE <= self._end:
            size, rest, _ = _unpack(data, at)
            at += _SIZE + size + rest
            found += at <= self._end
        return found

    def feed(self, size: int) -> list[Any]:
        """Add ``size`` received bytes, and return the complete messages.

        Raise ``FrameError`` if one is malformed; nothing can be read after that.
        """
        self.add(size)
        messages = []
        while (frame := self.next()) is not None:
            messages.append(decode(frame)[0])
            self.reuse(frame)
        return messages

    def _large(self, start: int, middle: int, end: int, blobs: int) -> Frame:
        """Return a large frame without copying it: hand over its memory, and move the rest."""
        if not self._pieces:
            view = memoryview(bytes(self.room[start:end]))
            return Frame(view[: middle - start], view[middle - start :], blobs, end - start)
        pieces, rest = self._pieces, self._end - end
        self._pieces = pieces[end : self._end]
        self._at, self._end = 0, rest
        view = memoryview(pieces)
        return Frame(view[start:middle], view[middle:end], blobs, end - start)
