"""Ordinary work with folders, links and archives, all inside the root."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


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
    """os.fwalk uses dir_fd: it may be refused with a denial, but must not lose half of the tree."""
    Path(w.root, "sub", "deep").mkdir(parents=True)
    try:
        found = list(os.fwalk(w.root))
    except PermissionError as error:
        assert type(error).__name__ == "FilesystemFdDenied"
    else:
        assert len(found) == 3, found


def listing_by_descriptor(w):
    folder = Path(w.root, "by-number")
    folder.mkdir()
    (folder / "f.txt").write_text("abc")
    (folder / "to-f").symlink_to("f.txt")
    number = os.open(folder, os.O_RDONLY)
    with os.scandir(number) as entries:
        found = {entry.name: entry for entry in entries}
    assert {name: entry.path for name, entry in found.items()} == {"f.txt": "f.txt", "to-f": "to-f"}
    assert found["to-f"].is_symlink()
    assert [entry.is_file() for entry in found.values()] == [True, True]
    assert [entry.stat().st_size for entry in found.values()] == [3, 3]
    os.close(number)


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
    """Move between two allowed places, on one or two file systems."""
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
        # The first versions of 3.11 have no filters.
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(Path(w.root, "untarred"), **filtered)
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


def deep_folders(w):
    path = Path(w.root, *["d" * 20] * 40)
    path.mkdir(parents=True)
    (path / "f").write_text("x")
    assert (path / "f").read_text() == "x"
    shutil.rmtree(Path(w.root, "d" * 20))


def folders_above(w):
    above = os.path.dirname(w.root)
    assert os.path.isdir(above)
    assert os.path.exists("/")
    assert os.path.realpath(w.root, strict=True) == os.path.realpath(w.root)
    os.makedirs(w.root, exist_ok=True)
    assert os.path.ismount("/")
    assert not os.path.ismount(w.root)


def search_path(w):
    import shutil

    assert shutil.which("a-program-that-is-nowhere") is None
    assert shutil.which("a-program-that-is-nowhere", path=f"/nowhere:{w.root}") is None
