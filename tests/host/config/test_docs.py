"""docs/configuration.md contains every key, and its examples are correct."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.keys import KEYS, NAMED, OPEN
from democrai_sandbox.host.config.loader import variable_for
from democrai_sandbox.host.config.yaml_document import read_document
from tests.services.rows import rows

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
RENAMED = {"extensions.mcp.approval": "mcp_approval", "extensions.mcp.servers": "mcp_servers"}
ROWS = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", PAGE, re.MULTILINE))


def test_every_key_has_its_row():
    """No other row exists."""
    assert set(ROWS) == {pointer[1:].replace("/", ".") for pointer in (*KEYS, *OPEN, *NAMED)}


@rows("pointer", [*KEYS, *OPEN, *NAMED])
def test_each_row_has_the_variable_of_its_key(pointer):
    """As the overlay reads it."""
    assert ROWS[pointer[1:].replace("/", ".")].startswith(f"`{variable_for(pointer)}` | ")


def test_defaults_are_those_of_the_settings():
    """Every documented default value is the one of a host without configuration."""
    settings = load(environ={"HOME": "/home/ann"}).settings
    checked = 0
    for key, row in ROWS.items():
        default = row.split(" | ")[1]
        *above, last = key.split(".")
        if not re.fullmatch(r"`[^<$]+`", default) or key == "network.endpoints" or above == ["network", "stream"]:
            continue
        holder = settings
        for step in above:
            holder = getattr(holder, step, holder)
        value = getattr(holder, RENAMED.get(key, last))
        written = read_document(default.strip("`")).value
        assert (list(value) if isinstance(value, tuple) else value) == written, key
        checked += 1
    assert checked > 20


def test_the_example_is_accepted(tmp_path, home):
    """With its folders present."""
    example, extensions = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    example += extensions
    for place in ("/srv/democrai/modules", "/srv/democrai/engines"):
        (tmp_path / place[1:]).mkdir(parents=True)
        example = example.replace(place, f"{tmp_path}{place}")
    path = tmp_path / "config.yaml"
    path.write_text(example)
    settings = load(path, environ=home).settings
    assert settings.server.public_url == "https://sandbox.example.com"
    assert settings.os.require
    assert settings.extensions.models["default"].options == {"temperature": 0.2}
    assert settings.extensions.engines["whisper"].install


def test_the_problems_shown_are_those_told(tmp_path, home, monkeypatch):
    """Word for word."""
    (shown,) = re.findall(r"```console\n(config_invalid.*?)```", PAGE, re.DOTALL)
    (tmp_path / "config.yaml").write_text("\n\nsandbox:\n  os: {enabled: yes}\n\n\n\nserver:\n  prot: 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        load("config.yaml", environ={**home, "DEMOCRAI_CONFIG__DATA_DIR": "data"})
    assert error.value.diagnostics() == shown.rstrip()
