"""A real MCP server over both transports: what its tools say comes back as plain data."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "extensions" / "mcp"
HOST = os.path.join(os.path.dirname(__file__), "host.py")


def use_story(world):
    import gc
    import sys

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import current_guard, is_guarded, live_states, recent_denials

    transport, url = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url, transport)
        if transport == "sse":
            host.decide("approval", "mcp:search", "send", url.replace("/sse", "/messages"))
        loaded = set(sys.modules)

        async def use():
            tools = await host.mcp.list_tools("search", Caller())
            said["tools"] = {tool["name"]: tool for tool in tools}
            said["add"] = await host.call("search", "add", {"a": 2, "b": 3})
            said["text"] = await host.call("search", "echo", {"text": "grüße \u2028 \U0001f600"})
            said["tool's error"] = await host.call("search", "fail", {"text": "x"})
            said["refusal"] = await host.call("search", "refuse", {})
            said["no such tool"] = await host.call("search", "nothing", {})
            said["bad arguments"] = (await host.call("search", "add", {"a": "x"}))[:60]
            said["guarded"] = [is_guarded(), current_guard() is None]
            pair = [host.call("search", "echo", {"text": str(number)}) for number in range(20)]
            said["together"] = [found["structured"]["result"] for found in await asyncio.gather(*pair)]

        asyncio.run(use())
        gc.collect()
        said["states"] = live_states()
        said["denials"] = [str(record) for record in recent_denials()]
        late = set(sys.modules) - loaded
        said["imported meanwhile"] = [name for name in late if name.startswith(("mcp", "httpx2", "httpcore2", "anyio"))]
    return said


@pytest.mark.parametrize("transport", ["streamable_http", "sse"])
def test_tools_are_listed_and_called(case, servers, transport):
    """Both transports; nothing is asked of files or the import system on the way, and no guard stays behind."""
    said = case.run(use_story, transport, servers[transport])
    assert sorted(said["tools"]) == ["add", "echo", "fail", "refuse", "sleep"]
    add = said["tools"]["add"]
    assert add["description"] == "Add two numbers."
    assert add["input_schema"]["required"] == ["a", "b"]
    assert add["output_schema"]["properties"]["result"]["type"] == "integer"
    assert said["add"] == {"content": [{"type": "text", "text": "5"}], "structured": {"result": 5}}
    assert said["text"]["structured"] == {"result": "grüße \u2028 \U0001f600"}
    assert said["tool's error"] == "McpToolFailed: mcp_tool_failed:search: Error executing tool fail"
    assert said["refusal"] == "McpToolFailed: mcp_tool_failed:search: [2Jno such thing"
    assert said["no such tool"] == "McpToolFailed: mcp_tool_failed:search: Unknown tool: nothing"
    assert said["bad arguments"].startswith("McpToolFailed: mcp_tool_failed:search: Error executing tool")
    assert said["together"] == list(map(str, range(20)))
    assert said["guarded"] == [False, True]
    assert said["states"] == 0
    assert said["denials"] == []
    assert said["imported meanwhile"] == []


def tls_story(world):
    import ssl
    import subprocess
    import sys

    import trustme

    authority = trustme.CA()
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(world.out("cert.pem"))
    process = subprocess.Popen(
        [sys.executable, world.args[0], "streamable_http", "0", world.out("cert.pem")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    port = int(process.stdout.readline())
    known = ssl.create_default_context()
    authority.configure_trust(known)
    said = {}
    try:
        with world.load(HOST)["Host"](world) as host:
            host.register("search", f"https://127.0.0.1:{port}/mcp")
            said["unknown authority"] = asyncio.run(host.tools("search"))
            host.mcp._tls = known
            said["known"] = asyncio.run(host.tools("search"))
            host.register("other", f"https://localhost:{port}/mcp")
            said["by name"] = asyncio.run(host.tools("other"))
    finally:
        process.kill()
    return said


def test_certificates_are_checked(case):
    """By the system's authorities, or by those that the host names; the guard needs no files for that."""
    said = case.run(tls_story, str(EXAMPLES / "server.py"))
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
    """Proxies and logins of the environment do not count: the endpoint itself is contacted."""
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


def test_without_the_library_the_runtime_says_what_to_install(case):
    """The library is an extra; who only wants the errors, such as a worker process, needs nothing at all."""
    said = case.run(missing_story)
    assert said.startswith(
        "McpMissing: mcp_library_missing:search: install democrai-sandbox[mcp]: there is no module mcp"
    )


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
    """One works as registered, one after an approval, and one leads elsewhere."""
    said = case.run(examples_story, str(EXAMPLES), servers["streamable_http"], servers["sse"])
    right = {"content": [{"type": "text", "text": "3"}], "structured": {"result": 3}}
    assert said["calculator"] == right
    assert said["approved"] == right
    assert said["calculator-sse"].startswith("NetworkDenied: External URL is locked. ")
    redirected = "the server redirects to http://127.0.0.2:9/collect, which is not its registered origin"
    assert said["restless"] == f"McpRedirected: mcp_server_redirected:restless: {redirected}"
