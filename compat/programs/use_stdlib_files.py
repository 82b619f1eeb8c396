"""Standard library: paths, temporary files, archives, globs and SQLite."""

from __future__ import annotations


def main(folder: str) -> object:
    import fileinput
    import glob
    import mmap
    import os
    import pathlib
    import pickle
    import shelve
    import shutil
    import sqlite3
    import tarfile
    import tempfile
    import zipfile

    root = pathlib.Path(folder).resolve(strict=True)
    os.makedirs(folder, exist_ok=True)
    try:
        (root / "missing").resolve(strict=True)
        strict = "found"
    except FileNotFoundError:
        strict = "missing"
    source = root / "source"
    (source / "deep" / "deeper").mkdir(parents=True, exist_ok=True)
    (source / "a.txt").write_text("hello\nworld\n", encoding="utf-8")
    (source / "deep" / "b.bin").write_bytes(b"\x00\x01" * 50)
    (source / "link").symlink_to("a.txt")

    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        with tempfile.NamedTemporaryFile("w+", dir=temporary, suffix=".txt") as file:
            file.write("temporary")
            file.seek(0)
            temporary_text = file.read()
        handle, name = tempfile.mkstemp(dir=temporary)
        os.close(handle)
        os.chmod(name, 0o600)
        mode = oct(os.stat(name).st_mode & 0o777)
    with tempfile.SpooledTemporaryFile(max_size=10, dir=folder) as spooled:
        spooled.write(b"x" * 100)
        rolled = spooled.tell()

    shutil.copytree(source, root / "copy", symlinks=True)
    archives = {}
    for kind in ("zip", "gztar", "xztar"):
        archive = shutil.make_archive(str(root / ("archive-" + kind)), kind, source)
        shutil.unpack_archive(archive, root / ("out-" + kind))
        archives[kind] = (root / ("out-" + kind) / "deep" / "b.bin").stat().st_size
    with zipfile.ZipFile(root / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source / "a.txt", "a.txt")
        archive.writestr("new.txt", "new")
    with zipfile.ZipFile(root / "b.zip") as archive:
        zipped = [archive.testzip(), sorted(archive.namelist()), archive.read("new.txt").decode()]
    with tarfile.open(root / "b.tar.bz2", "w:bz2") as archive:
        archive.add(source, arcname="source")
    with tarfile.open(root / "b.tar.bz2") as archive:
        archive.extractall(root / "tar", filter="data")
        tarred = sorted(archive.getnames())

    refused, traced = [], []

    def authorize(action: int, first: str, second: str, database: str, trigger: str) -> int:
        if action == sqlite3.SQLITE_DELETE and first == "notes":
            refused.append(first)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    connection = sqlite3.connect(root / "notes.db")
    connection.execute("create table notes (id integer primary key, body text)")
    connection.executemany("insert into notes (body) values (?)", [("one",), ("two",)])
    connection.commit()
    connection.set_authorizer(authorize)
    connection.set_trace_callback(traced.append)
    connection.create_function("shout", 1, str.upper)
    loud = [row[0] for row in connection.execute("select shout(body) from notes order by id")]
    try:
        connection.execute("delete from notes")
        denied = ""
    except sqlite3.DatabaseError as error:
        denied = type(error).__name__
    connection.set_authorizer(None)
    connection.set_trace_callback(None)
    backup = sqlite3.connect(root / "backup.db")
    connection.backup(backup)
    copied = backup.execute("select count(*) from notes").fetchone()[0]
    backup.close()
    connection.close()

    with open(source / "deep" / "b.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = 65
    with shelve.open(str(root / "shelf")) as shelf:
        shelf["k"] = [1, 2]
        kept = shelf["k"]
    with fileinput.input([str(source / "a.txt")], encoding="utf-8") as lines:
        counted = len(list(lines))
    os.replace(root / "b.zip", root / "c.zip")
    shutil.rmtree(root / "copy")
    found = shutil.which("ls")
    assert found is None or os.path.isabs(found)
    return {
        "strict": strict,
        "temporary": [temporary_text, mode, rolled],
        "archives": archives,
        "zipped": zipped,
        "tarred": tarred,
        "sqlite": [loud, denied, refused, len(traced) > 0, copied],
        "glob": sorted(os.path.relpath(p, root) for p in glob.glob(str(source / "**" / "*.*"), recursive=True)),
        "walk": [[sorted(names), sorted(files)] for _, names, files in os.walk(source)][0],
        "scan": sorted([entry.name, entry.is_symlink()] for entry in os.scandir(source)),
        "mapped": (source / "deep" / "b.bin").read_bytes()[:2].hex(),
        "kept": [kept, pickle.loads(pickle.dumps({"a": (1, 2)}))["a"][1], counted],
        "usage": shutil.disk_usage(folder).total > 0,
        "left": [(root / "copy").exists(), (root / "c.zip").exists()],
    }
