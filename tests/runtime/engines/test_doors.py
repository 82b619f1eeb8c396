"""Engine services for guarded code: permitted and refused requests."""

from __future__ import annotations

from tests.services.golden import sentence

MODULE = """
import asyncio
from democrai_sandbox import sdk
from democrai_sandbox.runtime import sdk_services

@sdk.action("open")
async def open_stream(count=1):
    return [sdk_services.call("engines.open", ["engine", "demo", "numbers"], {}, None) for _ in range(count)]

@sdk.action("next")
async def next_item(token):
    return await sdk_services.call("engines.next", token)

@sdk.action("close")
async def close(tokens):
    for token in tokens:
        sdk_services.call("engines.close", token)

@sdk.action("both")
async def both(token):
    first = sdk_services.call("engines.next", token)
    try:
        sdk_services.call("engines.next", token)
    except ValueError as error:
        return [await first, str(error)]

@sdk.action("settings")
async def settings():
    return sdk.engines.settings()

@sdk.action("raw")
async def raw(arguments):
    return await sdk_services.call("engines.call", *arguments)

@sdk.action("blocking")
def blocking():
    return sdk.engines.call_blocking("demo", "double", {"number": 21})

@sdk.action("misused")
async def misused():
    return sdk.engines.call_blocking("demo", "double", {"number": 21})

@sdk.action("own loop")
def own_loop():
    return asyncio.run(sdk.engines.call("demo", "double", {"number": 4}))

@sdk.action("wait")
async def wait():
    await sdk.engines.call("demo", "wait")

@sdk.action("object")
async def hand_over_an_object():
    return await sdk.engines.call("demo", "double", {"number": object()})
"""
ENGINE = """
import asyncio, itertools
from democrai_sandbox import sdk

@sdk.method("numbers")
def numbers():
    yield from itertools.count()

@sdk.method("double")
async def double(number):
    return 2 * number

@sdk.method("wait")
async def wait():
    place = sdk.data_dir() / "waiting"
    place.write_text("yes")
    try:
        await asyncio.sleep(60)
    finally:
        place.write_text("no longer")
"""


def story_of_doors(world):
    hosting = world.load(world.args[0])

    async def story(runtime):
        import asyncio
        from pathlib import Path

        from democrai_sandbox.access import Caller

        uma, bob = Caller(user_id="uma", session_key="s1"), Caller(user_id="bob", session_key="s2")

        async def act(action, *, module="one", caller=uma, **params):
            return await hosting["outcome"](runtime.modules.action(module, action, params, caller))

        await runtime.engines.install("demo")
        (token,) = await act("open")
        told = {
            "first": await act("next", token=token),
            "another module": await act("next", module="two", token=token),
            "another user": await act("next", caller=bob, token=token),
            "second": await act("next", token=token),
            "both": await act("both", token=token),
            "forged": await act("next", token="x"),
            "odd": await act("next", token=["x"]),
        }
        await act("close", module="two", tokens=[token])
        told["still"] = await act("next", token=token)
        await act("close", tokens=[token, token, 5])
        told["closed"] = await act("next", token=token)
        told["many"] = await act("open", count=65)
        told["settings"] = await act("settings")
        wrong = {
            "kind": [["enginee", "demo", "double"], {}, None],
            "address": [["engine", 5, "double"], {}, None],
            "short": [["engine"], {}, None],
            "params": [["engine", "demo", "double"], [], None],
            "time": [["engine", "demo", "double"], {"number": 1}, -1],
            "text": [["engine", "demo", "double"], {"number": 1}, "5"],
            "few": [],
        }
        told["wrong"] = {name: await act("raw", arguments=value) for name, value in wrong.items()}
        told["blocking"] = await act("blocking")
        told["misused"] = await act("misused")
        told["own loop"] = await act("own loop")
        told["object"] = await act("object")
        flag = Path(world.base, "data/engines/demo/waiting")
        waiting = asyncio.create_task(act("wait"))
        while not flag.exists():
            await asyncio.sleep(0.02)
        waiting.cancel()
        for _ in range(3000):
            if flag.read_text() == "no longer":
                break
            await asyncio.sleep(0.02)
        told["cancelled"] = flag.read_text()
        return told

    return hosting["serve"](world.base, story)


def test_the_doors_to_engines(workshop):
    """A stream belongs to its caller, arguments are checked, and canceling a call stops the engine's work."""
    workshop.module(MODULE, name="one")
    workshop.module(MODULE, name="two")
    workshop.extension(code=ENGINE)
    told = workshop.host(story_of_doors)
    assert [told["first"], told["second"]] == [[0], [1]]
    for who in ("another module", "another user", "forged", "odd", "closed"):
        assert (told[who]["error"], told[who]["places"]) == ("InvalidInputError", ["/stream"]), who
    assert told["both"][0] == [2]
    assert told["both"][1] == told["forged"]["text"]
    assert told["still"] == [3]
    for name in ("many", "settings"):
        assert (told[name]["error"], told[name]["places"]) == ("InvalidInputError", [""]), name
        sentence(name, told[name]["text"])
    assert {name: [error["error"], *error["places"]] for name, error in told["wrong"].items()} == {
        "kind": ["InvalidInputError", "/kind"],
        "address": ["InvalidInputError", "/name"],
        "short": ["InvalidInputError", "/name"],
        "params": ["InvalidInputError", "/params"],
        "time": ["InvalidInputError", "/timeout"],
        "text": ["InvalidInputError", "/timeout"],
        "few": ["RuntimeServiceFailed"],
    }
    assert "'engine'" in told["wrong"]["kind"]["text"]
    sentence("few", told["wrong"]["few"]["text"])
    assert told["blocking"] == 42
    assert told["misused"]["error"] == "GuardUsageError"
    assert "sdk.engines.call" in told["misused"]["text"]
    assert told["own loop"] == 8
    assert told["object"]["error"] == "InvalidInputError"
    assert told["cancelled"] == "no longer"
