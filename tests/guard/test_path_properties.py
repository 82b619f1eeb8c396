"""Random trees of folders, files and links: the guard's verdict is that of the resolved path."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from democrai_sandbox.policy.operations import FileAccess
from democrai_sandbox.policy.paths import PathIndex
from tests.guard import tree_server
from tests.guard.harness import CHILD, Case
from tests.services.properties import examples

pytestmark = pytest.mark.once  # does not depend on the interpreter

NAMES = st.sampled_from(["a", "b", "c", "ab", ".x", "..x", "a..b", "a.", "\udcff", "ü", " ", "%2e"])
TOPS = st.sampled_from(["in", "in2", "out", "inx"])
DOTS = st.sampled_from([".", "..", "", "..."])
STEPS = st.one_of(NAMES, NAMES, TOPS, DOTS)

PLACES = st.builds(lambda top, names: "/".join([top, *names]), TOPS, st.lists(NAMES, min_size=0, max_size=3))
RELATIVE = st.builds("/".join, st.lists(STEPS, min_size=1, max_size=6))
ABSOLUTE = st.builds(lambda place, rest: "/".join(["{top}", place, *rest]), PLACES, st.lists(STEPS, max_size=4))
ODD = st.sampled_from(
    [
        "/",
        "//",
        "/..",
        "{top}",
        "{top}/",
        "{top}/in/",
        "{top}/in/.",
        "{top}/in/..",
        "/proc/self/cwd/a",
        "/proc/self/root{top}/in/a",
    ]
)
TARGETS = st.one_of(RELATIVE, ABSOLUTE).filter(bool)
NODES = st.one_of(
    st.tuples(st.just("dir"), PLACES, st.just("")),
    st.tuples(st.just("file"), PLACES, st.just("")),
    st.tuples(st.just("link"), PLACES, TARGETS),
    st.tuples(st.just("link"), PLACES, TARGETS),
)
OPERATIONS = st.lists(st.sampled_from(["read", "modify", "create", "delete"]), min_size=1, max_size=4, unique=True)
REQUESTS = st.fixed_dictionaries(
    {
        "nodes": st.lists(NODES, max_size=14).map(
            lambda nodes: [("dir", top, "") for top in ("in", "in2", "out", "inx")] + nodes
        ),
        "roots": st.lists(
            st.tuples(st.sampled_from(["in", "in2", "in/a", "out/a/b", "in/b/c"]), OPERATIONS), min_size=1, max_size=3
        ),
        "cwd": st.sampled_from(["in", "in/a", ".", "out"]),
        "paths": st.lists(st.one_of(ABSOLUTE, ABSOLUTE, RELATIVE, ODD), min_size=1, max_size=8),
        "bytes": st.booleans(),
    }
)
NEEDED = {
    "open": FileAccess.READ,
    "rdwr": FileAccess.READ | FileAccess.MODIFY,
    "stat": FileAccess.READ,
    "lstat": FileAccess.READ,
    "listdir": FileAccess.READ,
    "readlink": FileAccess.READ,
}


NODES_THEMSELVES = {"lstat", "readlink"}
LOOKS = {"stat", "lstat", "readlink"}
"""Calls that are allowed on ancestor folders of a root, whose existence is known."""


def is_above(roots, path):
    """Return whether a root is below a folder."""
    return any(root.startswith(path.rstrip("/") + "/") and root != path for root in roots)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Return a function that sends one request to the server."""
    case = Case(tmp_path_factory.mktemp("trees"))
    spec = {"file": tree_server.__file__, "body": "serve", "base": str(case.base), "args": [], "guard": None}
    process = subprocess.Popen(
        [sys.executable, "-P", str(CHILD), json.dumps(spec)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=case.environment(),
        cwd=case.base,
    )

    def put(request):
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the server died of {request}"
        return json.loads(line)

    yield put
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def probes_outside(index, row):
    """Return whether the path as written contains `name/..` with an unreadable name, which would reveal it."""
    steps = os.path.join(row["cwd"], row["path"]).split("/")
    written = row["path"].split("/")
    for position in range(len(steps) - len(written) + 1, len(steps)):
        before = steps[:position]
        if (
            steps[position] == ".."
            and before[-1] != ".."
            and not index.allows("/".join(before) or "/", FileAccess.READ)
        ):
            return True
    return False


def through_links(row):
    """Return whether the path contains links."""
    return os.path.normpath(os.path.join(row["cwd"], row["path"])) != row["real"]


def judge(index, name, row, free, guarded, roots=()):
    """Return what is wrong with the guard's result, or None. `free` is the result without a guard."""
    place = row["parent"] if name in NODES_THEMSELVES else row["real"]
    if name in LOOKS and is_above(roots, os.path.normpath(os.path.join(row["cwd"], row["path"]))) and guarded == free:
        return None
    if index.allows(place, NEEDED[name]):
        if free[0] == "error" and (".." in row["path"].split("/") or through_links(row)):
            # the resolution fails somewhere, perhaps outside: then the guard does not reveal where
            return None if guarded[0] != "value" else f"{place} cannot be reached"
        if guarded[0] == "denied" and probes_outside(index, row):
            return None
        return None if guarded == free else f"{place} is allowed; expected the system's own answer"
    if guarded[0] == "denied":
        return None
    if free[0] == "error" and guarded == free:
        return None  # the resolution fails before it leaves the roots
    return f"{place} is not allowed"


LINK_AND_UP = {
    "nodes": [("dir", "in/a/b", ""), ("file", "in/a/c", ""), ("file", "in/c", ""), ("link", "in/b", "a/b")],
    "roots": [("in", ["read", "modify"])],
    "cwd": "in",
    "paths": ["{top}/in/b/../c", "b/../c"],
    "bytes": False,
}
MISSING_AND_UP = {
    "nodes": [("dir", "in", ""), ("file", "in/c", "")],
    "roots": [("in", ["read"])],
    "cwd": "in",
    "paths": ["{top}/in/nothing/../c", "{top}/in/c/../c", "{top}/in/c/", "{top}/in/c/."],
    "bytes": False,
}
UP_FROM_OUTSIDE = {
    "nodes": [("dir", "in", ""), ("file", "in/c", ""), ("dir", "out", "")],
    "roots": [("in", ["read"])],
    "cwd": "out",
    "paths": ["../in/c", "./../in/c", "../in/../in/c", "..//in"],
    "bytes": False,
}
LOOPS = {
    "nodes": [("link", "in/a", "b"), ("link", "in/b", "a"), ("link", "in/c", "../out/c"), ("link", "out/c", "../in/c")],
    "roots": [("in", ["read"])],
    "cwd": "in",
    "paths": ["{top}/in/a", "{top}/in/c", "{top}/in/a/b"],
    "bytes": True,
}


@pytest.mark.slow
class TestTrees:
    @settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
    @given(request=REQUESTS)
    @example(request=LINK_AND_UP)
    @example(request=MISSING_AND_UP)
    @example(request=UP_FROM_OUTSIDE)
    @example(request=LOOPS)
    def test_the_verdict_is_that_of_the_resolved_path(self, ask, request):
        """Where the model allows, the guard changes nothing; elsewhere nothing is read."""
        told = ask(request)
        masks = [sum(FileAccess[name.upper()] for name in set(operations)) for _, operations in request["roots"]]
        resolved = list(zip(told["roots"], masks, strict=True))
        # A root that is declared through a link: the link itself may be read too.
        written = [(path, mask) for path, mask in zip(told["declared"], masks, strict=True)]
        index = {True: PathIndex(resolved), False: PathIndex(resolved + written)}
        above = [*told["roots"], *told["declared"]]
        wrong = [
            (name, row["path"], row["real"], free, guarded, problem)
            for row in told["rows"]
            for name, (free, guarded) in row["answers"].items()
            if (problem := judge(index[name not in NODES_THEMSELVES], name, row, free, guarded, above))
        ]
        assert wrong == []
