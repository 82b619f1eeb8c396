"""``democrai-sandbox config``: values, origins, and hidden secrets."""

from __future__ import annotations

import pytest

from democrai_sandbox.host.config.display import without_password
from democrai_sandbox.host.config.keys import KEYS
from tests.cli.goldens import golden, piped, terminal, transcript
from tests.cli.local import configured, says
from tests.services.rows import rows

SECRETS = ("s3cret", "hunter2", "sesame")


@pytest.fixture
def config(tmp_path):
    return configured(
        tmp_path,
        database={"url": "postgresql://ann:s3cret@db.example.com/x?sslpassword=s3cret"},
        network={
            "stream": {"type": "redis", "url": "redis://:hunter2@127.0.0.1:6379/0"},
            "endpoints": {"my.api": "https://u:sesame@api.example.com"},
        },
        sandbox={"isolation": {"module:reports": "process"}, "os": {"enabled": True}},
    )


def test_each_value_and_where_it_was_given(config, tmp_path):
    """File and line, variable or default; passwords are hidden; a terminal shortens the table."""
    arguments = ["config", "show", "--origin", "--config", config]
    environ = {"DEMOCRAI_CONFIG__SERVER__HOST": "::1"}
    found = piped(arguments, environ)
    assert (found.status, found.err) == (0, "")
    golden("config-show-origin.piped", found.out, folder=tmp_path)
    assert not [secret for secret in SECRETS if secret in found.out]
    seen = terminal([*arguments, "--given"], environ, columns=80)
    assert seen.status == 0
    assert max(len(line) for line in seen.text.replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()) <= 80


def test_the_same_as_data(config):
    """Every key has its pointer; ``--given`` omits defaults."""
    data = says("config", "show", "--json", "--config", config).data
    assert data["schema"] == "democrai-sandbox/config.show/1"
    by_pointer = {each["pointer"]: each for each in data["values"]}
    assert set(KEYS) < set(by_pointer)
    assert by_pointer["/sandbox/os/enabled"]["value"] is True
    assert by_pointer["/sandbox/os/enabled"]["origin"].startswith(f"{config}:")
    given = says("config", "show", "--json", "--given", "--config", config).data["values"]
    assert "default" not in {each["origin"] for each in given}
    assert {"network.endpoints['my.api']", "sandbox.isolation['module:reports']"} < {each["name"] for each in given}


def test_empty_values_are_values(tmp_path):
    """Empty lists and objects are shown; only a missing value is a dash or null."""
    file = configured(tmp_path, extra_module_dirs=[], network={"endpoints": {}}, sandbox={"managers": []})
    arguments = ("config", "show", "--config", file)
    rows = dict(line.split(maxsplit=1) for line in says(*arguments).out.splitlines())
    data = {each["name"]: each["value"] for each in says(*arguments, "--json").data["values"]}
    shown = {name: (rows[name].strip(), data[name]) for name in rows if name in data}
    for name in ("extra_module_dirs", "extra_engine_dirs", "sandbox.managers", "server.trusted_proxies"):
        assert shown[name] == ("[]", [])
    assert shown["network.endpoints"] == shown["sandbox.isolation"] == ("{}", {})
    assert shown["server.public_url"] == shown["sandbox.os.policy_file"] == ("-", None)
    given = {each["name"]: each["value"] for each in says(*arguments, "--json", "--given").data["values"]}
    empty = {"extra_module_dirs": [], "network.endpoints": {}, "sandbox.managers": []}
    assert {name: given.get(name) for name in empty} == empty


def test_checking(config, tmp_path):
    """A valid configuration is accepted with its sources; of an invalid one, every problem is listed."""
    good = says("config", "check", "--config", config)
    assert (good.status, str(config) in good.out) == (0, True)
    name = "DEMOCRAI_CONFIG__SERVER__PORT"
    found = says("config", "check", "--json", "--config", config, environ={name: "81"})
    assert found.data["variables"] == [name]
    bad = configured(tmp_path, sandbx={}, console={"idle_minutes": "long"})
    refused = [says("config", verb, "--config", bad) for verb in ("check", "show")]
    for found in refused:
        assert (found.status, found.out) == (1, "")
        assert "/sandbx: " in found.err and "'sandbox'" in found.err
        assert "/console/idle_minutes: " in found.err
    transcript("config-check", [(("config", "check"), done) for done in (good, *refused)], folder=tmp_path)
    assert not (tmp_path / "state").exists()


@rows(
    ("url", "shown"),
    [
        ("redis://:p@h/0", "redis://:***@h/0"),
        ("redis://u:p/a?b#c@d@h:1/0", "redis://u:***@h:1/0"),
        ("https://u@h/x", "https://u@h/x"),
        ("redis://h/0?password=p&db=1", "redis://h/0?password=***&db=1"),
        ("rediss://h?ssl_keyfile=/k&API_TOKEN=t", "rediss://h?ssl_keyfile=***&API_TOKEN=***"),
        ("https://h/x", "https://h/x"),
    ],
)
def test_what_is_hidden_of_a_url(url, shown):
    """Passwords are hidden in every place; other parts stay."""
    assert without_password(url) == shown
