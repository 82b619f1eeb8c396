"""Other types for paths: the guard checks the path that will be opened."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, FILES_OR_FD, SANDBOX, Ground, attack, attacks_of


class LyingStr(str):
    """A string that tells every Python-level question it was inside all along."""

    truth = ""
    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(LyingStr.truth)

    def __str__(self) -> str:
        return LyingStr.truth

    def __fspath__(self) -> str:
        return LyingStr.truth

    def encode(self, *_: object) -> bytes:
        return LyingStr.truth.encode()


class LyingBytes(bytes):
    """The same for bytes."""

    def startswith(self, *_: object) -> bool:
        return True

    def decode(self, *_: object) -> str:
        return LyingStr.truth

    def __fspath__(self) -> bytes:
        return LyingStr.truth.encode()

    __hash__ = bytes.__hash__


class Flipping:
    """A path object whose answer changes from one call to the next."""

    def __init__(self, ground: Ground, after: int, kind: type = str) -> None:
        self.good, self.bad, self.after, self.calls = f"{ground.inside}/own.txt", ground.outside, after, 0
        self.kind = kind

    def __fspath__(self) -> object:
        self.calls += 1
        return self.kind(self.good if self.calls <= self.after else self.bad)


class Likeness:
    """A path object that has always the same answer, of a type of choice."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def __fspath__(self) -> object:
        return self.answer


def lying(ground: Ground) -> LyingStr:
    LyingStr.truth = f"{ground.inside}/own.txt"
    open(LyingStr.truth).close()
    return LyingStr(ground.outside)


def pathlib_cached(ground: Ground) -> object:
    from pathlib import Path

    path = Path(f"{ground.inside}/own.txt")
    path._str = ground.outside
    return open(path).read()


attacks_of(
    {
        "bytes": lambda ground: open(ground.outside.encode()).read(),
        "bytes_os_open": lambda ground: os.read(os.open(ground.outside.encode(), 0), 99),
        "bytes_stat": lambda ground: os.stat(ground.outside.encode()).st_size > 0,
        "bytes_scandir": lambda ground: any(os.scandir(ground.outside_dir.encode())),
        "str_subclass": lambda ground: open(lying(ground)).read(),
        "str_subclass_stat": lambda ground: os.stat(lying(ground)).st_size == len(ground.SECRET),
        "str_subclass_os_open": lambda ground: os.read(os.open(lying(ground), 0), 99),
        "str_subclass_remove": lambda ground: os.remove(lying(ground)),
        "bytes_subclass": lambda ground: open(LyingBytes(ground.outside.encode())).read(),
        "bytes_subclass_stat": lambda ground: os.stat(LyingBytes(ground.outside.encode())).st_size > 0,
        "path_object": lambda ground: open(Likeness(ground.outside)).read(),
        "path_object_bytes": lambda ground: open(Likeness(ground.outside.encode())).read(),
        "path_object_str_subclass": lambda ground: open(Likeness(lying(ground))).read(),
        "path_object_stat": lambda ground: os.stat(Likeness(lying(ground))).st_size == len(ground.SECRET),
        "path_object_rename": lambda ground: os.rename(Likeness(ground.outside), f"{ground.inside}/l"),
        "DirEntry_like": lambda ground: os.listdir(Likeness(ground.outside_dir)) != [],
        "pathlib_cached_text": pathlib_cached,
    },
    "a path of another type ({}) reaches outside",
    expect=FILES,
)


@attack("a str subclass forges equality and hash of a path that was allowed before", expect=FILES)
def forged_cache_key(ground: Ground) -> object:
    path = lying(ground)
    for _ in range(3):
        open(LyingStr.truth).close()
        os.stat(LyingStr.truth)
    return open(path).read()


@attack("an old spelling, a bytearray, is taken for a path", expect=FILES.or_raises("TypeError"), until=(3, 11))
def bytearray_path(ground: Ground) -> bool:
    return os.stat(bytearray(ground.outside.encode())).st_size > 0


@attack("a memoryview is taken for a path", expect=FILES.or_raises("TypeError"), until=(3, 11))
def memoryview_path(ground: Ground) -> bool:
    return "secret.txt" in os.listdir(memoryview(ground.outside_dir.encode())) or bool(
        os.lstat(memoryview(ground.outside.encode())).st_size
    )


def tries(act, ground: Ground, kind: type = str) -> object:
    """Try the act with objects that flip after no, one, two and three calls."""
    last: BaseException | None = None
    for after in range(4):
        try:
            found = act(Flipping(ground, after, kind))
        except OSError as error:
            last = error
            continue
        if found is True or (found is not True and ground.SECRET in str(found)):
            return found
    raise last or RuntimeError("never denied")


def is_secret(size: int) -> bool:
    return size == len(Ground.SECRET)


attacks_of(
    {
        "open": lambda ground: tries(lambda path: open(path).read(), ground),
        "open_bytes": lambda ground: tries(lambda path: open(path).read(), ground, kind=lambda text: text.encode()),
        "FileIO": lambda ground: tries(lambda path: __import__("io").FileIO(path).read(), ground),
        "os_open": lambda ground: tries(lambda path: os.read(os.open(path, 0), 99), ground),
        "stat": lambda ground: tries(lambda path: is_secret(os.stat(path).st_size), ground),
        "lstat": lambda ground: tries(lambda path: is_secret(os.lstat(path).st_size), ground),
        "Path": lambda ground: tries(lambda path: __import__("pathlib").Path(path).read_text(), ground),
        "open_code": lambda ground: tries(lambda path: __import__("io").open_code(os.fspath(path)).read(), ground),
        "copyfile": lambda ground: tries(
            lambda path: (
                __import__("shutil").copyfile(path, f"{ground.inside}/l") and open(f"{ground.inside}/l").read()
            ),
            ground,
        ),
    },
    "a path object that changes its answer is given to {}",
    expect=FILES,
    group="flipping_",
)


@attack("a path object flips while a file is moved", expect=FILES)
def flipping_rename(ground: Ground) -> None:
    for after in range(4):
        open(f"{ground.inside}/own.txt", "w").close()
        os.rename(Flipping(ground, after), f"{ground.inside}/moved")


@attack("a path object flips while a file is removed", expect=FILES)
def flipping_remove(ground: Ground) -> None:
    for after in range(4):
        open(f"{ground.inside}/own.txt", "w").close()
        os.remove(Flipping(ground, after))


class Sly:
    """A path object that uses the moment of the check for itself."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def __fspath__(self) -> str:
        self.ground.steal()
        return f"{self.ground.inside}/own.txt"


attacks_of(
    {
        "open": lambda ground: open(Sly(ground)).close(),
        "stat": lambda ground: os.stat(Sly(ground)) and None,
        "os_open": lambda ground: os.open(Sly(ground), 0) and None,
        "rename": lambda ground: os.rename(Sly(ground), f"{ground.inside}/moved"),
        "chdir": lambda ground: os.chmod(Sly(ground), 0o600),
    },
    "code runs during the check of {}",
    expect=FILES,
    group="during_",
)


class NumberLike:
    """Calls itself an int, has `__fspath__`."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def __class__(self) -> type:
        return int

    def __fspath__(self) -> str:
        return self.path


class FlippingNumber:
    """An index that is a good descriptor at first and the host's afterwards."""

    def __init__(self, good: int, bad: int, after: int) -> None:
        self.good, self.bad, self.after, self.calls = good, bad, after, 0

    def __index__(self) -> int:
        self.calls += 1
        return self.good if self.calls <= self.after else self.bad


@attack("an object says it is an int and is opened as a path", expect=FILES)
def forged_class(ground: Ground) -> object:
    return open(NumberLike(ground.outside)).read()


@attack("an object says it is an int and is asked about as a path", expect=FILES)
def forged_class_stat(ground: Ground) -> bool:
    return os.stat(NumberLike(ground.outside)).st_size > 0


def hold_descriptor(ground: Ground) -> None:
    ground.held.fd = os.open(ground.outside, os.O_RDONLY)


def flip_numbers(ground: Ground, act) -> object:
    own = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    last: BaseException | None = None
    for after in range(4):
        try:
            found = act(FlippingNumber(own, ground.held.fd, after))
        except OSError as error:
            last = error
            continue
        if found is True or (isinstance(found, (str, bytes)) and ground.SECRET in str(found)):
            return found
    raise last or RuntimeError("never denied")


attacks_of(
    {
        "open": lambda ground: flip_numbers(ground, lambda number: open(number, closefd=False).read()),
        "FileIO": lambda ground: flip_numbers(ground, lambda n: __import__("io").FileIO(n, closefd=False).read()),
        "stat": lambda ground: flip_numbers(ground, lambda number: is_secret(os.stat(number).st_size)),
        "read": lambda ground: flip_numbers(ground, lambda number: os.pread(number, 99, 0)),
    },
    "a number that changes is given to {}",
    expect=FILES_OR_FD,
    group="flipping_number_",
    prepare=hold_descriptor,
)


class FlippingFlags:
    """Flags that ask for reading first and for truncation afterwards."""

    def __init__(self, after: int) -> None:
        self.after, self.calls = after, 0

    def __index__(self) -> int:
        self.calls += 1
        return os.O_RDONLY if self.calls <= self.after else os.O_RDWR | os.O_TRUNC


@attack("flags that change empty a file that may only be read", expect=FILES)
def flipping_flags(ground: Ground) -> None:
    for after in range(4):
        os.open(ground.readonly_file, FlippingFlags(after))


class LyingMode(str):
    """A mode that looks like reading."""

    __slots__ = ()

    def __contains__(self, item: object) -> bool:
        return item == "r"

    def __iter__(self):
        return iter("r")

    def __str__(self) -> str:
        return "r"

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "r"


@attack("a mode of a str subclass hides that it writes", expect=FILES)
def lying_mode(ground: Ground) -> None:
    open(ground.readonly_file, LyingMode("w")).write("changed")


@attack("a mode of a str subclass hides from FileIO that it writes", expect=FILES)
def lying_mode_fileio(ground: Ground) -> None:
    import io

    io.FileIO(ground.readonly_file, LyingMode("r+")).write(b"changed")


@attack("keyword names of a str subclass carry the path", expect=FILES)
def keyword_subclass(ground: Ground) -> bool:
    class Name(str):
        __slots__ = ()

    return os.stat(**{Name("path"): ground.outside}).st_size > 0


@attack("the same file is named by its descriptor's path object", expect=SANDBOX, prepare=hold_descriptor)
def path_object_of_number(ground: Ground) -> object:
    return open(Likeness(f"/proc/self/fd/{ground.held.fd}")).read()


@attack(
    "code that runs while a file object is made, between check and announcement, makes a library write outside",
    expect=FILES,
)
def during_announcement(ground: Ground) -> None:
    import io
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    class Sly(io.FileIO):
        def __setattr__(self, name: str, value: object) -> None:
            ground.attempt(lambda: setattr(context, "keylog_filename", f"{ground.outside_dir}/new"))
            super().__setattr__(name, value)

    Sly(f"{ground.inside}/own.txt").close()
