"""Ways to the API, over one process that serves for a module of tests."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import serving

ODD = """
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
    import asyncio

    await asyncio.sleep(seconds)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The example extensions, and a module that returns odd things and takes its time."""
    folder = tmp_path_factory.mktemp("served")
    module = folder / "more" / "odd"
    module.mkdir(parents=True)
    (module / "manifest.json").write_text(json.dumps({"name": "odd"}))
    (module / "module.py").write_text(ODD)
    config = {"extra_module_dirs": [str(folder / "more")], "sandbox": {"call_timeout": 5}}
    with serving(folder, config) as found:
        yield found


@pytest.fixture(scope="module")
def admin(served):
    """A program of the first administrator, with every scope."""
    with served.bearer(served.administrator()) as client:
        yield client


@pytest.fixture(scope="module")
def uma(served):
    """A program of somebody who may not decide, with every scope."""
    with served.bearer(served.person("uma"), *Scope) as client:
        yield client


@pytest.fixture
def ask(served, uma, request):
    """Have uma's module be stopped at a path of its own; return the id of the request that waits then."""

    def stopped(path="", client=uma):
        return served.stop_weather(client, f"/{request.node.originalname}{path}")

    return stopped
