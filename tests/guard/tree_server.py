"""Long-lived child that builds trees and returns the guard's results for their paths, one JSON line each.

For every question it also returns the result without a guard, and the resolved path.
"""

from __future__ import annotations

import json
import os
import shutil
import sys


def outcome(function, *args):
    """Return the value of a call, or the name of its error."""
    try:
        return ["value", function(*args)]
    except OSError as error:
        if type(error).__module__.partition(".")[0] == "democrai_sandbox":
            return ["denied", type(error).__name__, error.operation]
        return ["error", error.errno]
    except ValueError:
        return ["error", "ValueError"]


def opened(path):
    """Read a file through open(); its inode identifies the file."""
    with open(path, "rb") as file:
        return os.fstat(file.fileno()).st_ino


def opened_by_flags(path):
    """Open for reading and writing through os.open()."""
    number = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        return os.fstat(number).st_ino
    finally:
        os.close(number)


QUESTIONS = {
    "open": opened,
    "rdwr": opened_by_flags,
    "stat": lambda path: os.stat(path).st_ino,
    "lstat": lambda path: os.lstat(path).st_ino,
    "listdir": lambda path: sorted(map(os.fsdecode, os.listdir(path))),
    "readlink": lambda path: os.fsdecode(os.readlink(path)),
}


def build(top, nodes):
    """Create the tree: [kind, path, target] below `top`; skip entries that cannot be created."""
    for kind, path, target in nodes:
        place = os.path.join(top, path)
        try:
            if kind == "dir":
                os.makedirs(place, exist_ok=True)
            elif kind == "file":
                os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            else:
                os.symlink(target.replace("{top}", top), place)
        except OSError:
            pass


def parent_resolved(path):
    """Return the path that a call that does not follow a last link reaches."""
    if path.endswith(("/", "/.", "/..")) or path in {".", ".."}:
        return os.path.realpath(path)
    head, tail = os.path.split(path)
    return os.path.join(os.path.realpath(head or "."), tail)


def answer(base, number, request):
    """Build one tree, ask everything about every path, remove the tree."""
    from democrai_sandbox import process_guard_context

    top = os.path.join(base, str(number))
    os.mkdir(top)
    build(top, request["nodes"])
    access = [
        {"resource_type": "filesystem", "operation": operations, "target": os.path.join(top, root)}
        for root, operations in request["roots"]
    ]
    guard = process_guard_context(subject="demo", access=access)
    here = os.path.join(top, request["cwd"])
    os.chdir(here if os.path.isdir(here) else top)
    results = []
    for path in request["paths"]:
        path = path.replace("{top}", top)
        given = os.fsencode(path) if request["bytes"] else path
        row = {
            "path": path,
            "real": os.path.realpath(path),
            "parent": parent_resolved(path),
            "cwd": os.getcwd(),
            "answers": {},
        }
        for name, question in QUESTIONS.items():
            row["answers"][name] = [outcome(question, given), guard.run(outcome, question, given)]
        results.append(row)
    os.chdir(base)
    declared = [os.path.join(top, root) for root, _ in request["roots"]]
    roots = [os.path.realpath(root) for root in declared]
    shutil.rmtree(top)
    return {"rows": results, "roots": roots, "declared": declared}


def serve(world):
    """Answer until the parent closes its end."""
    for number, line in enumerate(sys.stdin):
        print(json.dumps(answer(world.outside, number, json.loads(line))), flush=True)
    return None
