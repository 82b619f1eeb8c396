"""Ordinary work with files inside the root, the temp directory and the runtime paths."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path


def temporary_file(w):
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.seek(0)
        assert file.read() == b"x"


def temporary_text_file(w):
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=w.root) as file:
        file.write("x")
        file.seek(0)
        assert file.read() == "x"


def named_temporary_file(w):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()
        assert Path(file.name).read_bytes() == b"x"
        name = file.name
    assert not os.path.exists(name)


def named_temporary_file_kept(w):
    file = tempfile.NamedTemporaryFile("w", delete=False, suffix=".txt", dir=w.root)
    file.write("x")
    file.close()
    os.unlink(file.name)


def temporary_directory(w):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a", "b").mkdir(parents=True)
        Path(folder, "a", "b", "f").write_text("x")
    assert not os.path.exists(folder)


def temporary_directory_finalised(w):
    import gc

    folder = tempfile.TemporaryDirectory(dir=w.root)
    Path(folder.name, "f").write_text("x")
    name = folder.name
    folder.cleanup()
    del folder
    gc.collect()
    assert not os.path.exists(name)


def mkstemp_and_mkdtemp(w):
    number, name = tempfile.mkstemp()
    os.write(number, b"x")
    os.close(number)
    os.unlink(name)
    folder = tempfile.mkdtemp(dir=w.root)
    os.rmdir(folder)


def spooled_file(w):
    with tempfile.SpooledTemporaryFile(max_size=4) as file:
        file.write(b"longer than four")
        file.seek(0)
        assert file.read() == b"longer than four"


def temp_directory_names(w):
    assert tempfile.gettempdir() == w.tmp
    assert os.path.isdir(tempfile.gettempdir())
    assert tempfile.gettempdirb() == os.fsencode(w.tmp)


def text_modes(w):
    path = Path(w.root, "t.txt")
    path.write_text("one\ntwo\n", encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        print("three", file=file)
    with path.open("r+", encoding="utf-8") as file:
        assert file.readline() == "one\n"
        file.seek(0)
        file.write("ONE")
    assert path.read_text(encoding="utf-8").split() == ["ONE", "two", "three"]


def binary_modes(w):
    path = os.path.join(w.root, "b.bin")
    with open(path, "xb") as file:
        file.write(bytes(range(256)))
    with open(path, "rb", buffering=0) as file:
        view = bytearray(16)
        assert file.readinto(view) == 16
    with open(path, "r+b") as file:
        file.seek(10)
        file.truncate()
    assert os.path.getsize(path) == 10


def opener_argument(w):
    path = os.path.join(w.root, "f")
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write("x")
    assert os.stat(path).st_mode & 0o777 == 0o600


def own_dir_opener(w):
    """The recipe of the documentation passes dir_fd, which is refused with a denial that names it."""
    number = os.open(w.root, os.O_RDONLY)
    try:
        open("f", "w", opener=lambda name, flags: os.open(name, flags, dir_fd=number))
    except PermissionError as error:
        assert type(error).__name__ == "FilesystemFdDenied"
    else:
        raise AssertionError("dir_fd passed")
    finally:
        os.close(number)


def descriptors_of_own(w):
    read_end, write_end = os.pipe()
    os.write(write_end, b"through")
    assert os.read(read_end, 10) == b"through"
    os.set_blocking(read_end, False)
    copy = os.dup(write_end)
    os.close(write_end)
    os.write(copy, b"again")
    with os.fdopen(read_end, "rb") as file:
        assert file.read(5) == b"again"
    os.close(copy)


def descriptor_files(w):
    number = os.open(os.path.join(w.root, "f"), os.O_RDWR | os.O_CREAT, 0o644)
    os.write(number, b"content")
    assert os.pread(number, 3, 0) == b"con"
    assert os.fstat(number).st_size == 7
    os.ftruncate(number, 3)
    os.fsync(number)
    os.fchmod(number, 0o600)
    assert os.lseek(number, 0, os.SEEK_END) == 3
    with os.fdopen(number, "r+b") as file:
        assert file.fileno() == number
        file.seek(0)
        assert file.read() == b"con"


def file_descriptor_reuse(w):
    with open(os.path.join(w.root, "f"), "w+b") as file:
        file.write(b"x")
        file.flush()
        with open(file.fileno(), "rb", closefd=False) as again:
            again.seek(0)
            assert again.read() == b"x"
        with open(os.dup(file.fileno()), "rb") as duplicate:
            duplicate.seek(0)
            assert duplicate.read() == b"x"


def locks(w):
    import fcntl

    with open(os.path.join(w.root, "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        fcntl.lockf(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_UN)
        assert fcntl.fcntl(file, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def sockets_of_own(w):
    import socket

    left, right = socket.socketpair()
    left.sendall(b"x")
    assert os.read(right.fileno(), 1) == b"x"
    with right.makefile("wb") as file:
        file.write(b"y")
    assert left.recv(1) == b"y"
    left.close()
    right.close()


def special_descriptors(w):
    number = os.eventfd(1)
    assert os.eventfd_read(number) == 1
    os.close(number)
    memory = os.memfd_create("m")
    os.write(memory, b"x")
    os.close(memory)
    leader, follower = os.openpty()
    assert os.isatty(follower)
    os.close(leader)
    os.close(follower)


def standard_streams(w):
    import sys

    print("a line", file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.write("")
    sys.stdout.flush()
    assert sys.stdin is None or isinstance(sys.stdin.isatty(), bool)


def memory_map(w):
    import mmap

    path = os.path.join(w.root, "m")
    Path(path).write_bytes(b"\0" * 4096)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:5] = b"hello"
        view.flush()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[:5] == b"hello"
    with mmap.mmap(-1, 4096) as anonymous:
        anonymous.write(b"x")


def bytes_paths(w):
    folder = os.fsencode(w.root)
    name = folder + b"/\xff\xfe-odd"
    with open(name, "wb") as file:
        file.write(b"x")
    assert os.listdir(folder) == [b"\xff\xfe-odd"]
    assert os.path.exists(name)
    os.rename(name, folder + b"/plain")
    assert [entry.name for entry in os.scandir(folder)] == [b"plain"]
    os.remove(folder + b"/plain")


def odd_names(w):
    for name in ("with space", "ünïcode", "日本", "new\nline", "-dash", "..dots", "a" * 255, "\udcff"):
        path = Path(w.root, name)
        path.write_text("x")
        assert path.read_text() == "x"
    assert len(os.listdir(w.root)) == 8


def metadata(w):
    path = Path(w.root, "f")
    path.touch()
    os.utime(path, (1, 2))
    assert path.stat().st_mtime == 2
    path.chmod(0o640)
    assert os.access(path, os.R_OK)
    os.chown(path, -1, -1)
    assert path.owner()
    assert os.path.getsize(path) == 0
    assert os.statvfs(w.root).f_bsize
    assert shutil.disk_usage(w.root).total
    os.truncate(path, 100)
    assert path.stat().st_size == 100
    try:
        os.setxattr(path, "user.mark", b"x")
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
    else:
        assert os.getxattr(path, "user.mark") == b"x"


def answers_of_stat(w):
    """All fields equal those that the interpreter reads from a descriptor, for each kind of time."""
    path = os.path.join(w.root, "dated")
    with open(path, "w+") as file:
        for seconds in (0, 1, 1_700_000_000, 4_000_000_000, -1, -1_000_000_000, 9_500_000_000):
            for fraction in (0, 1, 123_456_789, 999_999_999):
                moment = seconds * 10**9 + fraction
                os.utime(path, ns=(moment, moment))
                expected = os.fstat(file.fileno())
                for found in (os.stat(path), os.lstat(path), os.stat(os.fsencode(path))):
                    assert repr(found) == repr(expected)
                    assert found.__reduce__() == expected.__reduce__()
                    assert type(found) is os.stat_result
    with os.scandir(w.root) as entries:
        entry = next(entry for entry in entries if entry.name == "dated")
    assert entry.stat().__reduce__() == os.stat(path).__reduce__()


def arguments_of_stat(w):
    for arguments, keywords in (
        ((w.root, 1), {}),
        ((w.root,), {"unknown": 1}),
        ((w.root,), {"path": w.root}),
        ((), {}),
    ):
        for function in (os.stat, os.lstat):
            try:
                function(*arguments, **keywords)
            except TypeError:
                continue
            raise AssertionError((function, arguments, keywords))
    assert os.stat(path=w.root, follow_symlinks=False) == os.lstat(path=w.root)


def errors_are_the_systems(w):
    """Inside the root, errors are the kernel's errors, not denials."""
    missing = os.path.join(w.root, "missing")
    for call, expected in (
        (lambda: open(missing), FileNotFoundError),
        (lambda: os.stat(missing), FileNotFoundError),
        (lambda: os.unlink(missing), FileNotFoundError),
        (lambda: os.listdir(missing), FileNotFoundError),
        (lambda: os.mkdir(w.root), FileExistsError),
        (lambda: open(w.root), IsADirectoryError),
        (lambda: os.rmdir(os.path.dirname(__file_in(w))), OSError),
        (lambda: os.listdir(__file_in(w)), NotADirectoryError),
        (lambda: open(os.path.join(__file_in(w), "below")), NotADirectoryError),
        (lambda: os.readlink(__file_in(w)), OSError),
        (lambda: open(""), FileNotFoundError),
        (lambda: open(os.path.join(w.root, "x" * 300)), OSError),
        (lambda: open("nul\0byte"), ValueError),
        (lambda: open(None), TypeError),
        (lambda: os.stat(3.5), TypeError),
    ):
        try:
            call()
        except expected as error:
            assert not hasattr(error, "hint"), error
            if isinstance(error, FileNotFoundError | FileExistsError):
                assert error.filename in {missing, w.root, ""}, error.filename
        else:
            raise AssertionError(f"no {expected.__name__}")


def __file_in(w):
    path = os.path.join(w.root, "plain")
    with open(path, "w") as file:
        file.write("x")
    return path


def null_device(w):
    with open(os.devnull, "w") as file:
        print("nothing", file=file)
    assert open(os.devnull).read() == ""
    assert os.path.exists(os.devnull)


def fifos(w):
    import threading

    path = os.path.join(w.root, "fifo")
    os.mkfifo(path)

    def feed():
        with open(path, "w") as file:
            file.write("through")

    thread = threading.Thread(target=feed)
    thread.start()
    with open(path) as file:
        assert file.read() == "through"
    thread.join()


def file_names_on_objects(w):
    """A file object's name is the one it was opened by."""
    path = os.path.join(w.root, "f")
    with open(path, "w") as file:
        assert file.name == path
        assert repr(path)[1:-1] in repr(file)
    with open(Path(path), "rb") as file:
        assert file.name == path or str(file.name) == path
