"""Frames: what host and worker say to each other over a socket.

A frame is a header, a JSON text, and the bytes values that occur in it, raw. Reading one makes plain data and never an
object of any class: the other side may be in the hands of a subject. Reading takes linear time and has its limits while
it reads (``guard/_core/messages.c``). The JSON functions for writing are the native ones, called directly: guarded code
lives in one process with the worker's end, and could put its own into the modules around them.
"""

from __future__ import annotations

import struct
from json import encoder
from json.encoder import encode_basestring_ascii
from os import urandom
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from democrai_sandbox.guard import plain, read_frame
from democrai_sandbox.policy import InvalidInputError

from .errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 64 * 1024 * 1024
"""Bytes of one frame, unless told."""
CHUNK = 256 * 1024
"""Bytes to ask a socket for at a time."""
LARGE = 32 * 1024
"""Bytes of a text from which on it is not read on an event loop, and of a frame from which on it is not copied."""
_LARGE_BLOBS = 4 * 1024 * 1024
"""The same for bytes values, which are only copied."""
_HEADER = struct.Struct("!III")  # bytes of the text, bytes of the blobs, number of blobs
_SIZE = _HEADER.size
_unpack = _HEADER.unpack_from
_pack = _HEADER.pack


class _BytesInside(Exception):  # noqa: N818 - a signal, no error
    """The text alone does not do: there are bytes values."""


def _bytes_inside(value: object) -> NoReturn:
    if type(value) is bytes:
        raise _BytesInside
    raise FrameError(f"not plain data: {type(value).__name__}")


# The stubs know the ones in Python only. Kept here, where guarded code cannot exchange them.
_make_writer: Any = encoder.c_make_encoder  # type: ignore[attr-defined]


def _writer(default: Callable[[object], object]) -> Callable[[Any, int], tuple[str, ...]]:
    """Return the native encoder: no look for cycles, which plain data has not, and no infinite numbers."""
    sort_keys = skip_keys = allow_nan = False
    made: Callable[[Any, int], tuple[str, ...]] = _make_writer(
        None, default, encode_basestring_ascii, None, ":", ",", sort_keys, skip_keys, allow_nan
    )
    return made


_write = _writer(_bytes_inside)


# ---- writing ---------------------------------------------------------------------------------------------------------


def encode(message: Any, *, largest: int = LARGEST) -> bytes:
    """Return the frame of a message of plain data; tuples become lists.

    What is not plain raises ``InvalidInputError`` with its place, and so does what is larger than a frame may be.
    """
    message = plain(message, lists=True)
    blobs: list[bytes] = []
    try:
        text = "".join(_write(message, 0))
    except _BytesInside:
        text, blobs = _text_and_blobs(message)
    rest = sum(map(len, blobs)) if blobs else 0
    if len(text) + rest > largest:
        raise InvalidInputError.of(f"{len(text) + rest} bytes are too many to be carried: at most {largest} are")
    head = _pack(len(text), rest, len(blobs)) + text.encode("ascii")
    return b"".join((head, *blobs)) if blobs else head


def _text_and_blobs(message: Any) -> tuple[str, list[bytes]]:
    """Return the text, in which each bytes value is an object of one key, and the values.

    The key is one that nobody used in this message, and the text begins with it: what a subject calls its own keys can
    never be taken for bytes, nor the other way round. It is a random one, which no caller can use on purpose.
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
    """A frame that is complete, and not read yet."""

    text: bytes | memoryview
    raw: bytes | memoryview
    blobs: int
    size: int

    @property
    def is_slow(self) -> bool:
        """Whether it takes too long to be read on an event loop."""
        return self.size > LARGE and (len(self.text) > LARGE or self.size > _LARGE_BLOBS)

    def kept(self) -> Frame:
        """Return it with memory of its own."""
        return self if self.size > LARGE else self._replace(text=bytes(self.text), raw=bytes(self.raw))


def decode(frame: Frame) -> tuple[Any, int]:
    """Return the message in a frame, and how many values it has. Anything else raises ``FrameError``.

    A slow one lets other threads run meanwhile.
    """
    try:
        return read_frame(frame.text, frame.raw, frame.blobs, frame.is_slow)
    except (ValueError, MemoryError) as error:
        raise FrameError(str(error) or "it takes too much memory") from None


class Inbox:
    """Puts frames together from what a socket gives, in whatever pieces."""

    __slots__ = ("_at", "_end", "_largest", "_pieces", "_room", "room")

    def __init__(self, *, largest: int = LARGEST) -> None:
        """Refuse frames that are larger."""
        self._largest = largest
        self._pieces = bytearray()
        """What came before and is not used up; empty while the room alone has everything."""
        self._room = bytearray(CHUNK)
        self.room = memoryview(self._room)
        """To receive into: made once, because a new one for each message would cost more than all the rest."""
        self._at = self._end = 0

    @property
    def size(self) -> int:
        """Bytes that are here and not handed out."""
        return self._end - self._at

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here, and nothing has to be kept."""
        return self._at == self._end and not self._pieces

    def add(self, size: int) -> None:
        """Take so many bytes that were received, after what was kept."""
        if self._pieces:
            self._pieces += self.room[:size]
            self._at, self._end = 0, len(self._pieces)
        else:
            self._at, self._end = 0, size

    def keep(self) -> None:
        """Keep what is left elsewhere than in the room, so that more can be received."""
        if self._pieces:
            del self._pieces[: self._at]
        else:
            self._pieces += self.room[self._at : self._end]
        self._at, self._end = 0, len(self._pieces)

    def next(self) -> Frame | None:
        """Return the next frame; None until more has come. Anything else raises ``FrameError``."""
        start = self._at + _SIZE
        if start > self._end:
            self.keep()
            return None
        size, rest, blobs = _unpack(self._pieces or self._room, self._at)
        if size + rest > self._largest or blobs > size:  # each has its size in the text
            raise FrameError(f"a frame announces {size + rest} bytes, at most {self._largest} are taken")
        end = start + size + rest
        if end > self._end:
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

    def count(self, most: int) -> int:
        """Return how many frames are complete, as far as up to a number of them."""
        found, at, data = 0, self._at, self._pieces or self._room
        while found < most and at + _SIZE <= self._end:
            size, rest, _ = _unpack(data, at)
            at += _SIZE + size + rest
            found += at <= self._end
        return found

    def feed(self, size: int) -> list[Any]:
        """Take so many bytes that were received, and return the messages that are complete now.

        Anything else raises ``FrameError``; nothing can be read after it.
        """
        self.add(size)
        messages = []
        while (frame := self.next()) is not None:
            messages.append(decode(frame)[0])
        return messages

    def _large(self, start: int, middle: int, end: int, blobs: int) -> Frame:
        """Return a large frame without another copy of it: its memory is given away, and the rest moves."""
        if not self._pieces:
            view = memoryview(bytes(self.room[start:end]))
            return Frame(view[: middle - start], view[middle - start :], blobs, end - start)
        pieces, rest = self._pieces, self._end - end
        self._pieces = pieces[end : self._end]
        self._at, self._end = 0, rest
        view = memoryview(pieces)
        return Frame(view[start:middle], view[middle:end], blobs, end - start)
