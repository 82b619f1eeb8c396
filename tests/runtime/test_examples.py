"""The example modules, run as in a host: permitted operations work, all others fail."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

HOUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host_setup.py")
EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(HOUSE), "../../examples/extensions"))


def furnished(world, *modules):
    """Return a house with example modules, whose manifests name paths of this machine."""
    use = SimpleNamespace(**world.load(HOUSE))
    house = use.House(world)
    places = {
        "reports": {"/srv/democrai/sales": os.path.join(world.base, "sales"), "https://api.example.com": house.web.url},
        "digest": {"https://api.example.com": house.web.url},
        "converter": {},
    }
    for name in modules:
        house.example("module", name, EXAMPLES, **places[name])
    return use, house


def reports_story(world):
    use, house = furnished(world, "reports")
    sales, rates = os.path.join(world.base, "sales"), f"{house.web.url}/v1/rates"
    os.makedirs(sales)
    use.write_text(f"{sales}/may.csv", "3,4,5")
    letter = house.file("figures.csv", "1,2")
    uma = use.caller()

    async def story():
        modules = house.runtime.modules
        out = {"problems": house.problems()}
        out["written"] = await modules.action("reports", "write", {"month": "may", "sales": sales, "rates": rates}, uma)
        out["shown"] = await modules.render("reports", {}, uma)
        out["read"] = await modules.command("reports", "read", {"month": "may"}, uma)
        out["asked"] = await modules.action("reports", "import", {"path": letter}, uma)
        house.admin("approve_for_session", out["asked"]["waits for"])
        out["approved"] = await modules.action("reports", "import", {"path": letter}, uma)
        out["elsewhere"] = await modules.action("reports", "import", {"path": letter}, use.caller(session_key="s2"))
        out["misbehaved"] = await modules.command("reports", "misbehave", {"sales": sales, "rates": rates}, uma)
        return out

    return {**house.serve(story, isolation={"module:reports": world.args[0]}), "web": house.web.asked}


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_reports_does_what_it_may_and_nothing_else(case, isolation):
    """Its page, actions and commands work in either kind of process; eleven forbidden attempts fail."""
    told = case.run(reports_story, isolation)
    assert told["problems"] == {}
    assert told["written"] == told["read"] == "may: 12 sold; GET /v1/rates/may"
    assert told["shown"] == {"title": "Reports", "for": "uma", "months": ["may"]}
    assert told["approved"] == {"figures": "1,2"}
    assert "waits for" in told["elsewhere"]
    assert told["misbehaved"] == {
        "read a file of the host": "FilesystemDenied",
        "change what it may only read": "FilesystemDenied",
        "change its own code": "FilesystemDenied",
        "look at the data of others": "FilesystemDenied",
        "fetch another page of the server": "NetworkDenied",
        "post to the page it may fetch": "NetworkDenied",
        "open a socket to the server": "NetworkDenied",
        "start a program by itself": "SubprocessDenied",
        "use native code": "ModuleDenied",
        "call itself something else": "EnvironmentDenied",
        "decide for itself": "ExternalAccessAdminRequired",
    }
    assert told["web"] == ["/v1/rates/may"]


WAITING = """
import asyncio
from democrai_sandbox import sdk

@sdk.task("wait")
async def wait():
    await asyncio.sleep(60)
"""


def digest_story(world):
    use, house = furnished(world, "digest", "reports")
    house.extension("other", WAITING)
    os.makedirs(os.path.join(world.base, "sales"))
    news = f"{house.web.url}/v1/news"
    uma = use.caller()

    async def story():
        runtime = house.runtime
        out = {"problems": house.problems()}
        pages = [f"{news}/{number}" for number in range(3)]
        started = await runtime.modules.action("digest", "collect", {"pages": pages}, uma)
        out["collected"] = await house.ended(started)
        out["status"] = await runtime.modules.action("digest", "status", {"task_id": started}, uma)
        refused = await runtime.modules.action("digest", "collect", {"pages": [f"{house.web.url}/v1/other"]}, uma)
        out["refused"] = await house.ended(refused)
        out["failure"] = (await runtime.modules.action("digest", "status", {"task_id": refused}, uma))["failure"]
        # The first run of a schedule is due after one period; here it is started directly, without a user.
        out["tidied"] = await house.task("digest", "tidy", user_id="", session_key="")
        foreign = await runtime.tasks.submit("other", "wait", {}, uma)
        params = {"other": f"{house.web.url}/v1/other", "task_of_another": foreign}
        out["misbehaved"] = await house.task("digest", "misbehave", params)
        out["still"] = str((await runtime.tasks.status(foreign)).state)
        return out

    return house.serve(story, isolation={"module:digest": world.args[0]})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_digest_works_in_the_background_as_the_module_it_is(case, isolation):
    """Its tasks have the module's rights, and user and session of the request, and use no tasks of other modules."""
    told = case.run(digest_story, isolation)
    assert told["problems"] == {}
    assert told["collected"] == {"pages": 3, "for": "uma", "session": "s1"}
    assert told["status"]["state"] == "done"
    assert told["status"]["fraction"] == 1
    assert told["refused"] == "NetworkDenied"
    assert told["failure"]["denial"] == "sandbox_network_denied"
    assert told["tidied"] == {"removed": 3, "session": ""}
    assert told["misbehaved"] == {
        "read a file of the host": "FilesystemDenied",
        "fetch what is not declared": "NetworkDenied",
        "start a program by itself": "SubprocessDenied",
        "look at a task of another module": "TaskUnknown",
        "stop a task of another module": "TaskUnknown",
    }
    assert told["still"] == "running"


def converter_story(world):
    use, house = furnished(world, "converter")
    program = house.file("program", "#!/bin/sh\necho hello\n")
    os.chmod(program, 0o755)
    uma = use.caller()

    async def story():
        modules = house.runtime.modules
        return {
            "problems": house.problems(),
            "sorted": await modules.action("converter", "sort", {"text": "pear\napple\n"}, uma),
            "shouted": await use.told(modules.action("converter", "shout", {"text": "hello"}, uma)),
            "counted": await modules.action("converter", "count", {"limit": 3}, uma),
            "child": await modules.action("converter", "child", {"text": "one two three"}, uma),
            "misbehaved": await modules.command("converter", "misbehave", {"program": program}, uma),
            "pending": house.pending() == [["module:converter", "execute", program]],
        }

    return house.serve(story, isolation={"module:converter": world.args[0]})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_converter_starts_programs_by_the_one_way_there_is(case, isolation):
    """System programs and its own program run, a Python child is guarded too, and all other ways are refused."""
    told = case.run(converter_story, isolation)
    assert told["problems"] == {}
    assert told["sorted"] == ["apple", "pear"]
    assert told["shouted"] == "HELLO"
    assert told["counted"] == ["again"] * 3
    assert told["child"] == {
        "who": ["module:converter"],
        "words": 3,
        "read a file of the host": "FilesystemDenied",
        "reach another host": "NetworkDenied",
        "start a program": "SubprocessDenied",
    }
    assert told["misbehaved"] == {
        "start one by itself": "SubprocessDenied",
        "start one in a thread": "SubprocessDenied",
        "become another program": "SubprocessDenied",
        "start one that is not the system's": "FilesystemDenied",
        "start one in a folder of the host": "FilesystemDenied",
        "let a child call itself something else": "EnvironmentDenied",
        "put other code into a child": "EnvironmentDenied",
    }
    assert told["pending"]
