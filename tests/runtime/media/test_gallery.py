"""The example module, run by the runtime as in a host."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading

import pytest

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")
EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(STAGE), "../../../examples/extensions/modules"))


def gallery_story(world):
    from types import SimpleNamespace

    from democrai_sandbox.access import Access, AccessSettings, Caller
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.runtime import Runtime

    stage = SimpleNamespace(**world.load(STAGE))
    here, there = stage.Site("127.0.0.1"), stage.Site("127.0.0.2")
    here.text("/gallery/one.png", b"PNG" * 100, content_type="image/png", cache_control="max-age=60")
    here.text("/gallery", b"index")
    ticked = threading.Event()
    here.routes["/gallery/slow.png"] = lambda *_: stage.answer(b"slow", "200 OK" if ticked.wait(60) else "504 Late")
    here.moved("/gallery/moved", there.url("/secret"))
    there.text("/two.png", b"two", content_type="image/png", cache_control="max-age=60")
    there.text("/secret", b"secret")
    modules = os.path.join(world.base, "modules")
    shutil.copytree(os.path.join(EXAMPLES, "gallery"), os.path.join(modules, "gallery"))
    path = os.path.join(modules, "gallery", "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    manifest["access"][0]["target"] = here.url("/gallery")
    with open(path, "w") as file:
        json.dump(manifest, file)
    state = os.path.join(world.base, "state")
    os.makedirs(state)
    access = Access(
        AccessSettings(database=stage.database(state), key_file=f"{state}/keys", poll_seconds=0.1),
        GuardSurroundings(),
    )
    settings = RuntimeSettings(
        data_dir=os.path.join(world.base, "data"), modules_path=modules, isolation={"module:gallery": world.args[0]}
    )
    runtime = Runtime(settings, access, protected_paths=[state])
    assert sdk_services.is_served("media.fetch")
    uma = Caller(user_id="uma", session_key="s1")
    out = {}

    async def tick():
        for _ in range(20):
            await asyncio.sleep(0.01)
        ticked.set()

    async def story():
        async def show(url):
            return await runtime.modules.action("gallery", "show", {"url": url}, uma)

        out["first"] = await show(here.url("/gallery/one.png"))
        out["again"] = (await show(here.url("/gallery/one.png")))["kept"]
        out["preview"] = await runtime.modules.action(
            "gallery", "preview", {"url": here.url("/gallery/one.png"), "size": 5}, uma
        )
        out["size"] = await runtime.modules.command("gallery", "size", {"url": here.url("/gallery/one.png")}, uma)
        out["poisoned"] = await runtime.modules.command("gallery", "poison", {}, uma)
        out["after poison"] = await show(here.url("/gallery/one.png"))
        out["locked"] = await show(there.url("/two.png"))
        with serving(Caller(user_id="ada", role="super")):
            access.administration.approve_for_session(out["locked"]["request"])
        out["approved"] = [await show(there.url("/two.png")), await show(there.url("/two.png"))]
        out["other session"] = await runtime.modules.action(
            "gallery", "show", {"url": there.url("/two.png")}, Caller(user_id="uma", session_key="s2")
        )
        ticking = asyncio.create_task(tick())
        out["slow"] = (await show(here.url("/gallery/slow.png")))["status"]
        await ticking
        urls = {"declared": here.url("/gallery"), "other": there.url("/secret")}
        out["misbehaved"] = await runtime.modules.command("gallery", "misbehave", urls, uma)

    async def serve():
        async with runtime:
            out["problems"] = [str(problem) for problem in runtime.modules.extensions["gallery"].problems]
            if not out["problems"]:
                await story()

    with access:
        asyncio.run(serve())
    out["secret"] = "/secret" in there.paths()
    return out


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_the_gallery_shows_what_it_may_and_nothing_else(case, isolation):
    """Declared images arrive and are cached, others wait for approval, and forbidden attempts fail."""
    told = case.run(gallery_story, isolation)
    assert told["problems"] == []
    assert (told["first"]["status"], told["first"]["bytes"], told["first"]["kept"]) == (200, 300, False)
    assert told["first"]["type"] == "image/png"
    assert told["again"] is True
    assert "PNGPN" in str(told["preview"])
    assert told["size"] == 300
    assert told["poisoned"] == 1
    assert (told["after poison"]["kept"], told["after poison"]["bytes"]) == (False, 300)
    assert told["locked"]["locked"].endswith("/two.png")
    assert [item["kept"] for item in told["approved"]] == [False, False]
    assert "locked" in told["other session"]
    assert told["misbehaved"] == {
        "fetch what is not declared": "NetworkDenied",
        "be led there by a redirect": "NetworkDenied",
        "open it without the runtime": "NetworkDenied",
        "connect to the host": "NetworkDenied",
        "send a cookie along": "InvalidInputError",
        "post something": "InvalidInputError",
        "read a file": "InvalidInputError",
    }
    assert not told["secret"]
    assert told["slow"] == 200  # the server waited until the host's loop had continued
