"""Tools that ask for undeclared access: the call chain in pending requests and the audit log, with the real service."""

from __future__ import annotations

import os
import shutil
import threading

KIT = os.path.join(os.path.dirname(__file__), "kit.py")

ASKING = """
from urllib.request import urlopen

@sdk.action("go")
async def go(url: str):
    run = await ai.run_pipeline("monthly", {"url": url})
    return [run.value, list(run.denials)]

@ai.pipeline("monthly", steps=["writer"])
async def monthly(url: str): ...

@ai.agent("writer", model="script", tools=["fetch"])
async def writer(url: str):
    return url

@ai.tool("fetch")
def fetch(url: str) -> str:
    with urlopen(url, timeout=30) as answer:
        return answer.read().decode()
"""


def open_access(world):
    """Return the service as a host sets it up, as the decider of the guard."""
    from democrai_sandbox import access_changed, configure_guard
    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings

    folder = os.path.join(world.base, "state")
    os.makedirs(folder)
    shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(folder, "access.db"))
    settings = AccessSettings(database=f"sqlite:///{folder}/access.db", key_file=f"{folder}/keys", poll_seconds=0.1)
    access = Access(settings, GuardSurroundings())
    configure_guard(decider=access.service, protected_paths=[folder])
    access.node.on_change(access_changed)
    return access


def serve():
    """Run a server that echoes the requested path; yield its address."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ANSWER " + self.path.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def request_story(world):
    kit = world.load(KIT)
    from democrai_sandbox.access import Caller
    from democrai_sandbox.runtime.access_environment import serving

    access, origin = open_access(world), serve()
    script = [
        lambda messages: kit["calls"](("fetch", {"url": messages[-1].text})),
        lambda messages: messages[-1].text,
    ]
    told = {}
    with access:
        host = kit["Host"](world, {"demo": ASKING}, {"script": kit["ScriptedModel"](script)})
        told["broken"] = host.broken
        told["before"] = host.told(host.act("demo", "go", url=f"{origin}/v1"))
        admin = access.administration
        with serving(Caller(user_id="ada", role="super")):
            [request] = admin.pending_requests().items
            told["request"] = [str(request.access.subject), request.access.operation, list(request.chain)]
            told["origin"] = [request.origin.user_id, request.origin.session_key]
            told["id"] = request.id
            told["audit"] = [[record.action, record.actor, dict(record.after)] for record in admin.history().items]
            admin.approve_for_session(request.id)
        told["after"] = host.told(host.act("demo", "go", url=f"{origin}/v1"))
        other = Caller(user_id="uma", session_key="s2")
        told["other session"] = host.told(host.act("demo", "go", caller=other, url=f"{origin}/v1"))
        told["module itself"] = host.told(host.ai.run("tool", "demo.fetch", {"url": f"{origin}/v1"}, other))
    return told


def test_requests_and_the_audit_have_the_whole_chain(case):
    """The tool is the subject; the enclosing subjects are in the row.

    Approved for the session, it works in that session.
    """
    told = case.run(request_story)
    assert told["broken"] == {}
    chain = ["module:demo", "pipeline:demo.monthly", "agent:demo.writer", "tool:demo.fetch"]
    assert told["request"] == ["tool:demo.fetch", "receive", chain]
    assert told["origin"] == ["uma", "s1"]
    text, [denial] = told["before"]
    assert "sandbox_network_denied:demo.fetch:" in text
    assert (denial["code"], denial["request_id"]) == ("sandbox_network_denied", told["id"])
    assert denial["subject_chain"] == chain
    [[action, actor, after]] = told["audit"]
    assert actor == "subject:tool:demo.fetch"
    assert after["chain"] == chain
    assert told["after"] == ["ANSWER /v1", []]
    [refusal] = told["other session"][1]
    assert (refusal["code"], refusal["subject_chain"]) == ("sandbox_network_denied", chain)
    # wording: the contract has this text
    assert "External URL is locked." in told["other session"][0]
    assert told["module itself"]["chain"] == ["module:demo", "tool:demo.fetch"]
