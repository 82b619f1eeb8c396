"""``democrai-sandbox extensions``, ``mcp`` and ``models`` on a running node."""

from __future__ import annotations

import json

import pytest

from tests.cli.goldens import golden, piped, transcript, within
from tests.console.serving import Served

MODULE = """
from democrai_sandbox import sdk

@sdk.agent("writer", model="defualt")
def writer(question: str):
    return question
"""
SECRET = "a-very-secret-word"


class Node:
    """A node with one extension of each kind, and commands that ask it as its administrator."""

    def __init__(self, folder):
        for kind, name, manifest, code in (
            ("modules", "demo", {}, MODULE),
            ("engines", "reader", {"runtime": {"allowed_config_urls": ["service_url"]}}, ""),
            ("extractors", "empty", {"version": "1.2"}, ""),
            ("extractors", "wrong", {"install": {"requirements": ["./nothing"]}}, ""),
        ):
            place = folder / "own" / kind / name
            place.mkdir(parents=True)
            (place / "manifest.json").write_text(json.dumps({"name": name, **manifest}))
            (place / f"{kind.removesuffix('s')}.py").write_text(code)
        config = {f"{kind}_path": str(folder / "own" / kind) for kind in ("modules", "engines", "extractors")}
        model = {"endpoint": "http://127.0.0.1:9/v1", "model": "small", "api_key": SECRET}
        servers = {"fixed": {"endpoint_url": "https://fixed.example.com/mcp"}}
        config["extensions"] = {"models": {"default": model}, "mcp": {"approval": "required", "servers": servers}}
        self.served = Served(folder, config, extensions=False)
        token = self.served.token(self.served.administrator())
        self.environ = {"DEMOCRAI_CONFIG_FILE": str(self.served.file), "DEMOCRAI_TOKEN": token}

    def says(self, *arguments):
        return within(arguments, self.environ)

    def data(self, *arguments):
        done = self.says(*arguments, "--json")
        assert (done.status, done.err) == (0, "")
        return json.loads(done.out)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    found = Node(tmp_path_factory.mktemp("configured"))
    yield found
    found.served.stop()
    found.served.web.stop()


def test_extensions_are_listed_and_installed(node):
    """The command waits for the installation; a failure ends with status 1 and the reason."""
    golden("extensions-list.piped", node.says("extensions", "list").out)
    done = node.says("extensions", "install", "extractor:empty")
    assert done.status == 0
    states = {one["name"]: one["state"] for one in node.data("extensions", "list")["items"]}
    assert states == {"demo": "ok", "reader": "not_installed", "empty": "ok", "wrong": "not_installed"}
    module = node.says("extensions", "install", "module:demo")
    nothing = node.says("extensions", "install", "engine:raeder")
    assert (module.status, nothing.status) == (1, 1)
    begun = node.says("extensions", "install", "extractor:empty", "--again", "--no-wait")
    assert begun.status == 0
    failed = node.says("extensions", "install", "extractor:wrong")
    assert failed.status == 1
    steps = (("install",), ("install a module",), ("install nothing",), ("install --no-wait",), ("install wrong",))
    transcript("extensions-install", zip(steps, (done, module, nothing, begun, failed), strict=True))


def test_settings_are_set_shown_and_removed(node):
    """A secret is read from standard input and hidden; an invalid URL is refused."""
    subject = "engine:reader"
    assert node.says("extensions", "set", subject, "language=en").status == 2
    assert node.says("extensions", "set", subject).status == 2
    values = ("service_url=https://api.example.com/v1", "retries=3", "deep=true")
    assert node.says("extensions", "set", subject, *values, "--yes").status == 0
    given = piped(["extensions", "set", subject, "--secret", "api_token", "--yes"], node.environ, stdin=f"{SECRET}\n")
    assert (given.status, SECRET in given.out + given.err) == (0, False)
    shown = node.says("extensions", "settings", subject)
    golden("extensions-settings.piped", shown.out)
    found = node.data("extensions", "settings", subject)["settings"]
    assert found == {"service_url": "https://api.example.com/v1", "retries": 3, "deep": True, "api_token": "***"}
    wrong = node.says("extensions", "set", subject, "service_url=nothing", "--yes")
    assert (wrong.status, "/set/service_url" in wrong.err) == (1, True)
    unset = node.data("extensions", "set", subject, "--unset", "retries", "--unset", "deep", "--yes")
    assert set(unset["settings"]) == {"service_url", "api_token"}


def test_mcp_servers_are_added_changed_and_removed(node):
    """Each change asks first; entries of the configuration stay, with the place to change them."""
    add = ("mcp", "add", "calculator", "--endpoint", "http://127.0.0.1:8765/mcp")
    assert node.says(*add).status == 2
    added = node.says(*add, "--timeout-ms", "5000", "--yes")
    assert added.status == 0
    again = node.says(*add, "--yes")
    assert again.status == 4
    listed = node.says("mcp", "list")
    golden("mcp-list.piped", listed.out)
    changed = node.data("mcp", "change", "calculator", "--disable", "--transport", "sse", "--yes")
    assert (changed["enabled"], changed["transport"], changed["timeout_ms"]) == (False, "sse", 5000)
    fixed = node.says("mcp", "change", "fixed", "--disable", "--yes")
    assert fixed.status == 4
    assert node.says("mcp", "change", "calculator", "--yes").status == 2
    removed = node.says("mcp", "remove", "calculator", "--yes")
    assert [one["name"] for one in node.data("mcp", "list")["items"]] == ["fixed"]
    gone = node.says("mcp", "remove", "calculator", "--yes")
    steps = ("add", "add again", "list", "change fixed", "remove", "remove again")
    transcript("mcp-steps", zip(((one,) for one in steps), (added, again, listed, fixed, removed, gone), strict=True))


def test_models_are_listed(node):
    """A missing model that an agent uses gives status 1 and the setting to add."""
    done = node.says("models", "list")
    assert done.status == 1
    transcript("models-list", [(("list",), done)])
    assert SECRET not in done.out + done.err


def test_models_are_added_changed_and_removed(node, tmp_path):
    """The key comes from a file or standard input and is hidden; configured models stay."""
    key = tmp_path / "model.key"
    key.write_text(f"{SECRET}\n")
    add = ("models", "add", "small", "--endpoint", "http://127.0.0.1:8765/v1", "--model", "small-1")
    assert node.says(*add).status == 2
    added = node.says(*add, "--api-key-file", str(key), "--timeout-ms", "5000", "--option", "temperature=0.5", "--yes")
    assert added.status == 0
    again = node.says(*add, "--yes")
    assert again.status == 4
    listed = node.says("models", "list")
    moved = node.says("models", "change", "small", "--endpoint", "http://127.0.0.1:8766/v1", "--yes")
    assert moved.status == 1
    changed = node.data("models", "change", "small", "--model", "small-2", "--yes")
    facts = (changed["model"], changed["has_key"], changed["timeout_seconds"], changed["options"])
    assert facts == ("small-2", True, 5, {"temperature": 0.5})
    assert node.data("models", "change", "small", "--no-key", "--yes")["has_key"] is False
    asked = piped(["models", "change", "small", "--ask-key", "--yes"], node.environ, stdin=f"{SECRET}\n")
    assert (asked.status, SECRET in asked.out + asked.err) == (0, False)
    empty = piped(["models", "change", "small", "--ask-key", "--yes"], node.environ, stdin="\n")
    assert empty.status == 1
    nothing = node.says("models", "change", "small", "--api-key-file", str(tmp_path / "nothing"), "--yes")
    assert nothing.status == 1
    assert node.says("models", "change", "small", "--yes").status == 2
    assert node.says(*add, "--api-key", SECRET, "--yes").status == 2
    fixed = node.says("models", "change", "default", "--model", "other", "--yes")
    assert fixed.status == 4
    removed = node.says("models", "remove", "small", "--yes")
    gone = node.says("models", "remove", "small", "--yes")
    said = (added, again, listed, moved, empty, nothing, fixed, removed, gone)
    assert not any(SECRET in one.out + one.err for one in said)
    names = ("add", "add again", "list", "move", "no key", "no file", "change fixed", "remove", "remove again")
    transcript("models-steps", zip(((one,) for one in names), said, strict=True), folder=tmp_path)


def test_the_configuration_is_shown_without_keys(node):
    """The command shows that a key exists, without its value."""
    done = node.says("config", "show", "--origin")
    assert "extensions.models.default.api_key" in done.out
    assert SECRET not in done.out
