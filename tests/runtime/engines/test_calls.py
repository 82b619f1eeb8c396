"""Calls of engines by modules; configuration, replacement and failure of engines."""

from __future__ import annotations

import os

from tests.services.golden import sentence

MODULE = """
from democrai_sandbox import sdk

@sdk.action("ask")
async def ask(method, params, kind="engine", name="demo"):
    return await sdk.engines.call(name, method, params, kind=kind)

@sdk.action("listen")
async def listen(most):
    found = []
    async for item in sdk.engines.stream("demo", "numbers", {"end": 1000000}):
        found.append(item)
        if len(found) == most:
            break
    return found

@sdk.action("all")
async def everything():
    return [item async for item in sdk.engines.stream("demo", "numbers", {"end": 3})]

@sdk.action("steal")
async def steal():
    from democrai_sandbox.runtime import sdk_services
    future = sdk_services.call("engines.call", ["engine", "demo", "who"], {}, None)
    seen = [type(future).__name__, hasattr(future, "get_coro"), type(future).__module__]
    await future
    return seen
"""
ENGINE = """
import os, time, urllib.request
from democrai_sandbox import sdk

@sdk.method("who")
def who():
    return [list(sdk.request()), os.getpid()]

@sdk.method("fetch")
def fetch(url):
    with urllib.request.urlopen(url, timeout=3) as answer:
        return answer.status

@sdk.method("numbers")
def numbers(end):
    for number in range(end):
        yield number

@sdk.method("settings")
def settings():
    return sdk.engines.settings()

@sdk.method("nap")
def nap():
    (sdk.data_dir() / "napping").touch()
    time.sleep(30)

@sdk.method("request")
def request():
    said = sdk.access.check_external_access(
        resource_type=sdk.access.EXTERNAL_RESOURCE_NETWORK, operation="receive", target="https://example.com/x"
    )
    return str(said.code)

@sdk.method("spawn")
async def spawn():
    return await sdk.tasks.run_subprocess(["/bin/true"])

@sdk.method("fail")
def fail():
    raise LookupError("nothing")

@sdk.method("again")
async def again():
    return await sdk.engines.call("demo", "who")
"""
CALLER = ("uma", "org", "s1", "member", "")


def conversation(world):
    hosting = world.load(world.args[0])
    outcome = hosting["outcome"]

    async def story(runtime):
        import asyncio

        from democrai_sandbox.access import Caller
        from democrai_sandbox.runtime.access_environment import serving

        caller = Caller(*CALLER)

        async def act(action, **params):
            return await outcome(runtime.modules.action("demo", action, params, caller))

        told = {"not installed": await act("ask", method="who", params={})}
        await runtime.engines.install("demo")
        told["who"] = await act("ask", method="who", params={})
        told["denied"] = await act("ask", method="fetch", params={"url": "http://203.0.113.9/x"})
        told["request"] = await act("ask", method="request", params={})
        with serving(Caller(user_id="ada", role="super")):
            pending = runtime.access.administration.pending_requests().items
        told["pending"] = [list(item.chain) for item in pending if "example" in item.raw_target]
        told["some"] = await act("listen", most=3)
        told["all"] = await act("all")
        told["spawn"] = await act("ask", method="spawn", params={})
        told["fail"] = await act("ask", method="fail", params={})
        told["unknown"] = await act("ask", method="who", params={}, name="dmeo")
        told["kind"] = await act("ask", method="who", params={}, kind="module")
        told["itself"] = await act("ask", method="again", params={})
        told["steal"] = await act("steal")
        told["settings"] = await act("ask", method="settings", params={})
        nap = asyncio.create_task(act("ask", method="nap", params={}))
        while not os.path.exists(os.path.join(world.base, "data/engines/demo/napping")) and not nap.done():
            await asyncio.sleep(0.02)
        os.kill(told["who"][1], 9)
        told["killed"] = await nap
        told["after"] = await act("ask", method="who", params={})
        return told

    return hosting["serve"](world.base, story)


def test_a_module_calls_an_engine(workshop):
    """The call chain begins with the module, the identity is the request's, and each failure has its own error."""
    workshop.module(MODULE)
    workshop.extension(code=ENGINE)
    told = workshop.host(conversation)
    assert told["not installed"]["error"] == "NotInstalled"
    assert "engine:demo" in told["not installed"]["text"]
    assert told["who"][0] == ["uma", "org", "s1", "member", "", ""]
    assert told["denied"]["error"] == "NetworkDenied"
    assert told["denied"]["chain"] == ["module:demo", "engine:demo"]
    assert told["request"] == "pending"
    assert told["pending"] == [["module:demo", "engine:demo"]]
    assert told["some"] == [0, 1, 2]
    assert told["all"] == [0, 1, 2]
    assert told["spawn"]["error"] == "SubprocessDenied"
    assert "LookupError: nothing" in told["fail"]["text"]
    assert told["unknown"]["error"] == "ExtensionUnknown"
    assert "'demo'" in told["unknown"]["text"]
    for name, place in (("kind", "/kind"), ("itself", "/name")):
        assert (told[name]["error"], told[name]["places"]) == ("InvalidInputError", [place]), name
        sentence(name, told[name]["text"])
    assert told["steal"] == ["Future", False, "_asyncio"]
    assert told["settings"] == {}
    assert "worker_crashed:engine:demo" in told["killed"]["text"]
    assert told["after"][0] == told["who"][0]
    assert told["after"][1] != told["who"][1]


def configured(world):
    hosting = world.load(world.args[0])
    outcome = hosting["outcome"]
    url, other = world.args[1:]

    async def story(runtime):
        def store(settings):
            runtime.store.set_settings("engine", "demo", settings, now=hosting["NOW"])

        async def fetch(target):
            return await outcome(runtime.engines.call("demo", "fetch", {"url": target}))

        await runtime.engines.install("demo")
        told = {"before": await fetch(url)}
        store({"server_url": url, "other": other, "servers": [f"{url}/a"]})
        told["allowed"] = [await fetch(f"{url}/?q=1"), await fetch(other)]
        told["settings"] = await runtime.engines.call("demo", "settings")
        told["pid"] = (await runtime.engines.call("demo", "who"))[1]
        store({"server_url": other})
        told["changed"] = [await fetch(url), await fetch(other)]
        told["new pid"] = (await runtime.engines.call("demo", "who"))[1]
        store({"server_url": "not a url", "servers": ["https://user@host/"]})
        told["wrong"] = await fetch(other)
        store({})
        told["unset"] = await fetch(other)
        return told

    return hosting["serve"](world.base, story)


def test_urls_of_the_configuration_are_allowed(workshop, web):
    """Under the keys that the manifest names; a change applies from the next call on, and starts a new process."""
    workshop.extension(code=ENGINE, runtime={"allowed_config_urls": ["server_url", "servers"]})
    told = workshop.host(configured, web.url, web.other_url)
    assert told["before"]["error"] == "NetworkDenied"
    assert told["allowed"][0] == 200
    assert told["allowed"][1]["error"] == "NetworkDenied"
    assert told["settings"]["other"] == web.other_url
    assert told["changed"][0]["error"] == "NetworkDenied"
    assert told["changed"][1] == 200
    assert told["new pid"] != told["pid"]
    assert told["wrong"]["error"] == "InvalidInputError"
    assert told["wrong"]["places"] == ["/configuration/server_url", "/configuration/servers"]
    assert told["unset"]["error"] == "NetworkDenied"


def replaced(world):
    hosting = world.load(world.args[0])
    outcome = hosting["outcome"]

    async def story(runtime):
        import asyncio

        engines = runtime.engines
        first = await engines.install("demo")
        before = await engines.call("demo", "who")
        stream = engines.stream("demo", "numbers", {"end": 100000})
        begun = await anext(stream)
        second = await engines.install("demo", again=True)
        after = await engines.call("demo", "who")
        kept = os.path.isdir(first.folder)
        rest = [await anext(stream) for _ in range(50)]
        await stream.aclose()
        await asyncio.gather(*engines._retiring)
        await engines.install("demo")
        return {
            "folders": first.folder != second.folder,
            "processes": before[1] != after[1],
            "stream": [begun, rest[-1]],
            "kept": kept,
            "gone": not os.path.isdir(first.folder),
            "left": sorted(os.listdir(os.path.dirname(second.folder))) == [os.path.basename(second.folder)],
        }

    return hosting["serve"](world.base, story)


def test_a_new_environment_takes_over_while_the_old_one_is_used(workshop):
    """Running calls end in the old one, new calls use the new one, and the old one is removed afterwards."""
    workshop.extension(code=ENGINE)
    assert workshop.host(replaced) == {
        "folders": True,
        "processes": True,
        "stream": [0, 50],
        "kept": True,
        "gone": True,
        "left": True,
    }
