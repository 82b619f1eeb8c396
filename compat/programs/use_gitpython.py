"""GitPython: its object database gitdb, without `import git` (which starts the git program)."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os
    import zlib

    from gitdb import IStream, LooseObjectDB, MemoryDB
    from gitdb.exc import BadObject
    from gitdb.fun import loose_object_header_info
    from gitdb.util import bin_to_hex, hex_to_bin

    def store(database: object, kind: bytes, data: bytes) -> bytes:
        return database.store(IStream(kind, len(data), io.BytesIO(data))).binsha

    memory = MemoryDB()
    blob = store(memory, b"blob", b"hello\n")
    tree = store(memory, b"tree", b"100644 a.txt\0" + blob)
    who = b"Ann <ann@shop.example> 1704067200 +0000"
    commit = store(
        memory, b"commit", b"tree " + bin_to_hex(tree) + b"\nauthor " + who + b"\ncommitter " + who + b"\n\nFirst\n"
    )
    assert bin_to_hex(blob) == b"ce013625030ba8dba906f756967f9e9ca394464a"

    objects = os.path.join(folder, "objects")
    os.makedirs(objects)
    loose = LooseObjectDB(objects)
    copied = memory.stream_copy([blob, tree, commit], loose)
    stream = loose.stream(commit)
    text = stream.read().decode()
    path = loose.readable_db_object_path(bin_to_hex(blob))
    with open(path, "rb") as file:
        raw = file.read()
    header = loose_object_header_info(raw)
    try:
        loose.info(hex_to_bin(b"0" * 40))
        error = ""
    except BadObject as problem:
        error = type(problem).__name__
    return {
        "commit": bin_to_hex(commit).decode(),
        "tree": bin_to_hex(tree).decode(),
        "copied": copied,
        "size": loose.size(),
        "message": text.splitlines()[-1],
        "type": stream.type.decode(),
        "raw": zlib.decompress(raw).decode(),
        "header": [str(part) for part in header],
        "partial": bin_to_hex(loose.partial_to_complete_sha_hex("ce0136")).decode(),
        "error": error,
    }
