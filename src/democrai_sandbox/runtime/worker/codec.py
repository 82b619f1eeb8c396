"""Frames: messages between host and worker over a socket.

A frame is a header, a JSON text, and the raw bytes values of the message, if they are not in shared memory.
Reading a frame creates only plain data, in linear time and within limits (``guard/_core/edge/worker_messages.c``). The
native JSON functions are called directly, because guarded code could replace those of the ``json`` module.
"""

from __future__ import annotations

import fcntl
import os
import struct
from json import encoder
from json.encoder import encode_basestring_ascii
from mmap import MAP_PRIVATE, PAGESIZE, mmap
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from democrai_sandbox.errors.extensions import FrameError
from democrai_sandbox.guard import plain, read_frame, small_frame, write_values
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

LARGEST = 64 * 1024 * 1024
"""Default maximum bytes of one frame."""
CHUNK = 64 * 1024
"""Bytes to receive from a socket at a time."""
LARGE = 32 * 1024
"""Bytes above which a text is not read on an event loop, and a frame is not copied."""
_LARGE_BLOBS = 4 * 1024 * 1024
"""The same limit for bytes values, which are only copied."""
_MOST_PARTS = 64
"""Bytes values of a frame that are sent separately; a frame with more is joined."""
DESCRIPTOR = struct.Struct("i")
"""A file descriptor that accompanies a frame."""
_HEADER = struct.Struct("!III")  # bytes of the text, bytes of the blobs, number of blobs and flags
_IN_MEMORY, _WAS_READ = 1 << 31, 1 << 30
"""Flags: the bytes values are in the sender's half of the shared memory; the receiver's half is returned to it.

Both: the values are in the half that is returned, which is faster to write after it was read.
"""
_FLAGS = _IN_MEMORY | _WAS_READ
_HALF = 4 * 1024 * 1024
_LARGEST_IN_MEMORY = _HALF - PAGESIZE
_ZERO = bytes(8)
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


class Half(NamedTuple):
    """Part of the shared memory: bytes values, and the counter of the bytes that are there so far."""

    counter: memoryview
    values: memoryview


class SharedMemory:
    """Memory of both processes for bytes values of large frames: half of it for each direction, one frame at a time.

    The frame is sent first, and its values are copied while the other side reads them. Bytes values have no structure,
    and each byte is read once, so a worker can only harm its own values.
    """

    __slots__ = ("_unwritten", "descriptor", "incoming", "is_free", "outgoing", "was_read")

    def __init__(self, descriptor: int, *, host: bool) -> None:
        """Map the memory behind a descriptor of ``create``, for the host or for the worker."""
        self.descriptor = descriptor
        whole = memoryview(mmap(descriptor, 2 * _HALF))
        halves = [Half(whole[at : at + PAGESIZE], whole[at + PAGESIZE : at + _HALF]) for at in (0, _HALF)]
        self.outgoing, self.incoming = halves if host else reversed(halves)
        self.is_free = True
        """Whether the other side has returned the outgoing half."""
        self.was_read = False
        """Whether incoming values were read; the next frame returns their half."""
        self._unwritten: tuple[Half, list[bytes]] | None = None

    @classmethod
    def create(cls) -> SharedMemory:
        """Create memory whose size no process can change."""
        descriptor = os.memfd_create("worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, 2 * _HALF)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(descriptor, host=True)
        except BaseException:
            os.close(descriptor)
            raise

    def close_descriptor(self) -> None:
        """Close the descriptor, when the other process has it; the memory stays mapped."""
        os.close(self.descriptor)

    def unmap(self) -> None:
        """Give up the memory. Errors with a traceback may keep this object alive."""
        self.outgoing = self.incoming = Half(memoryview(b""), memoryview(b""))
        self._unwritten = None

    def flags(self, blobs: list[bytes], size: int) -> int:
        """Return the flags of the next frame, and take its bytes values if they fit; ``write`` must follow."""
        was_read, self.was_read = self.was_read, False
        flags = _WAS_READ if was_read else 0
        if not LARGE < size <= _LARGEST_IN_MEMORY or not (was_read or self.is_free):
            return flags
        half = self.incoming if was_read else self.outgoing
        if not was_read:
            self.is_free = False
        half.counter[: len(_ZERO)] = _ZERO
        self._unwritten = half, blobs
        return flags | _IN_MEMORY

    def write(self) -> None:
        """Copy the bytes values of a frame that has been sent."""
        if self._unwritten is not None:
            (counter, values), blobs = self._unwritten
            self._unwritten = None
            write_values(counter, values, blobs)

    def half_of(self, flags: int) -> Half:
        """Return where the values of an arrived frame are."""
        return self.outgoing if flags & _WAS_READ else self.incoming

    def release(self, flags: int) -> None:
        """Let the memory of a decoded frame be used again."""
        if flags == _IN_MEMORY:
            self.was_read = True
        elif flags:
            self.is_free = True


# ---- writing ---------------------------------------------------------------------------------------------------------


def encode(message: Any, *, largest: int = LARGEST) -> bytes:
    """Return the frame of a message of plain data; tuples become lists.

    Raise ``InvalidInputError`` with the location of a value that is not plain, and for a frame that is too large.
    """
    parts = encode_parts(message, largest=largest)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def encode_parts(message: Any, *, largest: int = LARGEST, shared: SharedMemory | None = None) -> tuple[bytes, ...]:
    """Return the frame as texts to send one after another: large bytes values are not copied. Else as ``encode``.

    With shared memory the frames must be sent in the order in which they were encoded, each followed by
    ``SharedMemory.write``.
    """
    made = encode_small(message, largest, shared)
    return (made,) if isinstance(made, bytes) else frame_of(made or write(message, largest=largest), shared)


def encode_small(message: Any, largest: int, shared: SharedMemory | None) -> bytes | Written | None:
    """Return the frame of a small message, or what ``frame_of`` makes it of; None if ``write`` has to encode it."""
    made = small_frame(message)
    if made is None:
        return None
    if type(made) is bytes:
        if len(made) > _SIZE + largest:
            return None
        return made if shared is None or not shared.was_read else Written(made[_SIZE:], [], 0)
    written = Written(*made)
    return written if len(written.text) + written.size <= largest else None


class Written(NamedTuple):
    """A message that is encoded, but not framed yet."""

    text: bytes
    blobs: list[bytes]
    size: int
    """Bytes of the blobs."""


def write(message: Any, *, largest: int = LARGEST) -> Written:
    """Do the first and longer part of ``encode_parts``, which does not depend on other frames."""
    message = plain(message, lists=True)
    blobs: list[bytes] = []
    try:
        text = "".join(_write(message, 0))
    except _BytesInside:
        text, blobs = _text_and_blobs(message)
    rest = sum(map(len, blobs)) if blobs else 0
    if len(text) + rest > largest:
        raise InvalidInputError.of(f"the message has {len(text) + rest} bytes; at most {largest} are allowed")
    return Written(text.encode("ascii"), blobs, rest)


def frame_of(written: Written, shared: SharedMemory | None) -> tuple[bytes, ...]:
    """Do the other part of ``encode_parts``."""
    text, blobs, rest = written
    flags = 0 if shared is None else shared.flags(blobs, rest)
    head = _pack(len(text), rest, len(blobs) | flags) + text
    if not blobs or flags & _IN_MEMORY:
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
        tag = f"\0{os.urandom(8).hex()}"
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
    flags: int = 0
    counter: memoryview | None = None
    """The counter of bytes values that may still be arriving."""

    @property
    def is_slow(self) -> bool:
        """Whether decoding it would block an event loop for too long."""
        return self.size > LARGE and (len(self.text) > LARGE or self.size > _LARGE_BLOBS)

    def kept(self) -> Frame:
        """Return it with its own copy of the memory."""
        in_memory = self.flags & _IN_MEMORY  # then only the text was received, and the values stay where they are
        if (len(self.text) if in_memory else self.size) > LARGE:
            return self
        return self._replace(text=bytes(self.text), raw=self.raw if in_memory else bytes(self.raw))


def decode(frame: Frame, *, waits: bool = False) -> tuple[Any, int]:
    """Return the message in a frame and its number of values; raise ``FrameError`` if it is malformed.

    A slow frame releases the GIL meanwhile. Without ``waits``, raise ``BlockingIOError`` if bytes values do not arrive
    within about 0.3 ms.
    """
    return _decoded(frame.text, frame.raw, frame.blobs, frame.is_slow, frame.counter, waits)


def decode_text(text: bytes | memoryview) -> tuple[Any, int]:
    """Return the message in a text without bytes values and its number of values, like ``decode``."""
    return _decoded(text, b"", 0, False)  # noqa: FBT003 - positional-only


def _decoded(*parts: Any) -> tuple[Any, int]:
    try:
        return read_frame(*parts)
    except (ValueError, MemoryError) as error:
        raise FrameError(str(error) or "it needs too much memory") from None


class FrameReader:
    """Assembles frames from received bytes."""

    __slots__ = ("_at", "_begun", "_end", "_filled", "_largest", "_pieces", "_room", "_shared", "room")

    def __init__(self, *, largest: int = LARGEST, shared: SharedMemory | None = None) -> None:
        """Refuse frames that are larger than ``largest``."""
        self._largest = largest
        self._shared = shared
        self._pieces = bytearray()
        """Unused bytes of earlier reads; empty while the room holds everything."""
        self._room = mmap(-1, CHUNK, flags=MAP_PRIVATE)  # uses memory only as far as it is filled
        self.room = memoryview(self._room)
        """Buffer to receive into: allocated once, except for the rest of a large frame, which is received in place."""
        self._at = self._end = 0
        self._begun: Frame | None = None
        """Large frame of which a part has arrived."""
        self._filled = 0

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

    def whole(self, size: int) -> memoryview | Frame | None:
        """Return the frame if the received bytes are a small one, and nothing else is left; else they must be added.

        A frame without flags and bytes values is its text; ``release`` must follow for others.
        """
        if not _SIZE <= size <= LARGE or not self.is_empty:
            return None
        length, rest, blobs = _unpack(self._room, 0)
        if length != size - _SIZE or length + rest > self._largest:
            return None
        text = self.room[_SIZE:size]
        if not rest and not blobs:
            return text
        flags = blobs & _FLAGS
        if self._shared is None or not flags & _IN_MEMORY or rest > _LARGEST_IN_MEMORY:
            return None
        counter, values = self._shared.half_of(flags)
        return Frame(text, values[:rest], blobs ^ flags, length + rest, flags, counter)

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
        """Return the next frame; None if it is incomplete. Raise ``FrameError`` if it is malformed.

        ``release`` must follow when it has been decoded.
        """
        frame = self._found()
        if frame is None or not frame.flags:
            return frame
        shared, rest = self._shared, frame.size - len(frame.text)
        if shared is None or (frame.flags & _IN_MEMORY and rest > _LARGEST_IN_MEMORY):
            raise FrameError("a frame refers to shared memory that does not exist")
        if not frame.flags & _IN_MEMORY:
            return frame
        counter, values = shared.half_of(frame.flags)
        return frame._replace(raw=values[:rest], counter=counter)

    def release(self, frame: Frame) -> None:
        """Let the memory of a decoded frame be used again."""
        if self._shared is not None:
            self._shared.release(frame.flags)

    def _found(self) -> Frame | None:
        if self._begun is not None:
            return self._completed(self._begun)
        start = self._at + _SIZE
        if start > self._end:
            self.keep()
            return None
        size, rest, blobs = _unpack(self._pieces or self._room, self._at)
        flags = blobs & _FLAGS
        blobs ^= flags
        total = size + rest
        if total > self._largest or blobs > size:  # the text contains the size of each blob
            raise FrameError(f"a frame announces {total} bytes; at most {self._largest} are allowed")
        middle = start + size
        end = middle if flags & _IN_MEMORY else middle + rest
        if end > self._end:
            if end - start > LARGE:
                whole = self._begin(end - start)
                self._begun = Frame(whole[:size], whole[size:], blobs, total, flags)
            else:
                self.keep()
            return None
        self._at = end
        text: bytes | memoryview
        raw: bytes | memoryview
        if end - start > LARGE:
            text, raw = self._large(start, middle, end)
        elif self._pieces:
            text, raw = bytes(self._pieces[start:middle]), bytes(self._pieces[middle:end])
        else:
            text, raw = self.room[start:middle], self.room[middle:end]
        return Frame(text, raw, blobs, total, flags)

    def _begin(self, size: int) -> memoryview:
        """Receive the rest of a large frame directly into its memory, which is returned."""
        whole = memoryview(bytearray(size))
        arrived = memoryview(self._pieces or self._room)[self._at + _SIZE : self._end]
        self._filled = len(arrived)
        whole[: self._filled] = arrived
        arrived.release()
        self._pieces = bytearray()
        self._at = self._end = 0
        self.room = whole[self._filled :]
        return whole

    def _completed(self, frame: Frame) -> Frame | None:
        if self._filled < len(frame.text) + len(frame.raw):
            return None
        self._begun = None
        self.room = memoryview(self._room)
        return frame

    def count(self, most: int) -> int:
        """Return the number of complete frames, counted up to ``most``."""
        if self._begun is not None:
            return int(self._filled == len(self._begun.text) + len(self._begun.raw))
        found, at, data = 0, self._at, self._pieces or self._room
        while found < most and at + _SIZE <= self._end:
            size, rest, flags = _unpack(data, at)
            at += _SIZE + size + (0 if flags & _IN_MEMORY else rest)
            found += at <= self._end
        return found

    def feed(self, size: int) -> list[Any]:
        """Add ``size`` received bytes, and return the complete messages.

        Raise ``FrameError`` if one is malformed; nothing can be read after that.
        """
        whole = self.whole(size)
        if type(whole) is memoryview:
            return [decode_text(whole)[0]]
        if whole is None:
            self.add(size)
        messages = []
        while (frame := whole or self.next()) is not None:
            messages.append(decode(frame, waits=True)[0])
            self.release(frame)
            whole = None
        return messages

    def _large(self, start: int, middle: int, end: int) -> tuple[memoryview, memoryview]:
        """Return text and blobs of a large frame without copying them: hand over the memory, and move the rest."""
        if not self._pieces:
            view = memoryview(bytes(self.room[start:end]))
            return view[: middle - start], view[middle - start :]
        pieces, rest = self._pieces, self._end - end
        self._pieces = pieces[end : self._end]
        self._at, self._end = 0, rest
        view = memoryview(pieces)
        return view[start:middle], view[middle:end]
