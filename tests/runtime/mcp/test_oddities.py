"""Servers that hang, close, answer garbage, redirect, flood: one typed error each, in time; the host keeps working."""

from __future__ import annotations

import asyncio
import json
import os
from urllib.parse import quote
from urllib.request import urlopen

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.services.golden import sentence

HOST = os.path.join(os.path.dirname(__file__), "host.py")

QUICK, PATIENT = 700, 15_000
"""Timeouts in milliseconds: for missing answers (the odd server is silent for 20 s), and for a busy machine."""

# Path, beginning of the error, and a value that it names.
UNREACHABLE = "McpUnreachable: mcp_server_unreachable:odd: "
TIMEOUT = "McpTimeout: mcp_server_timeout:odd: "
PROTOCOL = "McpProtocolError: mcp_protocol_error:odd: "
REDIRECTED = "McpRedirected: mcp_server_redirected:odd: "
FAILED = "McpToolFailed: mcp_tool_failed:odd: "
LOCKED = f"NetworkDenied: {EXTERNAL_URL_LOCKED} (sandbox_network_denied:odd:"

CASES = {
    "hangs": ("/hang", TIMEOUT, "0.7 s while connecting"),
    "hangs in the call": ("/say/late", TIMEOUT, "0.7 s while answering"),
    "closes at once": ("/cut/nothing", UNREACHABLE, ""),
    "closes in the headers": ("/cut/headers", UNREACHABLE, ""),
    "closes in the body": ("/cut/body", UNREACHABLE, ""),
    "closes in a stream": ("/cut/stream", UNREACHABLE, ""),
    "speaks another protocol": ("/garbage/wire", PROTOCOL, ""),
    "is a web site": ("/garbage/html", PROTOCOL, "text/html"),
    "sends no JSON": ("/garbage/json", PROTOCOL, "JSON"),
    "sends no text": ("/garbage/bytes", PROTOCOL, "JSON"),
    "sends other JSON": ("/garbage/other", PROTOCOL, ""),
    "sends another result": ("/garbage/result", PROTOCOL, "MCP"),
    "redirects for ever": ("/moved/on", PROTOCOL, "http://127.0.0.1:"),
    "wants a login": ("/status/401", PROTOCOL, "401"),
    "is not there": ("/nowhere", PROTOCOL, "404"),
    "is down": ("/status/503", UNREACHABLE, "503"),
    "is compressed": ("/gzip", PROTOCOL, ""),
    "floods a body": ("/flood/body", PROTOCOL, ""),
    "floods with events": ("/flood/events", PROTOCOL, ""),
    "sends a million lists": ("/say/wide", PROTOCOL, ""),
    "nests deep": ("/say/deep", PROTOCOL, "64"),
    "nests deeper than its reader": ("/say/deeper", PROTOCOL, "JSON"),
    "sends no number": ("/say/nan", PROTOCOL, "JSON"),
    "sends too many digits": ("/say/digits", PROTOCOL, ""),
    "reports an error": ("/say/error", FAILED, "out [2Jof order xxx"),
    "never ends its list": ("/say/pages", PROTOCOL, "100"),
    "has too many tools": ("/say/many", PROTOCOL, "1000"),
    "has two of a name": ("/say/twins", PROTOCOL, "'one'"),
    "has a hidden name": ("/say/hidden", PROTOCOL, "pay"),
}
SENTENCES = (
    *("closes in a stream", "wants a login", "is down", "is compressed", "floods a body", "floods with events"),
    *("sends a million lists", "nests deep", "sends no number", "never ends its list", "has too many tools"),
    *("has two of a name", "has a hidden name"),
)
"""Errors with our own texts: those of the libraries vary with their versions."""
LIBRARY = [(r"(the answer|no JSON): .*", r"\1")]
LISTED = ["/say/pages", "/say/many", "/say/twins", "/say/hidden", "/flood/body"]
SLOW = ["/hang", "/say/late", "/sse/silent"]


def odd_story(world):
    origin, cases, listed, slow = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("odd", f"{origin}/first")

        async def meet():
            for name, path in cases.items():
                # The query is a secret: it must not appear in an error.
                url = f"{origin}{path}{'&' if '?' in path else '?'}key=SECRETKEY"
                host.change("odd", endpoint_url=url, timeout_ms=QUICK if path in slow else PATIENT)
                for _ in range(5 if path == "/say/late" else 1):
                    said[name] = await (host.tools("odd") if path in listed else host.call("odd"))
                    if "connecting" not in said[name]:
                        break  # otherwise it was slow before it could be late

        asyncio.run(meet())
    return said


def test_what_goes_wrong_is_told_as_what_it_is(case, odd):
    """One typed error, which names the server and does not repeat its secrets, within the server's timeout."""
    said = case.run(odd_story, odd, {name: path for name, (path, _, _) in CASES.items()}, LISTED, SLOW)
    for name, (_, begins, value) in CASES.items():
        found = said[name]
        assert isinstance(found, str), name
        assert found.startswith(begins), name
        assert value in found, name
        assert "SECRETKEY" not in found, name
        assert found.isprintable(), name
        assert len(found) < 700, name
    for name in SENTENCES:
        sentence(name, said[name], also=LIBRARY)


def redirects(odd):
    port = odd.rpartition(":")[2]
    away = {
        "another port": "http://127.0.0.1:1/mcp",
        "another host": f"http://127.0.0.2:{port}/mcp",
        "a host's name": "http://metadata.google.internal/",
        "another scheme": f"https://127.0.0.1:{port}/redirect",
        "a file": "file:///etc/passwd",
        "a login": f"http://uma:secret@127.0.0.2:{port}/",
        "nonsense": "http://[::1/",
    }
    return {name: f"/redirect?to={quote(where, safe='')}" for name, where in away.items()}


def test_redirects_elsewhere_are_not_followed(case, odd):
    """Another origin is named and not contacted; the guard denies another path of the same origin."""
    paths = {**redirects(odd), "another path": "/redirect?to=/elsewhere", "as a page": "/redirect?to=/x&status=302"}
    found = case.run(odd_story, odd, paths, [], SLOW)
    for name, place in (
        ("another port", "http://127.0.0.1:1/mcp"),
        ("another host", "http://127.0.0.2:"),
        ("a host's name", "http://metadata.google.internal/"),
        ("another scheme", "https://127.0.0.1:"),
        ("a file", "file:/etc/passwd"),
        ("a login", "http://127.0.0.2:"),
    ):
        assert found[name].startswith(REDIRECTED), name
        assert f" {place}" in found[name], name
    assert "secret" not in found["a login"]
    assert found["nonsense"].startswith(PROTOCOL)
    assert found["another path"] == f"{LOCKED}{odd}/elsewhere)"
    assert found["as a page"].startswith(PROTOCOL)
    with urlopen(f"{odd}/log") as answer:
        seen = {path for _, path in json.load(answer)}
    assert "/elsewhere" not in seen
    assert "/x" not in seen


def sse_story(world):
    origin, cases = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("odd", f"{origin}/first", "sse")

        async def meet():
            for name, path in cases.items():
                host.change("odd", endpoint_url=f"{origin}{path}", timeout_ms=QUICK if path in SLOW else PATIENT)
                said[name] = await host.tools("odd")

        asyncio.run(meet())
        said["pending"] = host.pending()
    return said


SSE_CASES = {
    "silent": ("/sse/silent", TIMEOUT, "0.7 s while connecting"),
    "closes": ("/sse/closes", "Mcp", ""),
    "elsewhere": ("/sse/elsewhere", REDIRECTED, "http://127.0.0.2:1/messages"),
    "sibling": ("/sse/sibling", LOCKED, ""),
    "web site": ("/sse/html", PROTOCOL, ""),
    "not there": ("/sse/nothing", PROTOCOL, "405"),
}


def test_sse_servers_go_wrong_too(case, odd):
    """A message path that is not below the endpoint is a separate target, which has to be approved."""
    said = case.run(sse_story, odd, {name: path for name, (path, _, _) in SSE_CASES.items()})
    for name, (_, begins, value) in SSE_CASES.items():
        assert said[name].startswith(begins), name
        assert value in said[name], name
    pending = said["pending"]
    assert [(found["operation"], found["target"]) for found in pending] == [("send", f"{odd}/admin/delete-everything")]


def clever_story(world):
    origin = world.args[0]
    said = {}
    with world.load(HOST)["Host"](world) as host:
        for what in ("clever", "pattern", "ask", "twice"):
            host.register(what, f"{origin}/say/{what}", timeout_ms=PATIENT)
        host.register("moved", f"{origin}/moved", timeout_ms=PATIENT)

        async def meet():
            for what in ("clever", "pattern", "ask", "twice", "moved"):
                said[what] = await host.call(what)

        asyncio.run(meet())
    return said


def test_clever_answers_are_data(case, odd):
    """Nothing in them is followed, resolved or run, and a schema of the server does not block the host."""
    said = case.run(clever_story, odd)
    found = said["clever"]
    assert set(found) == {"content", "structured"}
    assert found["structured"]["$ref"] == "file:///etc/passwd"
    assert found["content"][1]["uri"] == "file:///etc/passwd"
    assert said["moved"] == found
    # Checking this text against the server's pattern would take longer than the whole test suite.
    assert said["pattern"]["structured"]["text"].endswith("a!")
    assert said["ask"] == {"content": [{"type": "text", "text": "asked"}]}
    assert said["twice"]["structured"] == {"value": 2}


def cancel_story(world):
    import gc

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import current_guard, is_guarded, live_states

    origin, url = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("late", f"{origin}/say/late", timeout_ms=20_000)
        host.register("hang", f"{origin}/hang", timeout_ms=20_000)
        host.register("search", url)

        def kept_waiting():
            with urlopen(f"{origin}/log") as answer:
                return sum(what == "late" for what, _ in json.load(answer))

        async def cancelled(name):
            before = await asyncio.to_thread(kept_waiting)
            task = asyncio.create_task(host.mcp.call_tool(name, "any", {}, Caller()))
            while await asyncio.to_thread(kept_waiting) == before:
                await asyncio.sleep(0.05)
            during = live_states()
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return ["cancelled", during > 0, is_guarded(), current_guard() is None]

        async def meet():
            said["in the call"] = await cancelled("late")
            said["connecting"] = await cancelled("hang")
            try:
                await asyncio.wait_for(host.mcp.call_tool("late", "any", {}, Caller()), 0.3)
            except TimeoutError as error:
                said["by the caller's timeout"] = [type(error).__name__, is_guarded()]
            said["afterwards"] = await host.call("search")
            flood = [host.call("search", chain=("module:demo",)) for _ in range(18)]
            told = await asyncio.gather(*flood, host.call("search", chain=("module:other",)))
            said["at once"] = [found if type(found) is str else "works" for found in told]
            said["under way"] = len(host.mcp._under_way)
            said["tasks"] = len(asyncio.all_tasks()) - 1

        asyncio.run(meet())
        gc.collect()
        said["states"] = live_states()
    return said


def test_a_cancelled_call_leaves_nothing_behind(case, odd, servers):
    """No guard, no task, no occupied slot; the next calls work, up to the limit of concurrent calls."""
    said = case.run(cancel_story, odd, servers["streamable_http"])
    assert said["in the call"] == ["cancelled", True, False, True]
    assert said["connecting"] == ["cancelled", True, False, True]
    assert said["by the caller's timeout"] == ["TimeoutError", False]
    assert said["afterwards"]["structured"] == {"result": "hi"}
    busy = [found for found in said["at once"] if found.startswith("McpBusy: mcp_server_busy:search: module:demo ")]
    assert len(busy) == 2
    assert " 16 " in busy[0]
    assert said["at once"].count("works") == 17
    assert said["at once"][-1] == "works"
    assert said["under way"] == 0
    assert said["tasks"] == 0
    assert said["states"] == 0


def away_story(world):
    import socket

    with socket.socket() as nobodys, world.load(HOST)["Host"](world) as host:
        nobodys.bind(("127.0.0.1", 0))  # and does not listen
        host.register("away", f"http://127.0.0.1:{nobodys.getsockname()[1]}/mcp")
        host.register("nowhere", "https://mcp.invalid/mcp")
        return [asyncio.run(host.tools("away")), asyncio.run(host.tools("nowhere"))]


def test_a_server_that_is_away_is_unreachable(case):
    """The port is closed, or the name is unknown."""
    away, nowhere = case.run(away_story)
    assert away.startswith("McpUnreachable: mcp_server_unreachable:away: ")
    assert nowhere.startswith("McpUnreachable: mcp_server_unreachable:nowhere: ")
