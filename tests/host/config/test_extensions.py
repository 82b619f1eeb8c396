"""Section ``extensions``: strict validation, hidden keys, and paths and variables as elsewhere."""

from __future__ import annotations

import pytest

from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.display import shown_values

KEY = "sk-a-key-that-nobody-sees"
MODEL = {"endpoint": "https://models.example.com/v1", "model": "small"}


def test_everything_is_read(home):
    """With defaults for missing values."""
    found = load(
        {
            "extensions": {
                "models": {"default": {**MODEL, "api_key": KEY, "options": {"temperature": 0}}},
                "mcp": {"approval": "required", "servers": {"calc": {"endpoint_url": "http://127.0.0.1:9/mcp"}}},
                "engines": {"whisper": {"install": True, "settings": {"service_url": "https://a.example"}}},
                "extractors": {"pdf": {}},
            }
        },
        environ=home,
    ).settings.extensions
    model, server = found.models["default"], found.mcp_servers["calc"]
    assert (model.api_key, model.timeout_seconds, dict(model.options)) == (KEY, 60.0, {"temperature": 0})
    assert (found.mcp_approval.value, server.name, server.transport.value) == ("required", "calc", "streamable_http")
    assert (server.enabled, server.timeout_ms) == (True, 30_000)
    assert found.engines["whisper"].settings == {"service_url": "https://a.example"}
    assert (found.extractors["pdf"].install, found.extractors["pdf"].settings) == (False, None)
    assert KEY not in repr(found)


@pytest.mark.parametrize(
    ("section", "pointer", "suggestion"),
    [
        ({"modles": {}}, "/modles", "models"),
        ({"models": []}, "/models", None),
        ({"models": {"a b": MODEL}}, "/models/a b", None),
        ({"models": {"m": {"model": "small"}}}, "/models/m", None),
        ({"models": {"m": {**MODEL, "api_kye": "x"}}}, "/models/m/api_kye", "api_key"),
        ({"models": {"m": {**MODEL, "endpoint": "ftp://x"}}}, "/models/m/endpoint", None),
        ({"models": {"m": {**MODEL, "endpoint": "https://u:p@x"}}}, "/models/m/endpoint", None),
        ({"models": {"m": {**MODEL, "api_key": 5}}}, "/models/m/api_key", None),
        ({"models": {"m": {**MODEL, "api_key": "a", "api_key_file": "/k"}}}, "/models/m/api_key_file", None),
        ({"models": {"m": {**MODEL, "timeout_seconds": 0}}}, "/models/m/timeout_seconds", None),
        ({"models": {"m": {**MODEL, "options": {"messages": []}}}}, "/models/m/options", None),
        ({"mcp": {"approval": "requird"}}, "/mcp/approval", "required"),
        ({"mcp": {"servers": {"s": {}}}}, "/mcp/servers/s", None),
        ({"mcp": {"servers": {"s": {"endpoint_url": "x"}}}}, "/mcp/servers/s/endpoint_url", None),
        (
            {"mcp": {"servers": {"s": {"endpoint_url": "http://a.example", "transport": "stdio"}}}},
            "/mcp/servers/s/transport",
            None,
        ),
        (
            {"mcp": {"servers": {"s": {"endpoint_url": "http://a.example", "name": "t"}}}},
            "/mcp/servers/s/name",
            None,
        ),
        ({"engines": {"e": {"install": "yes"}}}, "/engines/e/install", None),
        ({"engines": {"e": {"setings": {}}}}, "/engines/e/setings", "settings"),
        ({"extractors": {"e": {"settings": []}}}, "/extractors/e/settings", None),
    ],
)
def test_what_is_wrong_is_told_with_its_place(refused, section, pointer, suggestion):
    """And without other problems."""
    found = refused({"extensions": section})
    assert [(place, one.suggestion) for place, one in found.items()] == [(f"/extensions{pointer}", suggestion)]


def test_a_key_is_never_repeated(refused):
    """Not in an error either."""
    found = refused({"extensions": {"models": {"m": {**MODEL, "api_key": f"{KEY}\n"}}}})
    assert KEY not in str(found["/extensions/models/m/api_key"])


def test_a_key_comes_from_the_environment(home):
    """It overrides the file, has its own origin, and is hidden in the output."""
    variable = "DEMOCRAI_CONFIG__EXTENSIONS__MODELS__M__API_KEY"
    loaded = load({"extensions": {"models": {"m": MODEL}}}, environ={**home, variable: KEY})
    assert loaded.settings.extensions.models["m"].api_key == KEY
    shown = {one.pointer: one for one in shown_values(loaded)}
    assert shown["/extensions/models/m/api_key"].value == "***"
    assert shown["/extensions/models/m/api_key"].origin.source == variable
    assert shown["/extensions/models/m/timeout_seconds"].origin.source == "default"
    assert KEY not in str(shown)


def test_secret_settings_of_engines_are_not_shown(home):
    """By name, at any depth; URLs without their passwords."""
    settings = {"url": "https://u:pw@a.example/?token=x", "deep": [{"client_secret": "x", "pin_key": 7, "on": True}]}
    loaded = load({"extensions": {"engines": {"e": {"settings": settings}}}}, environ=home)
    shown = {one.pointer: one.value for one in shown_values(loaded)}
    assert shown["/extensions/engines/e/settings"] == {
        "url": "https://u:***@a.example/?token=***",
        "deep": [{"client_secret": "***", "pin_key": "***", "on": True}],
    }


def test_a_relative_key_file_begins_at_the_file(config, home, tmp_path):
    """Like all paths of a file."""
    path = config(
        "extensions:\n  models:\n    m: {endpoint: 'https://a.example/v1', model: x, api_key_file: keys/model}\n"
    )
    assert load(path, environ=home).settings.extensions.models["m"].api_key_file == str(tmp_path / "keys" / "model")
