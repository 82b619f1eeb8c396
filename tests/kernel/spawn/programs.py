"""Run programs through a spawn server, and wait for conditions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.spawn import ChildConfinement, SpawnOrder, confinement_of, enforcement_of
from democrai_sandbox.policy import parse_access
from tests.kernel import forked_programs

PATIENCE = 40.0
SHELL = os.path.realpath(shutil.which("sh"))
PYTHON = os.path.realpath(sys.executable)
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", sys.base_prefix)
ABI = landlock_support().abi
IS_ROOT = os.geteuid() == 0
needs_root_to_look = pytest.mark.skipif(not IS_ROOT, reason="needs root, to look into a server that hides from others")


class Done(NamedTuple):
    returncode: int
    out: str
    err: str
    missing: tuple[str, ...]


def order(program, *args, env=None, cwd="/", **more):
    return SpawnOrder(program, (program, *args), {"PATH": "/usr/bin:/bin"} if env is None else env, str(cwd), **more)


def run(server, program, *args, **more):
    """Start a program, read its output, and collect it."""
    out, err = os.pipe(), os.pipe()
    try:
        child = server.spawn(order(program, *args, stdout=out[1], stderr=err[1], **more))
    except BaseException:
        for number in (*out, *err):
            os.close(number)
        raise
    os.close(out[1])
    os.close(err[1])
    texts = {}
    readers = [threading.Thread(target=_drain, args=(pipe[0], texts)) for pipe in (out, err)]
    for reader in readers:
        reader.start()
    code = child.collect()
    for reader in readers:
        reader.join(PATIENCE)
    return Done(code, texts[out[0]], texts[err[0]], child.missing)


def _drain(number, texts):
    with os.fdopen(number, "rb") as pipe:
        texts[number] = pipe.read().decode(errors="replace")


def shell(server, text, **more):
    return run(server, SHELL, "-c", text, **more)


def python(server, text, args=(), **more):
    return run(server, PYTHON, "-I", "-S", "-c", text, *args, **more)


def confined(rules=(), abi=ABI, **more):
    """Keywords of an order that is confined by rules, with the system readable and executable."""
    parsed = parse_access([dict(zip(("resource_type", "operation", "target"), rule)) for rule in rules], base="/")
    more.setdefault("runtime_execute", SYSTEM)
    return enforced(confinement_of(parsed, **more), abi)


def enforced(confinement: ChildConfinement, abi=ABI):
    found = enforcement_of(confinement, abi, root=IS_ROOT)
    return {
        "plan": found.plan,
        "filter": found.filter,
        "limits": found.limits,
        "wall_seconds": found.wall_seconds,
    }


def until(condition, patience=PATIENCE):
    """Wait for a condition; return its value."""
    last = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < last, "it did not happen in time"
        time.sleep(0.01)
    return found


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def exists(pid):
    return Path(f"/proc/{pid}").exists()


def application(script, *args):
    """Start a separate application, which may be killed; it reports on its standard output."""
    return forked_programs.start(script, *args, stdout=subprocess.PIPE, stdin=subprocess.PIPE)


def descriptors(server):
    """Open descriptors of an idle server: an answer is sent before all descriptors of its request are closed."""

    def settled():
        first = sorted(os.listdir(f"/proc/{server.pid}/fd"))
        time.sleep(0.1)
        return first if sorted(os.listdir(f"/proc/{server.pid}/fd")) == first else None

    return until(settled)
