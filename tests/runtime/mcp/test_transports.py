"""A real MCP server over both transports: the answers of its tools arrive as plain data."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.services.golden import sentence

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "extensions" / "mcp"
HOST = os.path.join(os.path.dirname(__file__), "host.py")


def use_story(world):
    import gc
    import sys

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import current_guard, is_guarded, live_states, recent_denials

    urls = world.args[0]
    told = {"loaded": "mcp" in sys.modules}
    with world.load(HOST)["Host"](world) as host:
        for transport, url in urls.items():
            host.register(transport, url, transport)
        host.decide("approval", "mcp:sse", "send", urls["sse"].replace("/sse", "/messages"))
        loaded = set(sys.modules)

        async def use(name):
            said = told[name] = {}
            tools = await host.mcp.list_tools(name, Caller())
            said["tools"] = {tool["name"]: tool for tool in tools}
            said["add"] = await host.call(name, "add", {"a": 2, "b": 3})
            said["text"] = await host.call(name, "echo", {"text": "grüße \u2028 \U0001f600"})
            said["tool's error"] = await host.call(name, "fail", {"text": "x"})
            said["refusal"] = await host.call(name, "refuse", {})
            said["no such tool"] = await host.call(name, "nothing", {})
            said["bad arguments"] = (await host.call(name, "add", {"a": "x"}))[:60]
            said["guarded"] = [is_guarded(), current_guard() is None]
            pair = [host.call(name, "echo", {"text": str(number)}) for number in range(6)]
            said["together"] = [found["structured"]["result"] for found in await asyncio.gather(*pair)]

        for transport in urls:
            asyncio.run(use(transport))
        gc.collect()
        told["states"] = live_states()
        told["denials"] = [str(record) for record in recent_denials()]
        late = set(sys.modules) - loaded
        told["imported meanwhile"] = [name for name in late if name.startswith(("mcp", "httpx2", "httpcore2", "anyio"))]
    return told


def test_tools_are_listed_and_called(bare_case, servers):
    """Both transports; no files are read and nothing is imported on the way, and no guard remains."""
    transports = ("streamable_http", "sse")
    told = bare_case.run(use_story, {transport: servers[transport] for transport in transports})
    assert told["loaded"] is False
    assert told["states"] == 0
    assert told["denials"] == []
    assert told["imported meanwhile"] == []
    for transport in transports:
        said = told[transport]
        assert sorted(said["tools"]) == ["add", "echo", "fail", "refuse", "sleep"]
        add = said["tools"]["add"]
        assert add["description"] == "Add two numbers."
        assert add["input_schema"]["required"] == ["a", "b"]
        assert add["output_schema"]["properties"]["result"]["type"] == "integer"
        assert said["add"] == {"content": [{"type": "text", "text": "5"}], "structured": {"result": 5}}
        assert said["text"]["structured"] == {"result": "grüße \u2028 \U0001f600"}
        failed = f"McpToolFailed: mcp_tool_failed:{transport}: "
        values = {"tool's error": "fail", "refusal": "[2Jno such thing", "no such tool": "nothing", "bad arguments": ""}
        for name, value in values.items():
            assert said[name].startswith(failed), name
            assert value in said[name], name
        assert said["together"] == list(map(str, range(6)))
        assert said["guarded"] == [False, True]


def tls_story(world):
    import ssl

    port, trust = world.args
    known = ssl.create_default_context(cafile=trust)
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", f"https://127.0.0.1:{port}/mcp")
        said["unknown authority"] = asyncio.run(host.tools("search"))
        host.mcp.tls = known
        said["known"] = asyncio.run(host.tools("search"))
        host.register("other", f"https://localhost:{port}/mcp")
        said["by name"] = asyncio.run(host.tools("other"))
    return said


def test_certificates_are_checked(case, servers):
    """By the system's authorities, or by those of the host; the guard needs no files for that."""
    trustme = pytest.importorskip("trustme")
    authority, trust, chain = trustme.CA(), str(case.base / "ca.pem"), str(case.base / "server.pem")
    authority.cert_pem.write_to_path(trust)
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(chain)
    said = case.run(tls_story, servers.start("streamable_http", chain), trust)
    assert said["unknown authority"].startswith("McpUnreachable: mcp_server_unreachable:search: [SSL:")
    assert "add" in said["known"]
    assert "add" in said["by name"]


def proxy_story(world):
    import socket

    away = socket.create_server(("127.0.0.1", 0))
    away.settimeout(0.2)
    proxy = f"http://127.0.0.1:{away.getsockname()[1]}"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        os.environ[name] = proxy
    with open(os.path.join(world.home, ".netrc"), "w") as file:
        file.write("machine 127.0.0.1 login uma password secret\n")
    with world.load(HOST)["Host"](world) as host:
        host.register("search", world.args[0])
        found = asyncio.run(host.tools("search"))
    try:
        away.accept()
    except TimeoutError:
        return [found, "nobody came"]
    return [found, "somebody came"]


def test_the_environment_leads_nothing_astray(case, servers):
    """Proxies and credentials of the environment are ignored: the endpoint itself is contacted."""
    found, came = case.run(proxy_story, servers["streamable_http"])
    assert "add" in found
    assert came == "nobody came"


def missing_story(world):
    import sys

    for name in ("sqlalchemy", "pydantic", "anyio", "cryptography"):
        sys.modules[name] = None
    import democrai_sandbox.runtime.mcp

    for name in ("sqlalchemy", "pydantic", "anyio", "cryptography"):
        del sys.modules[name]

    from democrai_sandbox.access import Caller
    from democrai_sandbox.runtime.mcp import McpRuntime

    sys.modules["mcp"] = None
    told = world.load(HOST)["told"]
    return asyncio.run(told(McpRuntime(None, None).list_tools("search", Caller())))


def test_without_the_library_the_runtime_says_what_to_install(bare_case):
    """The library is an extra; importing only the errors, as in a worker process, needs no library."""
    said = bare_case.run(missing_story)
    assert said.startswith("McpMissing: mcp_library_missing:search: ")
    assert "democrai-sandbox[mcp]" in said


def examples_story(world):
    folder, http, sse = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:

        async def use():
            for name, origin in (("calculator", http), ("calculator-sse", sse), ("restless", http)):
                with open(os.path.join(folder, f"{name}.json")) as file:
                    entry = json.load(file)
                url = entry.pop("endpoint_url").replace("http://127.0.0.1:8765", origin.rpartition("/")[0])
                host.register(entry.pop("name"), url, **entry)
                said[name] = await host.call(name, "add", {"a": 1, "b": 2})
            host.admin("approve_permanently", host.pending()[0]["id"])
            said["approved"] = await host.call("calculator-sse", "add", {"a": 1, "b": 2})

        asyncio.run(use())
    return said


def test_the_examples_do_as_they_say(case, servers):
    """One works as registered, one after an approval, and one redirects elsewhere."""
    said = case.run(examples_story, str(EXAMPLES), servers["streamable_http"], servers["sse"])
    right = {"content": [{"type": "text", "text": "3"}], "structured": {"result": 3}}
    assert said["calculator"] == right
    assert said["approved"] == right
    assert said["calculator-sse"].startswith(f"NetworkDenied: {EXTERNAL_URL_LOCKED} ")
    assert said["restless"].startswith("McpRedirected: mcp_server_redirected:restless: ")
    assert "http://127.0.0.2:9/collect" in said["restless"]
    sentence("redirected", said["restless"])
