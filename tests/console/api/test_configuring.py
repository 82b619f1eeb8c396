"""Models, MCP servers, engine settings and installations of a node, by configuration and API."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import EXTENSIONS, Served, serving, until

API = "/api/v1"
AWAY = {"resource_type": "network", "operation": "send", "target": "http://127.0.0.1:9/v1/chat/completions"}
KEY = "sk-a-key-that-nobody-sees"
MODULE = """
import os
from democrai_sandbox import sdk

@sdk.render
def render():
    return {"ok": True}

@sdk.agent("writer", model="default", access=[ACCESS])
def writer(question: str):
    return question

@sdk.agent("stranger", model="defualt")
def stranger(question: str):
    return question

@sdk.agent("waiting", model="away")
def waiting(question: str):
    return question

@sdk.action("ask")
async def ask(agent, question):
    return (await sdk.ai.run_agent(agent, {"question": question})).value

@sdk.action("add")
async def add(server, a, b):
    return (await sdk.mcp.call_tool(server, "add", {"a": a, "b": b}))["structured"]

@sdk.action("peek")
def peek(path):
    with open(path) as file:
        return file.read()

@sdk.action("environment")
def environment():
    return dict(os.environ)

@sdk.action("look")
async def look(engine):
    return await sdk.engines.call(engine, "look", {})
"""
ENGINE = """
import urllib.request
from democrai_sandbox import sdk

@sdk.method("look")
def look():
    with urllib.request.urlopen(sdk.engines.settings()["service_url"], timeout=10) as answer:
        return answer.read().decode()
"""


class Model(http.server.BaseHTTPRequestHandler):
    """A chat-completions model that repeats its input."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers.get("Authorization"), body))
        said = {"role": "assistant", "content": f"you said: {body['messages'][-1]['content']}"}
        self.answer({"choices": [{"message": said}]})

    def do_GET(self):
        self.answer({"path": self.path})

    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def model():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.seen = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def calculators():
    """Two real MCP servers, one per transport, and their addresses."""
    started, urls = [], {}
    for transport, path in (("streamable_http", "mcp"), ("sse", "sse")):
        command = [sys.executable, str(EXTENSIONS / "mcp" / "server.py"), transport, "0"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        urls[transport] = f"http://127.0.0.1:{int(started[-1].stdout.readline())}/{path}"
    yield urls
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def furnish(folder, model_url):
    """Write the configured extensions; return the folders of the configuration."""
    access = {"resource_type": "network", "operation": "send", "target": f"{model_url}/v1/chat/completions"}
    here = {"resource_type": "filesystem", "operation": "read", "target": str(folder)}
    for kind, name, manifest, code in (
        ("modules", "demo", {"access": [access, AWAY, here]}, MODULE.replace("ACCESS", repr(access))),
        ("engines", "reader", {"runtime": {"allowed_config_urls": ["service_url"]}}, ENGINE),
        ("engines", "other", {"runtime": {"allowed_config_urls": ["service_url"]}}, ENGINE),
        ("extractors", "empty", {}, ""),
    ):
        place = Path(folder, "own", kind, name)
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(json.dumps({"name": name, **manifest}))
        (place / f"{kind.removesuffix('s')}.py").write_text(code)
    return {f"{kind}_path": str(Path(folder, "own", kind)) for kind in ("modules", "engines", "extractors")}


@pytest.fixture(scope="module")
def node(tmp_path_factory, model, calculators):
    folder = tmp_path_factory.mktemp("configured")
    key = folder / "model.key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    (folder / "beside").write_text("open")  # a worker may read only the files beside a key that exist at its start
    models = {
        "default": {"endpoint": f"{model.url}/v1", "model": "small", "api_key_file": str(key)},
        "away": {"endpoint": "http://127.0.0.1:9/v1", "model": "small", "timeout_seconds": 2},
    }
    configured = {
        "models": models,
        "mcp": {"servers": {"calculator": {"endpoint_url": calculators["streamable_http"]}}},
        "engines": {"reader": {"install": True, "settings": {"service_url": f"{model.url}/configured"}}},
        "extractors": {"empty": {"install": False}},
    }
    found = Served(folder, {**furnish(folder, model.url), "extensions": configured}, extensions=False)
    yield found
    found.stop()
    found.web.stop()


@pytest.fixture(scope="module")
def admin(node):
    with node.bearer(node.administrator()) as client:
        yield client


def run(client, action, **params):
    answer = client.post(f"{API}/modules/demo/actions/{action}", json={"params": params})
    return answer.json().get("result", answer.json())


def test_an_agent_uses_a_configured_model(node, admin, model):
    """The key is read from its file, sent to the model, and neither shown nor logged."""
    assert run(admin, "ask", agent="writer", question="hello") == "you said: hello"
    path, authorization, body = model.seen[-1]
    assert (path, authorization, body["model"]) == ("/v1/chat/completions", f"Bearer {KEY}", "small")
    shown = admin.get(f"{API}/models").text + admin.get(f"{API}/extensions/module/demo").text
    assert KEY not in shown + node.log.read_text() + "\n".join(node.said)


def test_no_module_reads_the_key(node, admin):
    """Not even a module that may read the parent folder."""
    assert run(admin, "peek", path=str(node.folder / "beside")) == "open"
    assert run(admin, "peek", path=str(node.folder / "model.key"))["code"] == "sandbox_filesystem_denied"


def test_models_are_listed_with_the_agents_that_use_them(admin):
    """A missing model is listed with the nearest name."""
    found = {item["name"]: item for item in admin.get(f"{API}/models").json()["items"]}
    assert (found["default"]["is_configured"], found["default"]["agents"]) == (True, ["demo.writer"])
    assert (found["defualt"]["is_configured"], found["defualt"]["agents"]) == (False, ["demo.stranger"])


def test_a_missing_model_breaks_its_agent_only(admin):
    """The module renders; the error of the agent has the missing setting."""
    assert admin.post(f"{API}/modules/demo/render", json={}).json() == {"result": {"ok": True}}
    said = run(admin, "ask", agent="stranger", question="hello")
    assert said["code"] == "extension_failed"
    assert "model_failed" in said["detail"] and "extensions.models" in said["detail"]
    assert "'default'" in said["detail"]


def test_a_model_that_cannot_be_reached_breaks_its_agent_only(admin):
    """The model is contacted only by an agent."""
    said = run(admin, "ask", agent="waiting", question="hello")
    assert (said["code"], "model_failed: http://127.0.0.1:9/" in said["detail"]) == ("extension_failed", True)
    assert admin.post(f"{API}/modules/demo/render", json={}).json() == {"result": {"ok": True}}


def test_a_model_is_added_changed_and_removed(node, admin, model):
    """Agents use each change at the next call; the key is encrypted and never shown."""
    secret = "sk-a-key-that-was-entered"
    new = {"name": "defualt", "endpoint": f"{model.url}/v1", "model": "large", "api_key": secret}
    added = admin.post(f"{API}/models", json=new)
    assert added.status_code == 201
    facts = {key: added.json()[key] for key in ("source", "has_key", "model", "is_configured", "agents")}
    assert facts == {
        "source": "database",
        "has_key": True,
        "model": "large",
        "is_configured": True,
        "agents": ["demo.stranger"],
    }
    assert admin.post(f"{API}/models", json=new).status_code == 409
    assert run(admin, "ask", agent="stranger", question="hello") == "you said: hello"
    assert model.seen[-1][1:] == (f"Bearer {secret}", model.seen[-1][2])
    changed = admin.patch(f"{API}/models/defualt", json={"model": "larger", "options": {"temperature": 0.5}})
    assert (changed.status_code, changed.json()["options"]) == (200, {"temperature": 0.5})
    run(admin, "ask", agent="stranger", question="again")
    _, authorization, body = model.seen[-1]
    assert (authorization, body["model"], body["temperature"]) == (f"Bearer {secret}", "larger", 0.5)
    moved = admin.patch(f"{API}/models/defualt", json={"endpoint": "http://127.0.0.1:9/v1"})
    assert (moved.status_code, moved.json()["problems"][0]["pointer"]) == (422, "/api_key")
    assert admin.patch(f"{API}/models/defualt", json={"api_key": ""}).json()["has_key"] is False
    run(admin, "ask", agent="stranger", question="again")
    assert model.seen[-1][1] is None
    admin.patch(f"{API}/models/defualt", json={"api_key": secret})
    audit = admin.get(f"{API}/audit", params={"limit": 20})
    shown = admin.get(f"{API}/models").text + added.text + changed.text + audit.text
    stored = b"".join(file.read_bytes() for file in node.folder.rglob("*.db*"))
    assert stored
    assert secret not in shown + node.log.read_text() + "\n".join(node.said) and secret.encode() not in stored
    assert admin.delete(f"{API}/models/defualt").json()["name"] == "defualt"
    assert "model_failed" in run(admin, "ask", agent="stranger", question="hello")["detail"]
    assert admin.delete(f"{API}/models/defualt").status_code == 404
    records = admin.get(f"{API}/audit", params={"limit": 20}).json()["items"]
    about = [
        (one["after"]["change"], one["after"].get("keys"))
        for one in records
        if one["after"].get("subject") == "model:defualt"
    ]
    assert about[0] == ("model_removed", None)
    assert about[-2:] == [
        ("model_changed", ["model", "options"]),
        ("model_added", ["api_key", "endpoint", "model", "options", "timeout_seconds"]),
    ]


def test_a_configured_model_is_changed_in_the_configuration(admin):
    """The API neither changes nor replaces it."""
    for refused in (
        admin.patch(f"{API}/models/default", json={"model": "other"}),
        admin.delete(f"{API}/models/default"),
        admin.post(f"{API}/models", json={"name": "default", "endpoint": "http://127.0.0.1:9/v1", "model": "x"}),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "runtime_entry_configured")
    found = {item["name"]: item for item in admin.get(f"{API}/models").json()["items"]}
    assert (found["default"]["source"], found["default"]["has_key"]) == ("configuration", True)
    assert (found["away"]["has_key"], found["away"]["timeout_seconds"]) == (False, 2)


def test_a_wrong_model_is_refused_with_every_problem(admin):
    """Nothing is stored, a file of the server cannot be named, and the key is not repeated."""
    wrong = {"name": "no name", "endpoint": "nothing", "model": "", "api_key": f"{KEY} {KEY}", "timeout_seconds": 0}
    refused = admin.post(f"{API}/models", json=wrong)
    assert refused.status_code == 422
    pointers = {problem["pointer"] for problem in refused.json()["problems"]}
    assert pointers == {"/name", "/endpoint", "/model", "/api_key", "/timeout_seconds"}
    file = {"name": "filed", "endpoint": "http://127.0.0.1:9/v1", "model": "x", "api_key_file": "/etc/shadow"}
    assert admin.post(f"{API}/models", json=file).status_code == 422
    long = {"name": "filed", "endpoint": "http://127.0.0.1:9/v1", "model": "x", "api_key": KEY * 500}
    too_long = admin.post(f"{API}/models", json=long)
    assert too_long.status_code == 422
    assert KEY not in refused.text + too_long.text
    assert "filed" not in admin.get(f"{API}/models").text


def test_a_configured_mcp_server_is_called(admin):
    """It needs no database entry, and the API cannot change it."""
    assert run(admin, "add", server="calculator", a=2, b=3) == {"result": 5}
    listed = admin.get(f"{API}/mcp-servers").json()
    assert listed["approval"] == "registered"
    assert [(item["name"], item["source"]) for item in listed["items"]] == [("calculator", "configuration")]
    refused = admin.patch(f"{API}/mcp-servers/calculator", json={"enabled": False})
    assert (refused.status_code, refused.json()["code"]) == (409, "runtime_entry_configured")
    assert admin.delete(f"{API}/mcp-servers/calculator").status_code == 409
    again = {"name": "calculator", "transport": "sse", "endpoint_url": "http://127.0.0.1:9/sse"}
    assert admin.post(f"{API}/mcp-servers", json=again).status_code == 409


def test_an_mcp_server_is_added_changed_and_removed(admin, calculators):
    """Each change applies at the next call, and the audit log names its user."""
    new = {"name": "second", "transport": "sse", "endpoint_url": calculators["sse"]}
    added = admin.post(f"{API}/mcp-servers", json=new)
    assert (added.status_code, added.json()["source"]) == (201, "database")
    # The path for its messages is announced by the server, so it has to be approved.
    waiting = run(admin, "add", server="second", a=4, b=4)["pending_request_id"]
    assert admin.post(f"{API}/requests/{waiting}/approve", json={}).status_code == 200
    assert run(admin, "add", server="second", a=4, b=4) == {"result": 8}
    assert admin.patch(f"{API}/mcp-servers/second", json={"enabled": False}).json()["enabled"] is False
    assert "mcp_server_disabled" in run(admin, "add", server="second", a=1, b=1)["detail"]
    assert admin.delete(f"{API}/mcp-servers/second").json()["name"] == "second"
    assert "mcp_server_unknown" in run(admin, "add", server="second", a=1, b=1)["detail"]
    assert admin.delete(f"{API}/mcp-servers/second").status_code == 404
    records = admin.get(f"{API}/audit", params={"limit": 20}).json()["items"]
    about = [one["after"].get("change") for one in records if one["after"].get("subject") == "mcp:second"]
    assert about == ["mcp_server_removed", "mcp_server_changed", "mcp_server_added"]


def test_a_wrong_mcp_server_is_refused_with_every_problem(admin):
    """Nothing is stored."""
    wrong = {"name": "odd", "transport": "stdio", "endpoint_url": "nothing", "timeout_ms": 0}
    refused = admin.post(f"{API}/mcp-servers", json=wrong)
    assert refused.status_code == 422
    pointers = {problem["pointer"] for problem in refused.json()["problems"]}
    assert pointers == {"/transport", "/endpoint_url", "/timeout_ms"}
    assert "odd" not in admin.get(f"{API}/mcp-servers").text


def test_an_engine_is_installed_at_the_start(admin):
    """``install: true`` builds the environment; the engine then uses its configured URL."""
    until(lambda: admin.get(f"{API}/extensions/engine/reader").json()["state"] == "ok", "the installation")
    assert run(admin, "look", engine="reader") == '{"path": "/configured"}'
    settings = admin.get(f"{API}/extensions/engine/reader/settings").json()
    assert settings["source"] == "configuration"
    refused = admin.patch(f"{API}/extensions/engine/reader/settings", json={"set": {"service_url": ""}})
    assert (refused.status_code, refused.json()["code"]) == (409, "runtime_entry_configured")


def test_an_engine_uses_a_url_that_is_set_while_the_node_runs(admin, model):
    """Without an installation the error names the command; then it works."""
    early = run(admin, "look", engine="other")
    assert early["code"] == "extension_not_installed"
    assert "democrai-sandbox extensions install engine:other" in early["detail"]
    assert admin.post(f"{API}/extensions/engine/other/install", json={}).json()["state"] == "installing"
    until(lambda: admin.get(f"{API}/extensions/engine/other").json()["state"] == "ok", "the installation")
    path = f"{API}/extensions/engine/other/settings"
    wrong = admin.patch(path, json={"set": {"service_url": "no address"}})
    assert (wrong.status_code, wrong.json()["problems"][0]["pointer"]) == (422, "/set/service_url")
    set_to = admin.patch(path, json={"set": {"service_url": f"{model.url}/later"}}).json()
    assert (set_to["source"], set_to["url_keys"]) == ("database", ["service_url"])
    assert run(admin, "look", engine="other") == '{"path": "/later"}'
    records = admin.get(f"{API}/audit", params={"limit": 10}).json()["items"]
    about = [one["after"].get("change") for one in records if one["after"].get("subject") == "engine:other"]
    assert about == ["settings_changed", "install_started"]


def test_settings_are_changed_key_by_key(admin):
    """Secret values are stored and hidden; the audit log has names only."""
    path = f"{API}/extensions/extractor/empty/settings"
    changed = admin.patch(path, json={"set": {"language": "en", "api_token": KEY}, "unset": ["nothing"]})
    assert changed.json() == {
        "settings": {"language": "en", "api_token": "***"},
        "source": "database",
        "url_keys": [],
    }
    assert admin.patch(path, json={"unset": ["language"]}).json()["settings"] == {"api_token": "***"}
    records = admin.get(f"{API}/audit", params={"limit": 5}).json()["items"]
    assert [one["after"]["change"] for one in records[:2]] == ["settings_changed"] * 2
    assert records[0]["after"]["keys"] == ["language"]
    assert KEY not in json.dumps(records)
    assert admin.patch(f"{API}/extensions/module/demo/settings", json={"set": {"a": 1}}).status_code == 422


def test_an_extractor_is_installed_over_the_api(admin):
    """The answer is immediate; the status shows the progress."""
    assert admin.get(f"{API}/extensions/extractor/empty").json()["state"] == "not_installed"
    begun = admin.post(f"{API}/extensions/extractor/empty/install", json={})
    assert begun.status_code == 202
    until(lambda: admin.get(f"{API}/extensions/extractor/empty").json()["state"] == "ok", "the installation")
    assert admin.post(f"{API}/extensions/module/demo/install", json={}).status_code == 422
    assert admin.post(f"{API}/extensions/engine/nothing/install", json={}).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/models", None),
        ("GET", "/mcp-servers", None),
        ("POST", "/mcp-servers", {"name": "x", "transport": "sse", "endpoint_url": "http://127.0.0.1:9/sse"}),
        ("PATCH", "/mcp-servers/calculator", {"enabled": False}),
        ("DELETE", "/mcp-servers/calculator", None),
        ("GET", "/extensions/engine/reader/settings", None),
        ("PATCH", "/extensions/engine/reader/settings", {"set": {}}),
        ("POST", "/extensions/engine/reader/install", {}),
    ],
)
def test_only_administrators_configure(node, method, path, body):
    """Other users are refused with any scope, and so is a token without the scope."""
    for person, scopes in ((node.person("uma"), ()), (node.administrator(), (Scope.TASKS_READ,))):
        with node.bearer(person, *scopes) as client:
            assert client.request(method, f"{API}{path}", json=body).status_code == 403


@pytest.fixture
def strict(tmp_path, calculators):
    """A node whose MCP servers need an approval."""
    servers = {"calculator": {"endpoint_url": calculators["streamable_http"]}}
    model = {"endpoint": "http://127.0.0.1:9/v1", "model": "small"}
    configured = {"models": {"default": model}, "mcp": {"approval": "required", "servers": servers}}
    config = {**furnish(tmp_path, "http://127.0.0.1:9"), "extensions": configured}
    environ = {"DEMOCRAI_CONFIG__EXTENSIONS__MODELS__DEFAULT__API_KEY": KEY}
    found = Served(tmp_path, config, extensions=False, environ=environ)
    yield found
    found.stop()
    found.web.stop()


def test_servers_wait_for_an_approval_where_that_is_required(strict):
    """The endpoint must be approved for the server."""
    with strict.bearer(strict.administrator()) as client:
        assert client.get(f"{API}/mcp-servers").json()["approval"] == "required"
        assert run(client, "add", server="calculator", a=1, b=2)["code"] == "sandbox_network_denied"
        waiting = client.get(f"{API}/requests", params={"subject": "mcp:calculator"}).json()["items"]
        assert {one["access"]["operation"] for one in waiting} == {"send", "receive"}
        for one in waiting:
            assert client.post(f"{API}/requests/{one['id']}/approve", json={}).status_code == 200
        assert run(client, "add", server="calculator", a=1, b=2) == {"result": 3}
        assert KEY not in str(run(client, "environment")) + client.get(f"{API}/models").text


def test_a_model_is_followed_on_another_node(tmp_path, model, postgres):
    """An event updates the other node and its workers without a restart."""
    config = {
        "database": {"url": postgres.new_database(), "key_file": str(tmp_path / "keys")},
        "network": {"stream": {"type": "ipc", "folder": str(tmp_path / "events")}},
        "sandbox": {"poll_seconds": 600.0},
    }
    places = [tmp_path / name for name in ("one", "two")]
    first, second = ({**config, **furnish(place, model.url)} for place in places)
    second = {**second, "sandbox": {**config["sandbox"], "isolation": {"module:demo": "process"}}}
    with serving(places[0], first, extensions=False) as one:
        administrator = one.administrator()
        with (
            serving(places[1], second, extensions=False, outside=one.web) as two,
            one.bearer(administrator) as here,
            two.bearer(administrator) as there,
        ):
            new = {"name": "default", "endpoint": f"{model.url}/v1", "model": "small", "api_key": KEY}
            assert "model_failed" in run(there, "ask", agent="writer", question="hello")["detail"]
            assert here.post(f"{API}/models", json=new).status_code == 201
            until(lambda: run(there, "ask", agent="writer", question="hello") == "you said: hello", "the model")
            assert model.seen[-1][1] == f"Bearer {KEY}"
            assert here.delete(f"{API}/models/default").status_code == 200
            until(lambda: run(there, "ask", agent="writer", question="hello") != "you said: hello", "its removal")
