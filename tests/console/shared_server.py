"""One server for all tests of the console in a worker: to start and to end one costs more than most tests.

The changes that tests make stay, so each asks for something of its own: a target, a person, a path. A test that
changes what others rely on (the configuration, the administrators, the end of the process) has a server of its own.
"""

from __future__ import annotations

import json

import pytest

from tests.console.serving import Served

ODD = """
import asyncio
import time

from democrai_sandbox import sdk


@sdk.render
def render():
    return {"bytes": bytes([0, 255])}


@sdk.action("sleep")
def sleep(seconds):
    time.sleep(seconds)


@sdk.action("echo")
def echo(**params):
    return params


@sdk.action("large")
def large(size, kind="text"):
    return {"text": "x" * size} if kind == "text" else bytes(size)


@sdk.task("wait")
async def wait(seconds=0):
    sdk.tasks.progress(0.25, "a quarter")
    await asyncio.sleep(seconds)
"""
"""A module that returns odd things and takes its time."""
HIDDEN = "\u202e\u200b\u2066"
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
HOSTILE = f"""
import urllib.request
from democrai_sandbox import sdk

BAD = {SCRIPT + HIDDEN!r} + "\\x1b[31m"

@sdk.render
def render():
    {SCRIPT!r}
    return {{BAD: [BAD, "\\r\\n", "a  b"]}}

@sdk.action("speak")
def speak():
    print(BAD)

@sdk.action("fail")
def fail():
    raise RuntimeError(BAD)

@sdk.action("bytes")
def odd_bytes():
    try:
        open(b"/etc/\\xff" + BAD.encode())
    except PermissionError:
        return "stopped"

@sdk.action("far")
def far(url):
    urllib.request.urlopen(url, timeout=5)

@sdk.task("sleep")
def sleep():
    sdk.tasks.progress(0.5, BAD)
    raise ValueError(BAD)
"""
"""A module whose texts try to become part of the pages that show them."""
CONFIG = {"sandbox": {"call_timeout": 5}, "console": {"reauth_minutes": 30}}
_shared = None


class Shared(Served):
    """A server that goes through many tests: who needs a token of the same kind again gets the same one.

    A person has 100 tokens at most.
    """

    def __init__(self, *given):
        self._tokens = {}
        super().__init__(*given)

    def token(self, person, *scopes):
        kind = (person.id, frozenset(scopes))
        if kind not in self._tokens:
            self._tokens[kind] = super().token(person, *scopes)
        return self._tokens[kind]


def furnish(folder):
    """Write the modules of the tests into a folder; return the configuration that names them."""
    odd, hostile, crooked = folder / "odd", folder / "hostile", folder / "crooked"
    for module, manifest in (
        (odd, {"name": "odd"}),
        (hostile, {"name": "hostile", "description": SCRIPT}),
        (crooked, {"name": "crooked", "version": SCRIPT, "description": f"{SCRIPT}{HIDDEN}"}),
    ):
        module.mkdir(parents=True)
        (module / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False))
    (odd / "module.py").write_text(ODD)
    (hostile / "module.py").write_text(HOSTILE)
    (folder / f"b{HIDDEN}<b>").mkdir()
    return {"extra_module_dirs": [str(folder)], **CONFIG}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server of this worker, with the extensions of the examples and the tests."""
    global _shared
    if _shared is not None and _shared.process.poll() is not None:
        close()
    if _shared is None:
        folder = tmp_path_factory.mktemp("served")
        _shared = Shared(folder, furnish(folder / "more"))
    return _shared


def close():
    """Stop the server, if it runs."""
    global _shared
    if _shared is not None:
        leaving, _shared = _shared, None
        leaving.stop()
        leaving.web.stop()
