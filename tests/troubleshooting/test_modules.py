"""What a module meets, symptom by symptom: its very line is explained, the fix is applied, and the symptom is gone.

One application is started twice: as it was written, and after the entries that the explanations name were written into
the files that they name. What is approved instead is approved while the first one runs.
"""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.services.forks import HostCase
from tests.services.golden import sentence
from tests.services.rows import rows
from tests.troubleshooting import apply_entry

TROUBLE = str(Path(__file__).with_name("failing_application.py"))
CODE = """
import os, socket, subprocess, urllib.request
from democrai_sandbox import sdk

@sdk.action("read")
def read(path):
    with open(path) as file:
        return file.read()

@sdk.action("write")
def write(path):
    with open(path, "w") as file:
        return file.write("new")

@sdk.action("move")
def move(key, folder):
    own = os.open(folder, os.O_RDONLY)
    try:
        if key == "dir_fd":
            os.mkdir("b", dir_fd=own)
        elif key == "src_dir_fd":
            os.rename("a", folder + "/b", src_dir_fd=own)
        else:
            os.rename(folder + "/a", "b", dst_dir_fd=own)
    finally:
        os.close(own)

@sdk.action("by_path")
def by_path(folder):
    os.mkdir(folder + "/a")
    os.rename(folder + "/a", folder + "/b")
    return os.listdir(folder)

@sdk.action("load")
def load(root):
    try:
        __import__(root)
    except ModuleNotFoundError:
        return "is not installed"
    return "is loaded"

@sdk.action("start")
def start(way):
    {"run": lambda: subprocess.run(["true"]), "system": lambda: os.system("true"), "fork": os.fork}[way]()

@sdk.action("child")
async def child():
    return (await sdk.tasks.run_subprocess(["echo", "started"])).text.strip()

@sdk.action("dial")
def dial(host, port):
    socket.create_connection((host, port), 30).close()

@sdk.action("fetch")
def fetch(url):
    return urllib.request.urlopen(url, timeout=30).read().decode()

@sdk.action("picture")
async def picture(url):
    await sdk.media.fetch(url)

@sdk.action("ask")
def ask(**wanted):
    return sdk.access.check_external_access(**wanted).request_id

@sdk.action("approve")
def approve(request_id):
    sdk.access.approve_permanently(request_id)

@sdk.task("later")
def later(path):
    return read(path)

@sdk.tool("look", access=[])
def look(path: str) -> str:
    "Read under declarations of its own."
    return read(path)

@sdk.action("by_tool")
async def by_tool(path):
    return await sdk.ai.run_tool("look", {"path": path})
"""
ROOTS = ("ctypes", "_ctypes", "cffi", "_cffi_backend")
TARGET = (r"(?m)^target: .*", "target: ...")
"""The line of an explanation that each case has of its own."""
KEYS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
WAYS = {"run": "subprocess.run", "system": "os.system", "fork": "os.fork"}
MENDED = {"plain": "", "task": "read", "link": "", "near": "", "write": "", "stable": ""}
"""What is declared after the first time, and for which operation where the line does not say."""


def attempts(world):
    """Try everything once; what is told has a name each."""
    use = SimpleNamespace(**world.load(TROUBLE))
    cases = world.args[0]

    async def story(app):
        out = {name: await app.action("reports", action, params) for name, (action, params) in cases.items()}
        out["task"] = await app.task("reports", "later", {"path": world.args[1]})
        return out

    return use.Application(world.base).play(story)


def approvals(world):
    """What is chosen while it runs: asked for, approved, denied, changed."""
    use = SimpleNamespace(**world.load(TROUBLE))
    url, path = world.args

    async def story(app):
        async def fetch(place, session="s1"):
            return await app.action("reports", "fetch", {"url": f"{url}/{place}"}, session)

        async def ask(operation, target, session="s1"):
            kind = "filesystem" if operation == "read" else "network"
            wanted = {"resource_type": kind, "operation": operation, "target": target}
            return (await app.action("reports", "ask", wanted, session))["value"]

        out = {}
        request = await ask("read", path)
        out["path"] = [request, await app.action("reports", "read", {"path": path})]
        app.admin("approve_for_session", request)
        out["path approved"] = await app.action("reports", "read", {"path": path})
        request = await ask("receive", f"{url}/chosen")
        out["chosen"] = [request, await fetch("chosen")]
        out["by the module"] = await app.action("reports", "approve", {"request_id": request})
        app.admin("approve_for_session", request)
        out["chosen approved"] = [await fetch("chosen"), await fetch("chosen", "s2")]
        request = await ask("receive", f"{url}/denied")
        made = app.admin("deny_external_access", request, reason="not this one").decision
        out["denied"] = [made.id, await fetch("denied")]
        app.admin("revoke", made.id)
        out["revoked"] = await fetch("denied")
        app.admin("approve_permanently", await ask("receive", f"{url}/denied"))
        out["denied approved"] = await fetch("denied")
        request = await ask("receive", f"{url}/keyless", "")
        out["skipped"] = [app.admin("approve_for_session", request).skipped, await fetch("keyless", "")]
        app.admin("approve_permanently", request)
        out["keyless approved"] = await fetch("keyless", "")
        return out

    return use.Application(world.base).play(story)


# ---- one walk for all ------------------------------------------------------------------------------------------------


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self):
        body = f"GET {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def web():
    """The URL of a server that both applications meet."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A module with one folder to read and one to work in, and files around them."""
    base = tmp_path_factory.mktemp("walk")
    case = HostCase(base)
    outside = base / "outside"
    for name in ("declared", "declared2", "work"):
        (outside / name).mkdir()
    for name in ("plain", "task", "tool", "linked", "chosen", "declared/own", "declared2/near"):
        (outside / name).write_text(f"found {name}")
    (outside / "declared" / "link").symlink_to(outside / "linked")
    every = ["read", "create", "modify", "delete"]
    access = [
        {"resource_type": "filesystem", "operation": "read", "target": str(outside / "declared")},
        {"resource_type": "filesystem", "operation": every, "target": str(outside / "work")},
    ]
    folder = apply_entry.extension(base, "module", "reports", CODE, access=access)
    return SimpleNamespace(case=case, base=base, outside=outside, file=folder / "manifest.json")


@pytest.fixture(scope="module")
def walk(places, web):
    """What happened before the fixes, and after them."""
    outside = places.outside
    cases = {
        "plain": ("read", {"path": f"{outside}/plain"}),
        "tool": ("by_tool", {"path": f"{outside}/tool"}),
        "link": ("read", {"path": f"{outside}/declared/link"}),
        "relative": ("read", {"path": f"{outside}/work/../plain"}),
        "near": ("read", {"path": f"{outside}/declared2/near"}),
        "exact": ("read", {"path": f"{outside}/declared/own"}),
        "write": ("write", {"path": f"{outside}/declared/own"}),
        **{key: ("move", {"key": key, "folder": f"{outside}/work"}) for key in KEYS},
        **{root: ("load", {"root": root}) for root in ROOTS},
        **{way: ("start", {"way": way}) for way in WAYS},
        "child": ("child", {}),
        "empty": ("dial", {"host": "", "port": 443}),
        "asked empty": ("ask", {"resource_type": "network", "operation": "receive", "target": ""}),
        "picture": ("picture", {"url": f"{web}/picture?key=lion"}),
        "stable": ("fetch", {"url": f"{web}/stable"}),
    }
    arguments = (attempts, cases, f"{outside}/task")
    found = SimpleNamespace(before=places.case.run(*arguments, no_proxy="*"))
    found.printed_before = _media_flow(places)
    for name, operation in MENDED.items():
        apply_entry.declare(found.before[name], operation)
    for root in ROOTS:
        apply_entry.allow_import(places.file, found.before[root])
    cases["by path"] = ("by_path", {"folder": f"{outside}/work"})
    found.after = places.case.run(*arguments, no_proxy="*", DEMOCRAI_DEBUG_MEDIA_FLOW="1")
    found.printed_after = _media_flow(places)
    return found


def _media_flow(places):
    """What the application has printed about media."""
    lines = (places.base / "body.err").read_text().splitlines()
    return [line for line in lines if line.startswith("[MEDIA_FLOW] ")]


@pytest.fixture(scope="module")
def chosen(places, web, walk):
    """What happened to what is chosen while the application runs."""
    del walk  # it is the same folder: one after the other
    return places.case.run(approvals, web, f"{places.outside}/chosen", no_proxy="*")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_the_line_names_the_subject_and_the_path(walk, places):
    """1: the subject is in the line; its kind, the file and the entry are in the explanation; the entry mends it."""
    told = walk.before["plain"]
    path = f"{places.outside}/plain"
    assert told["line"] == f"sandbox_filesystem_denied:reports:{path}"
    (now,) = told["now"]
    assert (now["subject"], now["verdict"], now["file"]) == ("module:reports", "needs_approval", str(places.file))
    assert now["entry"] == {"resource_type": "filesystem", "operation": "read", "target": path}
    sentence("plain", now["advice"], folder=places.base)
    assert walk.after["plain"] == {"value": "found plain"}
    offline = apply_entry.said(told["line"])
    assert path in offline and "manifest.json" in offline


def test_the_kind_says_where_it_is_declared(walk, places):
    """2 and 3: a task has the manifest of its module; a tool with declarations has those, and no others."""
    task = apply_entry.about(walk.before["task"], "read")
    assert len({now["operation"] for now in walk.before["task"]["now"]}) > 1
    sentence("task", walk.before["task"]["note"])
    assert (Path(task["file"]), " reports" in task["advice"]) == (places.file, True)
    assert walk.after["task"] == {"value": "found task"}
    (tool,) = walk.before["tool"]["now"]
    assert (tool["subject"], " reports.look" in tool["advice"]) == ("tool:reports.look", True)
    sentence("tool", tool["advice"], folder=places.base)
    assert walk.after["tool"]["line"] == walk.before["tool"]["line"]  # nobody has changed that declaration


def test_links_and_dots_are_followed(walk, places):
    """4: the line has the place where the path leads, and that place is what is declared."""
    assert walk.before["link"]["target"] == f"{places.outside}/linked"
    assert walk.before["relative"]["target"] == f"{places.outside}/plain"
    assert walk.after["link"] == {"value": "found linked"}
    assert walk.after["relative"] == {"value": "found plain"}


def test_a_path_is_the_root_or_below_it(walk, places):
    """5: a name that only begins like a root is outside; the explanation names the nearest root, and why it is not."""
    assert walk.before["exact"] == {"value": "found declared/own"}
    (now,) = walk.before["near"]["now"]
    assert now["nearest"] == [f"{places.outside}/declared", "read"]
    sentence("near", now["layers"]["declared"], folder=places.base)
    assert walk.after["near"] == {"value": "found declared2/near"}


def test_a_root_is_for_an_operation(walk, places):
    """A root that is there to read is not there to write: both are named."""
    for operation in ("create", "modify"):  # opening to write may do either
        now = apply_entry.about(walk.before["write"], operation)
        assert now["nearest"] == [f"{places.outside}/declared", "read"]
        sentence(f"not for {operation}", now["layers"]["declared"], folder=places.base)
    assert walk.after["write"] == {"value": 3}


def test_a_path_that_a_user_chose_is_asked_for(chosen, places):
    """Not declared: the request waits, the explanation names it, and an approval opens the path at once."""
    request, told = chosen["path"]
    (now,) = told["now"]
    assert (now["verdict"], now["decides"]) == ("pending", ["request"])
    assert request in now["advice"]
    assert chosen["path approved"] == {"value": "found chosen"}
    assert f"{places.outside}/chosen" not in places.file.read_text()


# ---- descriptors, imports, programs ----------------------------------------------------------------------------------


@rows("key", KEYS)
def test_descriptors_are_for_installations(walk, key):
    """The line has the field; the fix is an ordinary path, which works under what is declared."""
    told = walk.before[key]
    assert told["line"] == f"sandbox_filesystem_fd_denied:reports:{key}"
    sentence("descriptors", apply_entry.said(told["line"]), also=[TARGET])
    assert walk.after["by path"] == {"value": ["b"]}


@rows("root", ROOTS)
def test_sensitive_imports_are_declared(walk, root):
    """The line has the root, which is what ``allowed_imports`` needs; another dependency is named as the better way."""
    told = walk.before[root]
    assert told["line"] == f"sandbox_module_denied:{root}"
    text = apply_entry.said(told["printed"])
    assert "allowed_imports" in text
    sentence("imports", text, also=[TARGET])
    assert walk.after[root]["value"] in ("is loaded", "is not installed")


@rows("way", WAYS)
def test_programs_are_started_by_the_sdk(walk, way):
    """The line has the function; the fix is the call of the SDK, which works in the same action."""
    told = walk.before[way]
    assert told["line"] == f"sandbox_subprocess_denied:{WAYS[way]}"
    text = apply_entry.said(told["line"])
    assert "sdk.tasks.run_subprocess" in text
    sentence("programs", text, also=[TARGET])
    assert walk.before["child"] == {"value": "started"}


# ---- the network -----------------------------------------------------------------------------------------------------


@rows("name", ["empty", "asked empty"])
def test_an_empty_target_is_no_matter_of_approval(walk, name):
    """A socket and a question without a target: nothing to approve is named, and nothing waits."""
    told = walk.before[name]
    assert "network_target_missing" in told["line"]
    assert told["code"] == "network_target_missing"
    assert "now" in told and told["now"] == []
    sentence("empty target", apply_entry.said(told["line"]))


def test_a_stable_target_is_declared(walk, web, places):
    """The response is the documented one; the entry has scheme, host, port and path, and mends it."""
    told = walk.before["stable"]
    # wording: the contract's
    assert told["line"] == f"External URL is locked. (sandbox_network_denied:reports:{web}/stable)"
    (now,) = told["now"]
    assert now["entry"] == {"resource_type": "network", "operation": "receive", "target": f"{web}/stable"}
    sentence("stable", now["advice"], folder=places.base)
    assert walk.after["stable"] == {"value": "GET /stable"}
    assert "check_external_access" in apply_entry.said("External URL is locked.")


def test_a_chosen_target_is_asked_for(chosen):
    """The call puts a request down, which the explanation names; approved for a session, it holds in that one."""
    request, told = chosen["chosen"]
    (now,) = told["now"]
    assert now["verdict"] == "pending" and request in now["advice"]
    sentence("chosen", now["advice"])
    mine, other = chosen["chosen approved"]
    assert mine == {"value": "GET /chosen"}
    assert other["now"][0]["answers"]["session_approval"] == "silent"
    sentence("chosen in another session", other["now"][0]["advice"])


def test_what_was_denied_is_changed_by_an_administrator(chosen):
    """The decision is named that has to be revoked; then it is locked as before, and can be approved."""
    decision, told = chosen["denied"]
    (now,) = told["now"]
    assert (now["verdict"], now["decides"]) == ("denied", ["denial"])
    assert decision in now["advice"] and "not this one" in now["layers"]["denial"]
    sentence("denied", now["advice"])
    assert chosen["revoked"]["now"][0]["verdict"] in ("pending", "needs_approval")
    assert chosen["denied approved"] == {"value": "GET /denied"}


def test_the_flow_shows_what_became_of_media(walk, web):
    """``DEMOCRAI_DEBUG_MEDIA_FLOW=1`` prints each step without queries and session keys; without it, none."""
    told = walk.before["picture"]
    assert told["line"].startswith("External URL is locked.")  # wording: the contract's
    assert apply_entry.about(told, "receive")["entry"]["target"] == f"{web}/picture"
    assert walk.printed_before == []
    text = "\n".join(walk.printed_after)
    assert {"begin", "locked"} <= {line.split()[1] for line in walk.printed_after}
    assert f"{web}/picture" in text and "lion" not in text and "'s1'" not in text


def test_a_module_does_not_approve(chosen):
    """Whatever user it runs for: who may is said."""
    told = chosen["by the module"]
    assert "external_access_admin_required" in told["line"]
    assert told["code"] == "external_access_admin_required"


def test_without_a_session_key_there_is_no_approval_for_a_session(chosen):
    """It is skipped and said; a permanent one helps."""
    skipped, told = chosen["skipped"]
    assert told["now"][0]["answers"]["session_approval"] == "silent"
    sentence("without a session", f"{skipped}\n{told['now'][0]['layers']['session_approval']}")
    assert chosen["keyless approved"] == {"value": "GET /keyless"}


def test_the_manifest_has_what_was_named_and_no_more(walk, places):
    """Each fix is one entry: nothing broader than what was asked for."""
    del walk
    added = json.loads(places.file.read_text())["access"][2:]
    names = [Path(entry["target"]).name for entry in added]
    assert names == ["plain", "task", "linked", "near", "own", "own", "stable"]
