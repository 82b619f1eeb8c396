"""Frames: what host and worker say to each other over a socket.

A frame is a header, a JSON text, and the bytes values that occur in it, raw. Reading one makes plain data and never an
object of any class: the other side may be in the hands of a subject. The JSON functions are the native ones, called
directly: guarded code lives in one process with the worker's end, and could put its own into the modules around them.
"""

from __future__ import annotations

import re
import struct
from json import encoder, scanner
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NoReturn

from democrai_sandbox.guard import plain
from democrai_sandbox.policy import InvalidInputError

from .errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 64 * 1024 * 1024
"""Bytes of one frame, unless told."""
CHUNK = 256 * 1024
"""Bytes to ask a socket for at a time."""
_DEEPEST = 72
_MOST_VALUES = 1_100_000
"""Both a little more than plain data may have: a message wraps its own lists around it."""
_HEADER = struct.Struct("!III")  # bytes of the text, bytes of the blobs, number of blobs
_SIZE = _HEADER.size
_unpack = _HEADER.unpack_from
_pack = _HEADER.pack
_SMALL = 4096
_TAG = "\0bytes"
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


class _BytesInside(Exception):  # noqa: N818 - a signal, no error
    """The text alone does not do: there are bytes values."""


def _bytes_inside(value: object) -> NoReturn:
    if type(value) is bytes:
        raise _BytesInside
    raise FrameError(f"not plain data: {type(value).__name__}")


def _refuse_constant(text: str) -> NoReturn:
    raise FrameError(f"{text} is not a finite number")


class _Reading:
    """How JSON is read, in the words of the native scanner."""

    strict = True
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)

    def __init__(self, hook: Callable[[dict[str, Any]], Any] | None) -> None:
        self.object_hook = hook


# The stubs know the ones in Python only. Kept here, where guarded code cannot exchange them.
_make_writer: Any = encoder.c_make_encoder  # type: ignore[attr-defined]
_make_reader: Any = scanner.c_make_scanner  # type: ignore[attr-defined]


def _writer(default: Callable[[object], object]) -> Callable[[Any, int], tuple[str, ...]]:
    """Return the native encoder: no look for cycles, which plain data has not, and no infinite numbers."""
    sort_keys = skip_keys = allow_nan = False
    made: Callable[[Any, int], tuple[str, ...]] = _make_writer(
        None, default, encode_basestring_ascii, None, ":", ",", sort_keys, skip_keys, allow_nan
    )
    return made


def _reader(hook: Callable[[dict[str, Any]], Any] | None) -> Callable[[str, int], tuple[Any, int]]:
    made: Callable[[str, int], tuple[Any, int]] = _make_reader(_Reading(hook))
    return made


_write = _writer(_bytes_inside)
_read = _reader(None)


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
    never be taken for bytes, nor the other way round.
    """
    tag = _TAG
    while True:
        blobs: list[bytes] = []
        key = encode_basestring_ascii(tag)
        text = "".join(_writer(_collector(blobs, tag))(message, 0))
        if text.count(f"{key}:") == len(blobs):
            return f"[{key},{[len(blob) for blob in blobs]},{text}]", blobs
        tag += "_"


def _collector(blobs: list[bytes], tag: str) -> Callable[[object], object]:
    def collect(value: object) -> dict[str, int]:
        if type(value) is not bytes:
            raise FrameError(f"not plain data: {type(value).__name__}")
        blobs.append(value)
        return {tag: len(blobs) - 1}

    return collect


# ---- reading ---------------------------------------------------------------------------------------------------------


class Inbox:
    """Puts frames together from what a socket gives, in whatever pieces."""

    __slots__ = ("_largest", "_pieces", "_room", "room")

    def __init__(self, *, largest: int = LARGEST) -> None:
        """Refuse frames that are larger."""
        self._largest = largest
        self._pieces = bytearray()
        self._room = bytearray(CHUNK)
        self.room = memoryview(self._room)
        """To receive into: made once, because a new one for each message would cost more than all the rest."""

    def feed(self, size: int) -> list[Any]:
        """Take so many bytes that were received, and return the messages that are complete now.

        What is no frame raises ``FrameError``; nothing can be read after it.
        """
        if not self._pieces and _SIZE <= size <= _SMALL:
            text_size, rest, blobs = _unpack(self._room)
            if _SIZE + text_size == size and not rest and not blobs:  # by far the most are one small frame
                return [_decode(self.room[_SIZE:size], b"", 0)]
        if self._pieces:
            self._pieces += self.room[:size]
            with memoryview(self._pieces) as pieces:
                messages, done = self._messages(pieces)
            del self._pieces[:done]
            return messages
        messages, done = self._messages(self.room[:size])
        if done != size:
            self._pieces += self.room[done:size]
        return messages

    def _messages(self, data: memoryview) -> tuple[list[Any], int]:
        """Return the messages, and how many bytes they took."""
        messages: list[Any] = []
        at = 0
        while len(data) - at >= _SIZE:
            size, rest, blobs = _unpack(data, at)
            if size + rest > self._largest or blobs > _MOST_VALUES:
                raise FrameError(f"a frame announces {size + rest} bytes, at most {self._largest} are taken")
            start = at + _SIZE
            end = start + size + rest
            if len(data) < end:
                break
            with data[start : start + size] as text, data[start + size : end] as raw:
                messages.append(_decode(text, bytes(raw), blobs))
            at = end
        return messages, at


def _decode(data: memoryview, raw: bytes, blobs: int) -> Any:
    try:
        text = str(data, "ascii")
        if len(text) > _MOST_VALUES:
            _check_size(text)
        if blobs:
            return _decode_blobs(text, raw, blobs)
        if raw:
            raise FrameError("bytes without a place")  # noqa: TRY301 - all of it is one refusal
        return _whole(_read, text)
    except FrameError:
        raise
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no frame of ours: {type(error).__name__}") from None


def _whole(read: Callable[[str, int], tuple[Any, int]], text: str) -> Any:
    try:
        value, end = read(text, 0)
    except StopIteration:
        raise FrameError("a frame without a message") from None
    if end != len(text):
        raise FrameError("more than one message in a frame")
    _check_depth(text, value)
    return value


def _decode_blobs(text: str, raw: bytes, blobs: int) -> Any:
    """Read the text twice: the first time for the key and the sizes, which stand before the message."""
    head = _whole(_read, text)
    if type(head) is not list or len(head) != 3 or type(head[0]) is not str or type(head[1]) is not list:  # noqa: PLR2004
        raise FrameError("bytes without their sizes")
    tag, sizes = head[0], head[1]
    if len(sizes) != blobs or any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != len(raw):
        raise FrameError("the sizes of the bytes do not add up")
    values, at = [], 0
    for size in sizes:
        values.append(raw[at : at + size])
        at += size

    def place(found: dict[str, Any]) -> Any:
        if len(found) != 1 or tag not in found:
            return found
        number = found[tag]
        if type(number) is not int or not 0 <= number < blobs:
            raise FrameError("bytes that are not there")
        return values[number]

    return _whole(_reader(place), text)[2]


def _check_size(text: str) -> None:
    """Refuse a small text that would become very many values in memory, before it does."""
    if text.count(",") > _MOST_VALUES and _STRING.sub("", text).count(",") > _MOST_VALUES:
        raise FrameError("too many values in a frame")


def _check_depth(text: str, value: Any) -> None:
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    level = [value]
    for _ in range(_DEEPEST):
        level = [child for parent in level for child in _children(parent) if type(child) in (list, dict)]
        if not level:
            return
    raise FrameError("a frame is nested too deep")


def _children(parent: Any) -> Any:
    if type(parent) is dict:
        return parent.values()
    return parent if type(parent) is list else ()
