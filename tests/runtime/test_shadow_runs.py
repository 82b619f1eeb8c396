"""Shadow runs of everything that has a manifest: in this process, in workers, and for programs of a module."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from types import SimpleNamespace

from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.guard import AccessQuestion
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns

HOUSE = os.path.join(os.path.dirname(__file__), "host_setup.py")

CODE = """
import os, urllib.request
from democrai_sandbox import sdk

def tried(act):
    try:
        return act()
    except Exception as error:
        return type(error).__name__

def everything(paths, urls):
    read = [tried(lambda: open(path).read()) for path in paths]
    return read + [tried(lambda: urllib.request.urlopen(url, timeout=10).read().decode()) for url in urls]
"""
MODULE = f"""{CODE}
@sdk.action("all")
def act(paths, urls): return everything(paths, urls)

@sdk.tool("look")
def look(path: str) -> str: return open(path).read()

@sdk.action("tool")
async def tool(path): return await sdk.ai.run_tool("look", {{"path": path}})

@sdk.action("flood")
def flood(folder, number): return len([tried(lambda: os.stat(f"{{folder}}/{{n}}")) for n in range(number)])

@sdk.action("host")
async def host(url, folder):
    answer = await sdk.media.fetch(url)
    done = await sdk.tasks.run_subprocess(["/bin/cat", "f"], cwd=folder)
    return [answer.body.decode(), done.text]

@sdk.action("tamper")
def tamper():
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import _core
    from democrai_sandbox.host import overview
    ada = Caller(user_id="ada", role="super")
    return [tried(lambda: _core.candidate("module:near", None)), tried(lambda: overview.list_shadows(None, ada))]
"""
ENGINE = f"""{CODE}
@sdk.method("all")
def act(paths, urls): return everything(paths, urls)
"""


def rules(house, *names):
    read = [{"resource_type": "filesystem", "operation": "read", "target": f"{house.base}/outside/{n}"} for n in names]
    web = [{"resource_type": "network", "operation": "receive", "target": f"{house.web.url}/{n}"} for n in names]
    return [*read, *web]


def furnished(world):
    house = world.load(HOUSE)["House"](world)
    for name in ("kept", "dropped", "added", "approved"):
        house.file(f"{name}/f", name)
    present = rules(house, "kept", "dropped", "approved")
    house.extension("near", MODULE, access=present)
    house.extension("far", MODULE, access=present)
    house.extension("apart", ENGINE, kind="engine", runtime={"access": present})
    return house


def candidate(house, subject):
    kind, _, name = subject.partition(":")
    access = {"access": rules(house, "kept", "added")}
    return json.dumps({"name": name, **(access if kind == "module" else {"runtime": access})})


def times(shown):
    return {(effect, *about): count for effect, listed in shown.items() for *about, count in listed}


def complete(shown):
    return len(shown["denied"]) == len(shown["allowed"]) == 2


async def until(happened):
    async with asyncio.timeout(60):
        while not (found := happened()):
            await asyncio.sleep(0.05)
        return found


def beside(world):
    """Run each subject before, during and after a shadow run; return outcomes and findings by subject."""
    house = furnished(world)
    names = ("kept", "dropped", "added", "approved")
    given = {
        "paths": [f"{house.base}/outside/{name}/f" for name in names],
        "urls": [f"{house.web.url}/{n}" for n in names],
    }

    async def story():
        from democrai_sandbox.access import Caller
        from democrai_sandbox.host import overview
        from democrai_sandbox.policy import Subject

        runtime, access = house.runtime, house.access
        sandbox = SimpleNamespace(runtime=runtime, access=access)
        ada, uma = Caller(user_id="ada", role="super"), Caller(user_id="uma", session_key="s1")
        await runtime.engines.install("apart")
        found = {}

        def call(subject):
            kind, _, name = subject.partition(":")
            if kind == "module":
                return runtime.modules.action(name, "all", given, uma)
            return runtime.engines.call(name, "all", given, uma)

        def seen(run):
            shown = overview.show_shadow(sandbox, run.id, ada)
            listed = lambda findings: sorted([f.resource_type, f.operation, f.target, f.count] for f in findings)  # noqa: E731
            return {"denied": listed(shown.denied), "allowed": listed(shown.allowed)}

        for subject in ("module:near", "module:far", "engine:apart"):
            for kind, operation, target in (
                ("filesystem", "read", f"{house.base}/outside/approved"),
                ("network", "receive", f"{house.web.url}/approved"),
            ):
                house.decide("approval", subject, kind, operation, target)
            before = await call(subject)
            run = overview.start_shadow(sandbox, Subject.parse(subject), candidate(house, subject), ada)
            outcomes = []
            while not complete(seen(run)):  # a worker receives it while a call is already running
                outcomes.append(await call(subject))
                runtime.shadows.flush()
            await asyncio.to_thread(runtime.shadows.flush)
            first = times(seen(run))
            outcomes += [await call(subject), await call(subject)]
            wanted = {about: count + 2 for about, count in first.items()}
            await until(lambda run=run, wanted=wanted: times(seen(run)) == wanted)
            shown = seen(run)
            overview.end_shadow(sandbox, run.id, ada)
            after = await call(subject)
            runtime.shadows.flush()
            found[subject] = [all(one == before for one in [*outcomes, after]), before, shown, seen(run) == shown]
        return found

    return house.serve(story, isolation={"module:far": "process"})


def test_subjects_run_as_before_and_differences_are_found(case):
    """Files and URLs, in process, in a worker, in an engine: outcomes stay; entries are dropped, added or approved."""
    found = case.run(beside, timeout=280)
    out = str(case.outside)
    for subject, (same, before, shown, kept) in found.items():
        assert same, subject
        assert before[:4] == ["kept", "dropped", "FilesystemDenied", "approved"]
        assert before[4:] == ["GET /kept", "GET /dropped", "NetworkDenied", "GET /approved"]
        file, url = shown["denied"]
        assert file[:3] == ["filesystem", "read", f"{out}/dropped/f"]
        assert (url[:2], url[2].endswith("/dropped")) == (["network", "receive"], True)
        file, url = shown["allowed"]
        assert file[:3] == ["filesystem", "read", f"{out}/added/f"]
        assert (url[:2], url[2].endswith("/added")) == (["network", "receive"], True)
        assert kept, subject


def hostile(world):
    house = furnished(world)
    folder = f"{house.base}/outside/dropped"

    async def story():
        from democrai_sandbox.access import Caller
        from democrai_sandbox.guard import AccessQuestion
        from democrai_sandbox.host import overview
        from democrai_sandbox.policy import Subject

        runtime = house.runtime
        sandbox = SimpleNamespace(runtime=runtime, access=house.access)
        ada, uma = Caller(user_id="ada", role="super"), Caller(user_id="uma", session_key="s1")
        run = {
            name: overview.start_shadow(
                sandbox, Subject.parse(f"module:{name}"), candidate(house, f"module:{name}"), ada
            )
            for name in ("near", "far")
        }
        found = {
            "near url": f"{house.web.url}/dropped",
            "tamper": await runtime.modules.action("near", "tamper", {}, uma),
        }
        found["chain"] = [await runtime.modules.action("near", "tool", {"path": f"{folder}/f"}, uma)]
        runtime.shadows.flush()
        found["chain"] += [list(one.chain) for one in overview.show_shadow(sandbox, run["near"].id, ada).denied]
        given = {"url": f"{house.web.url}/dropped", "folder": folder}
        found["by the host"] = [await runtime.modules.action(name, "host", given, uma) for name in ("near", "far")]
        runtime.shadows.flush()
        found["by the host"] += [
            sorted([one.operation, one.target] for one in overview.show_shadow(sandbox, run[name].id, ada).denied)
            for name in ("near", "far")
        ]
        long = "l" * 100_000  # as a worker could report it
        lie = (
            f"near.{long}",
            "tool",
            ("module:near", f"tool:near.{long}"),
            *(long,) * 3,
            False,
            *(None,) * 3,
            "",
            None,
        )
        runtime.shadows.saw_in("module:near", AccessQuestion(lie), allowed=True, times=1)
        runtime.shadows.flush()
        [told] = [one for one in overview.show_shadow(sandbox, run["near"].id, ada).denied if one.target[0] == "l"]
        found["lie"] = sum(map(len, (told.resource_type, told.operation, told.target, *told.chain))) < 5000
        os.kill(runtime.modules.loaded("far").worker.pid, 9)

        def counted(name):
            shown = overview.show_shadow(sandbox, run[name].id, ada)
            return sum(one.count for one in shown.denied) + shown.run.other_denied

        for name, number in (("near", 2100), ("far", 50)):
            before = counted(name)
            await runtime.modules.action(name, "flood", {"folder": folder, "number": number}, uma)
            await until(lambda name=name, wanted=before + number: counted(name) == wanted)
        found["kept"] = {name: len(overview.show_shadow(sandbox, run[name].id, ada).denied) for name in run}
        try:
            overview.start_shadow(sandbox, Subject.parse("module:far"), "{}", uma)
        except PermissionError as error:
            found["uma"] = type(error).__name__
        return found

    return house.serve(story, isolation={"module:far": "process"})


def test_a_subject_cannot_see_end_or_flood_it(case):
    """Its accesses are counted, not all are stored, and a restarted process continues the run."""
    found = case.run(hostile, timeout=280)
    assert found["tamper"] == ["TamperDenied", "TamperDenied"]
    assert found["chain"] == ["dropped", ["module:near", "tool:near.look"]]
    url, folder = found["near url"], str(case.outside / "dropped")
    near, far = ([["read", folder], ["receive", url]], [["read", folder], ["receive", url]])
    assert found["by the host"][:2] == [["GET /dropped", "dropped"]] * 2
    assert found["by the host"][2:] == [sorted([*near, ["read", f"{folder}/f"]]), far]
    assert found["kept"] == {"near": 1000, "far": 52}
    assert found["uma"] == "ExternalAccessAdminRequired"
    assert found["lie"]


def test_nothing_that_waits_for_the_store_is_lost(monkeypatch):
    """While the store is down, more accesses happen than the buffer can hold: all are counted when it is back."""
    monkeypatch.setattr("democrai_sandbox.runtime.extensions.shadow_runs._MOST_SEEN", 4)
    run = SimpleNamespace(id="r-1", subject=Subject("module", "near"), candidate="{}")
    moments, written = itertools.count(), []

    def look(*names):
        for name in names:
            what = ("near", "module", ("module:near",), "filesystem", "read", f"/{name}", False, "ann", "acme", "s", "")
            shadows.saw_in("module:near", AccessQuestion((*what, None)), allowed=True, times=1)

    def fail(run_id, findings):
        look("f", "g", "h")
        raise StoreUnavailable

    store = SimpleNamespace(shadows=lambda running: [run], add_findings=fail)
    node = SimpleNamespace(clock=lambda: next(moments), snapshot=SimpleNamespace(find=lambda *_: None))
    shadows = ShadowRuns(store, node, lambda subject, candidate: "")
    shadows.refresh()
    look("a", "b", "a", "c")
    shadows.flush()
    store.add_findings = lambda run_id, findings: written.extend(findings)
    shadows.flush()
    assert {one.target: one.count for one in written} == {"/f": 1, "/g": 1, "/h": 1, "/a": 2, "": 2}
    assert min(one.first_seen for one in written) == 0
    (rest,) = (one for one in written if not one.target)
    assert (rest.first_seen, rest.last_seen) == (1, 3)  # of b and c
