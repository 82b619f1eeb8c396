"""Child process of a guard test: runs the body of the test, and describes results."""

from __future__ import annotations

import errno
import json
import os
import sys

# Modules that only the parent needs. A child that imported pytest would start ten times slower.
PARENT_ONLY = {"pytest", "hypothesis", "tests"}
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class World:
    """Paths of a body, and the arguments of its test."""

    def __init__(self, spec):
        self.base = spec["base"]
        self.root = os.path.join(self.base, "root")
        self.outside = os.path.join(self.base, "outside")
        self.home = os.path.join(self.base, "home")
        self.tmp = os.path.join(self.base, "tmp")
        self.secret = os.path.join(self.outside, "secret.txt")
        self.args = spec["args"]
        self.guard = spec["guard"]

    def inside(self, *parts):
        """Return a path below the root."""
        return os.path.join(self.root, *parts)

    def out(self, *parts):
        """Return a path outside every root."""
        return os.path.join(self.outside, *parts)

    def load(self, path):
        """Return the functions and constants of another file of these tests."""
        return load(path, PROVIDED)

    def verdict(self, function, /, *args, **kwargs):
        """Call a function and return the result in one word."""
        try:
            function(*args, **kwargs)
        except Exception as error:
            return describe(error)
        return "ok"

    async def verdict_of(self, awaitable):
        """Await a coroutine and return the result in one word."""
        try:
            await awaitable
        except Exception as error:
            return describe(error)
        return "ok"

    def can_read(self, path=None):
        """Read the path (the secret by default) and return 'ok' or the verdict."""
        return self.verdict(read, path or self.secret)


def read(path):
    """Read a whole file, as subject code would."""
    with open(path, "rb") as file:
        return file.read()


def write(path, data="data"):
    """Write a whole file, as subject code would."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(data)


def describe(error):
    """Return the class of a sandbox error; for others the class and, if any, the errno."""
    if type(error).__module__.partition(".")[0] == "democrai_sandbox":
        return type(error).__name__
    number = getattr(error, "errno", None)
    return f"{type(error).__name__}:{errno.errorcode[number]}" if number else f"{type(error).__name__}:{error}"


def facts(error):
    """Return all attributes of a denial as JSON data."""
    return {
        "type": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "str": str(error),
        "errno": getattr(error, "errno", None),
        "code": str(getattr(error, "code", None)),
        "layer": str(getattr(error, "layer", None)),
        "subject": getattr(error, "subject", None),
        "subject_kind": str(getattr(error, "subject_kind", None)),
        "subject_chain": [str(subject) for subject in getattr(error, "subject_chain", ())],
        "operation": str(getattr(error, "operation", None)),
        "target": getattr(error, "target", None),
        "hint": getattr(error, "hint", None),
        "filename": os.fspath(error.filename) if getattr(error, "filename", None) else None,
    }


def caught(function, /, *args, **kwargs):
    """Return the exception that a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return error
    return None


def load(path, provided):
    """Return the functions and constants of a test module, without its tests and the parent's imports."""
    module = type(sys)(os.path.basename(path).removesuffix(".py"))
    module.__dict__.update(provided, __file__=path)
    sys.modules[module.__name__] = module
    exec(COMPILED.pop(path, None) or compiled(path), module.__dict__)
    return module.__dict__


def compiled(path):
    """Return the compiled code of a test module."""
    with open(path, "rb") as file:
        tree = compile(file.read(), path, "exec", flags=0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
    tree.body = [node for node in tree.body if _wanted(node)]
    return compile(tree, path, "exec", dont_inherit=True)


COMPILED = {}
"""Compiled code of a process whose forks run bodies."""


def prepare(spec):
    """Compile the files that a body will load: its own file, and one that its test names."""
    for path in (spec["file"], *spec["args"]):
        if isinstance(path, str) and path.endswith(".py") and path.startswith(TESTS) and path not in COMPILED:
            COMPILED[path] = compiled(path)


def _wanted(node):
    kind = type(node).__name__
    if kind == "ImportFrom":
        return (node.module or "").partition(".")[0] not in PARENT_ONLY
    if kind == "Import":
        return not any(name.name.partition(".")[0] in PARENT_ONLY for name in node.names)
    if kind in {"FunctionDef", "AsyncFunctionDef", "ClassDef"}:
        return not node.name.lower().startswith("test") and not node.decorator_list
    return kind != "Assign" or getattr(node.targets[0], "id", None) != "pytestmark"


PROVIDED = {function.__name__: function for function in (World, read, write, describe, facts, caught)}


def main():
    """Run one body, optionally inside one guard, and print its return value as the last line."""
    spec = json.loads(sys.argv[1])
    world = World(spec)
    body = load(spec["file"], PROVIDED)[spec["body"]]
    if spec["guard"] is None:
        result = body(world)
    else:
        from democrai_sandbox import process_guard_context

        result = process_guard_context(**spec["guard"]).run(body, world)
    sys.stdout.flush()
    os.write(1, b"\n" + json.dumps(result, default=str).encode() + b"\n")


if __name__ == "__main__":
    main()
