"""A conversation can access only its endpoint, and modules use it only through services."""

from __future__ import annotations

import asyncio
import os

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED

HOST = os.path.join(os.path.dirname(__file__), "host.py")


def attempts(world, url):
    """Return the attempts of code that got into a conversation."""
    import socket
    import subprocess
    from urllib.request import urlopen

    port = int(url.rpartition(":")[2].partition("/")[0])
    origin = url.rpartition("/")[0]

    def post(where):
        return urlopen(where, data=b"{}", timeout=5)

    return {
        "read": lambda: open(world.secret),
        "read the module's own": lambda: open(world.inside("own.txt")),
        "read code": lambda: open(os.__file__),
        "read the system's": lambda: open("/etc/hosts"),
        "write scratch": lambda: open(os.path.join(world.tmp, "new.txt"), "w"),
        "write": lambda: open(world.inside("new.txt"), "w"),
        "list": lambda: os.listdir(world.root),
        "stat": lambda: os.stat(world.secret),
        "ctypes": lambda: __import__("ctypes").CDLL(None),
        "process": lambda: subprocess.run(["true"]),
        "fork": os.fork,
        "environment": lambda: os.environ.__setitem__("DEMOCRAI_USER_ID", "ada"),
        "socket to the endpoint": lambda: socket.create_connection(("127.0.0.1", port)),
        "another port": lambda: socket.create_connection(("127.0.0.1", 1)),
        "another path": lambda: post(f"{origin}/other"),
        "another host": lambda: post("http://127.0.0.2/mcp"),
        "what the module may": lambda: post("http://127.0.0.1:1/api"),
        "a name": lambda: socket.getaddrinfo("example.com", 443),
    }


def inside_story(world):
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import current_guard, process_guard_context
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.mcp import runtime as library
    from democrai_sandbox.runtime.mcp.runtime import services

    url = world.args[0]
    with open(world.inside("own.txt"), "w") as file:
        file.write("own")
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url)
        sdk_services.install(services(host.mcp))
        conversation = library.conversations("search")
        seen = {}

        async def converse(order, tls):
            view = current_guard()
            seen["chain"] = [str(link) for link in view.subject_chain]
            seen["who"] = [view.user_id, view.organization_id, view.session_key]
            seen["rules"] = sorted(
                f"{rule.operation} {rule.normalized_target}" for link in view.subject_allow_chain for rule in link.rules
            )
            seen["subprocess"] = view.allow_subprocess
            seen["tried"] = {name: world.verdict(act) for name, act in attempts(world, url).items()}
            return "[]"

        real, conversation.converse = conversation.converse, converse
        wide = process_guard_context(
            subject="demo",
            allowed_paths=[world.root, world.outside],
            allowed_targets=["127.0.0.1", "127.0.0.2", "example.com"],
            allowed_imports=["ctypes"],
            allow_subprocess=True,
            user_id="uma",
            organization_id="org",
            session_key="s1",
        )

        async def use():
            host.mcp.promises.open()
            asked = wide.run(ask, "mcp.tools", "search")
            seen["answer"] = await asked
            seen["by the module"] = seen.copy()
            await host.mcp.list_tools("search", Caller(user_id="udo"))

        async def ask(*args):
            return await sdk_services.call(*args)

        asyncio.run(use())
    return seen


def test_a_conversation_has_its_endpoint_and_nothing_else(case, servers):
    """Independent of the calling module: no file except code, no process, no other address, not even the host's."""
    url = servers["streamable_http"]
    seen = case.run(inside_story, url)
    module = seen.pop("by the module")
    assert module["chain"] == ["module:demo", "mcp:search"]
    assert module["who"] == ["uma", "org", "s1"]
    assert module["answer"] == []
    assert seen["chain"] == ["mcp:search"]
    assert seen["who"] == ["udo", None, None]
    for view in (module, seen):
        assert view["rules"] == [f"receive {url}", f"send {url}"]
        assert view["subprocess"] is False
        tried = view["tried"]
        assert tried.pop("read code") == "ok"
        for name in ("read", "read the module's own", "read the system's", "write", "write scratch", "list", "stat"):
            assert tried.pop(name) == "FilesystemDenied", name
        assert tried.pop("ctypes") == "ModuleDenied"
        assert tried.pop("process") == tried.pop("fork") == "SubprocessDenied"
        assert tried.pop("environment") == "EnvironmentDenied"
        assert set(tried.values()) == {"NetworkDenied"}, tried


def door_story(world):
    import gc
    import time

    from democrai_sandbox import sdk
    from democrai_sandbox.guard import live_states, process_guard_context
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.mcp.runtime import services

    url, sse, odd = world.args
    said = {}
    with world.load(HOST)["Host"](world) as host:
        host.register("search", url)
        host.register("older", sse, "sse")
        host.register("late", f"{odd}/say/late", timeout_ms=15_000)
        sdk_services.install(services(host.mcp))
        module = process_guard_context(subject="demo", allowed_paths=[world.root], user_id="uma", session_key="s1")

        async def ask(*args):
            try:
                return await sdk_services.call(*args)
            except Exception as error:
                trace, names = error.__traceback__, []
                while trace:
                    names.append(trace.tb_frame.f_code.co_name)
                    trace = trace.tb_next
                chained = [type(error.__cause__).__name__, type(error.__context__).__name__]
                return [f"{type(error).__name__}: {error}", names, chained]

        async def wait_briefly():
            try:
                await asyncio.wait_for(sdk_services.call("mcp.call", "late", "any", {}), 0.3)
            except TimeoutError:
                return "given up"

        async def handed_out():
            future = sdk_services.call("mcp.tools", "search")
            kinds = [type(future).__name__, len(future._callbacks or ())]
            await future
            return kinds

        def exchange():
            from democrai_sandbox.runtime.mcp import conversation, runtime
            from democrai_sandbox.runtime.mcp import conversation as wire
            from democrai_sandbox.runtime.mcp import runtime as checking

            return {
                "converse": world.verdict(setattr, conversation, "converse", print),
                "check": world.verdict(setattr, runtime, "check_endpoint", print),
                "guard": world.verdict(setattr, checking, "make_guard", print),
                "wire": world.verdict(setattr, wire.McpHttpClient, "send", print),
            }

        async def use():
            host.mcp.promises.open()
            said["exchanged"] = module.run(exchange)
            said["tools"] = [tool["name"] for tool in await module.run(ask, "mcp.tools", "search")]
            said["call"] = await module.run(ask, "mcp.call", "search", "add", {"a": 1, "b": 1})
            said["by the SDK"] = await module.run(sdk.mcp.call_tool, "search", "add", {"a": 1, "b": 1})
            said["denied"] = await module.run(ask, "mcp.call", "older", "add", {"a": 1, "b": 1})
            said["failed"] = (await module.run(ask, "mcp.call", "search", "fail", {"text": "x"}))[0]
            said["unknown"] = (await module.run(ask, "mcp.tools", "nothing"))[0]
            said["bad"] = (await module.run(ask, "mcp.call", "search", "add", []))[0].partition(":")[0]
            said["handed out"] = await module.run(handed_out)
            said["given up"] = await module.run(wait_briefly)
            begun = time.monotonic()
            while len(asyncio.all_tasks()) > 1 and time.monotonic() - begun < 50:
                await asyncio.sleep(0.05)
            said["tasks"] = len(asyncio.all_tasks()) - 1
            said["pending"] = host.pending()

        async def ask_runtime():
            from democrai_sandbox.access import Caller

            try:
                return await host.mcp.list_tools("search", Caller(user_id="ada"))
            except Exception as error:
                return type(error).__name__

        asyncio.run(use())
        said["by itself"] = asyncio.run(module.run(ask_runtime))
        gc.collect()
        said["states"] = live_states()
    return said


def test_modules_use_servers_through_doors(case, servers, odd):
    """Plain data in both directions; denials name the call chain, and expose no frame or task of the host."""
    said = case.run(door_story, servers["streamable_http"], servers["sse"], odd)
    assert set(said["exchanged"].values()) == {"TamperDenied"}
    assert "add" in said["tools"]
    assert said["call"]["structured"] == said["by the SDK"]["structured"] == {"result": 2}
    text, frames, chained = said["denied"]
    assert text.startswith(f"NetworkDenied: {EXTERNAL_URL_LOCKED} (sandbox_network_denied:older:")
    assert set(frames) == {"ask"}
    assert chained == ["NoneType", "NoneType"]
    assert said["pending"][0]["chain"] == ["module:demo", "mcp:older"]
    assert (said["pending"][0]["user"], said["pending"][0]["session"]) == ("uma", "s1")
    assert said["failed"].startswith("McpToolFailed: ")
    assert said["unknown"].startswith("McpUnknown: ")
    assert said["bad"] == "InvalidInputError"
    assert said["handed out"] == ["Future", 0]
    assert said["given up"] == "given up"
    assert said["tasks"] == 0
    assert said["by itself"] == "GuardUsageError"
    assert said["states"] == 0
