"""Ordinary work with files: everything stays inside the root, the temp directory or the runtime paths."""

from __future__ import annotations

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
    """The recipe of the documentation passes dir_fd: refused, with a denial that names it."""
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


def walking(w):
    top = Path(w.root, "tree")
    for name in ("a/b/c", "a/d"):
        (top / name).mkdir(parents=True)
        (top / name / "f.txt").write_text(name)
    assert len(list(os.walk(top))) == 5
    assert sum(len(files) for _, _, files in os.walk(top, topdown=False)) == 2
    assert len(list(top.rglob("*.txt"))) == 2
    assert sorted(path.name for path in top.glob("a/*")) == ["b", "d"]
    assert sorted(entry.name for entry in os.scandir(top / "a") if entry.is_dir()) == ["b", "d"]
    with os.scandir(top / "a" / "d") as entries:
        (entry,) = entries
        assert entry.is_file()
        assert entry.stat().st_size == 3
        assert Path(entry).read_text() == "a/d"
        assert open(entry).read() == "a/d"


def globbing(w):
    import fnmatch
    import glob

    for name in ("a.py", "b.py", "c.txt"):
        Path(w.root, name).write_text("")
    assert len(glob.glob(os.path.join(w.root, "*.py"))) == 2
    assert len(glob.glob("**/*.txt", root_dir=w.root, recursive=True)) == 1
    assert fnmatch.filter(os.listdir(w.root), "*.py")


def walking_by_descriptor(w):
    """os.fwalk works with dir_fd: it may be refused, with a denial that says so, but not lose half of the tree."""
    Path(w.root, "sub", "deep").mkdir(parents=True)
    try:
        found = list(os.fwalk(w.root))
    except PermissionError as error:
        assert type(error).__name__ == "FilesystemFdDenied"
    else:
        assert len(found) == 3, found


def copying(w):
    source = Path(w.root, "source")
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_text("x")
    (source / "link").symlink_to("sub/f")
    shutil.copytree(source, Path(w.root, "copy"))
    shutil.copytree(source, Path(w.root, "links"), symlinks=True)
    assert Path(w.root, "links", "link").is_symlink()
    shutil.copytree(source, Path(w.root, "copy"), dirs_exist_ok=True)
    for function in (shutil.copy, shutil.copy2, shutil.copyfile):
        function(source / "sub" / "f", Path(w.root, function.__name__))
    shutil.copystat(source / "sub" / "f", Path(w.root, "copy"))
    shutil.copymode(source / "sub" / "f", Path(w.root, "copyfile"))


def moving_and_removing(w):
    tree = Path(w.root, "tree")
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "f").write_text("x")
    shutil.move(tree / "a", Path(w.root, "moved"))
    assert Path(w.root, "moved", "b", "f").read_text() == "x"
    shutil.move(str(Path(w.root, "moved", "b", "f")), str(tree))
    assert (tree / "f").exists()
    shutil.rmtree(Path(w.root, "moved"))
    shutil.rmtree(tree)
    shutil.rmtree(tree, ignore_errors=True)
    assert os.listdir(w.root) == []


def across_roots(w):
    """Moving between two places the subject may use, on one or two file systems."""
    path = Path(tempfile.mkdtemp(), "f")
    path.write_text("x")
    shutil.move(path, Path(w.root, "f"))
    assert Path(w.root, "f").read_text() == "x"
    shutil.rmtree(path.parent)


def archives(w):
    import gzip
    import tarfile
    import zipfile

    folder = Path(w.root, "content")
    folder.mkdir()
    (folder / "f.txt").write_text("text")
    with zipfile.ZipFile(Path(w.root, "a.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "f.txt", "f.txt")
        archive.writestr("g.txt", "more")
    with zipfile.ZipFile(Path(w.root, "a.zip")) as archive:
        archive.extractall(Path(w.root, "unzipped"))
        assert archive.read("g.txt") == b"more"
        assert (zipfile.Path(archive) / "f.txt").read_text() == "text"
    with tarfile.open(Path(w.root, "a.tar.gz"), "w:gz") as archive:
        archive.add(folder, "content")
    with tarfile.open(Path(w.root, "a.tar.gz")) as archive:
        archive.extractall(Path(w.root, "untarred"), filter="data")
    with gzip.open(Path(w.root, "a.gz"), "wt") as file:
        file.write("x")
    assert gzip.open(Path(w.root, "a.gz"), "rt").read() == "x"
    assert Path(w.root, "untarred", "content", "f.txt").read_text() == "text"


def other_compressions(w):
    import bz2
    import lzma

    for module in (bz2, lzma):
        path = os.path.join(w.root, module.__name__)
        with module.open(path, "wb") as file:
            file.write(b"x" * 1000)
        with module.open(path, "rb") as file:
            assert file.read() == b"x" * 1000


def archives_by_shutil(w):
    folder = Path(w.root, "content")
    folder.mkdir()
    (folder / "f.txt").write_text("text")
    for kind in ("zip", "tar", "gztar"):
        name = shutil.make_archive(os.path.join(w.root, kind), kind, folder)
        shutil.unpack_archive(name, os.path.join(w.root, f"un{kind}"))
        assert Path(w.root, f"un{kind}", "f.txt").read_text() == "text"


def zip_imports(w):
    import sys
    import zipfile

    path = os.path.join(w.root, "packed.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside_a_zip.py", "value = 7")
    sys.path.insert(0, path)
    try:
        import inside_a_zip

        assert inside_a_zip.value == 7
    finally:
        sys.path.remove(path)


def imports_from_the_root(w):
    import importlib
    import sys

    Path(w.root, "package_of_subject").mkdir()
    Path(w.root, "package_of_subject", "__init__.py").write_text("from .part import value")
    Path(w.root, "package_of_subject", "part.py").write_text("value = 5")
    sys.path.insert(0, w.root)
    importlib.invalidate_caches()
    try:
        assert importlib.import_module("package_of_subject").value == 5
    finally:
        sys.path.remove(w.root)


def relative_paths(w):
    os.chdir(w.root)
    Path("f").write_text("x")
    os.mkdir("sub")
    os.chdir("sub")
    assert os.path.exists("../f")
    assert open("../f").read() == "x"
    assert Path("..").resolve() == Path(w.root).resolve()
    assert os.path.relpath("../f", os.path.realpath(w.root)) == "f"
    assert os.getcwd().endswith("sub")
    os.chdir("..")
    os.rename("f", "sub/f")
    assert os.listdir("sub") == ["f"]
    assert os.listdir() == ["sub"]
    assert [entry.name for entry in os.scandir()] == ["sub"]


def links_inside(w):
    Path(w.root, "f").write_text("x")
    os.mkdir(os.path.join(w.root, "d"))
    os.symlink("f", os.path.join(w.root, "relative"))
    os.symlink(os.path.join(w.root, "f"), os.path.join(w.root, "absolute"))
    os.symlink("../f", os.path.join(w.root, "d", "up"))
    os.symlink("d", os.path.join(w.root, "folder"))
    os.symlink("later", os.path.join(w.root, "dangling"))
    for name in ("relative", "absolute", "d/up", "folder/up"):
        assert Path(w.root, name).read_text() == "x"
    assert os.readlink(os.path.join(w.root, "relative")) == "f"
    assert not os.path.exists(os.path.join(w.root, "dangling"))
    assert os.path.lexists(os.path.join(w.root, "dangling"))
    Path(w.root, "dangling").write_text("through")
    assert Path(w.root, "later").read_text() == "through"
    assert os.path.realpath(os.path.join(w.root, "folder", "up")) == os.path.realpath(os.path.join(w.root, "f"))
    os.link(os.path.join(w.root, "f"), os.path.join(w.root, "hard"))
    assert os.path.samefile(os.path.join(w.root, "hard"), os.path.join(w.root, "f"))
    os.unlink(os.path.join(w.root, "relative"))
    assert Path(w.root, "f").exists()


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


def deep_folders(w):
    path = Path(w.root, *["d" * 20] * 40)
    path.mkdir(parents=True)
    (path / "f").write_text("x")
    assert (path / "f").read_text() == "x"
    shutil.rmtree(Path(w.root, "d" * 20))


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
    os.setxattr(path, "user.mark", b"x")
    assert os.getxattr(path, "user.mark") == b"x"


def errors_are_the_systems(w):
    """Inside the root what is missing is missing and what is there is there: the kernel's errors, not denials."""
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
