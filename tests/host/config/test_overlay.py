"""Variables that override a file: their names, their values, and rejected ones."""

from __future__ import annotations

from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.keys import KEYS
from democrai_sandbox.host.config.loader import PREFIX, variable_for
from tests.services.golden import sentence
from tests.services.rows import rows


def test_a_variable_wins_over_the_file(config, home):
    """Key by key: other keys keep the file's values."""
    path = config("server: {port: 1, host: 127.0.0.2}\nsandbox: {os: {refresh_seconds: 5}}")
    environ = {**home, f"{PREFIX}SERVER__PORT": "2", f"{PREFIX}SANDBOX__OS__ENABLED": "true"}
    settings = load(path, environ=environ).settings
    assert (settings.server.port, settings.server.host) == (2, "127.0.0.2")
    assert (settings.os.enabled, settings.os.refresh_seconds) == (True, 5)


def test_a_variable_wins_over_an_argument(home):
    """So that an operator can adjust the application's values."""
    environ = {**home, f"{PREFIX}SERVER__PORT": "2"}
    assert load({"server": {"port": 1}}, environ=environ).settings.server.port == 2


def test_names_are_read_without_regard_to_case(home):
    """After the prefix."""
    assert load(environ={**home, f"{PREFIX}Server__port": "5"}).settings.server.port == 5


def test_the_same_setting_in_two_spellings_is_refused(refused):
    """It would be ambiguous which one counts; both are named."""
    told = refused(**{f"{PREFIX}SERVER__PORT": "5", f"{PREFIX}server__port": "6"})
    assert set(told) == {"/server/port"}
    assert told["/server/port"].origin.source == f"{PREFIX}server__port"
    assert f"{PREFIX}SERVER__PORT" in told["/server/port"].message


def test_texts_are_taken_as_they_are(home, tmp_path):
    """A password that looks like YAML reaches the database unchanged."""
    url = "postgresql://u:{p#w: *x@db.example.com/name"
    environ = {
        **home,
        f"{PREFIX}DATABASE__URL": url,
        f"{PREFIX}DATA_DIR": "/srv/[data]: #1",
        f"{PREFIX}NETWORK__STREAM__CHANNEL": "123",
    }
    settings = load(environ=environ).settings
    assert settings.database == url
    assert settings.data_dir == "/srv/[data]: #1"
    assert settings.stream == {"channel": "123"}


def test_everything_else_is_yaml_on_one_line(home, tmp_path):
    """Numbers, switches, lists and objects."""
    environ = {
        **home,
        f"{PREFIX}EXTRA_MODULE_DIRS": f"[{tmp_path}]",
        f"{PREFIX}SANDBOX__ISOLATION": '{"module:reports": process}',
        f"{PREFIX}SANDBOX__CALL_TIMEOUT": "1.5",
        f"{PREFIX}CONSOLE__ENABLED": "false",
    }
    settings = load(environ=environ).settings
    assert settings.extra_module_dirs == (str(tmp_path),)
    assert settings.isolation == {"module:reports": "process"}
    assert settings.call_timeout == 1.5
    assert settings.console.enabled is False


def test_a_variable_for_a_section_replaces_it_and_single_keys_come_over_that(config, home):
    """In any order."""
    path = config("server: {host: 127.0.0.2, port: 1}\nnetwork: {endpoints: {a: https://a.example.com}}")
    environ = {
        **home,
        f"{PREFIX}SERVER__PORT": "3",
        f"{PREFIX}SERVER": "{port: 2}",
        f"{PREFIX}NETWORK__ENDPOINTS__B": "https://b.example.com",
    }
    settings = load(path, environ=environ).settings
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 3)
    assert settings.endpoints == {"a": "https://a.example.com", "b": "https://b.example.com"}


@rows(
    ("name", "pointer", "close"),
    [
        ("SANDBOX__OS__ENABELD", "/sandbox/os/enabeld", "enabled"),
        ("SNADBOX__OS__ENABLED", "/snadbox", "sandbox"),
        ("STATEDIR", "/statedir", "state_dir"),
        ("SANDBOX__LIMITS__MEMORY", "/sandbox/limits/memory", "memory_mb"),
        ("SERVER__TRUSTED_PROXY", "/server/trusted_proxy", "trusted_proxies"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(refused, name, pointer, close):
    """With the name of the variable."""
    told = refused(**{PREFIX + name: "1"})
    assert set(told) == {pointer}
    assert (told[pointer].origin.source, told[pointer].suggestion) == (PREFIX + name, close)


@rows("name", ["DEMOCRAI_CONFIG_SANDBOX__OS__ENABLED", "DEMOCRAI_CONFIG", "DEMOCRAI_CONFIGFILE"])
def test_a_name_that_was_meant_as_a_setting_is_refused(refused, name):
    """A control that is off because of a missing underscore would be unnoticed."""
    told = refused(**{name: "true"})
    assert set(told) == {""}
    assert told[""].origin.source == name
    assert PREFIX in told[""].message


def test_the_suggestion_for_a_variable_is_a_variable(refused):
    """It can be pasted."""
    told = refused(DEMOCRAI_CONFIG_SANDBOX__OS__ENABLED="true")
    assert told[""].suggestion == "DEMOCRAI_CONFIG__SANDBOX__OS__ENABLED"


@rows("name", ["", "__SERVER", "SERVER____PORT", "SERVER__"])
def test_a_name_with_an_empty_step_is_refused(refused, name):
    """It names no key."""
    told = refused(**{PREFIX + name: "1"})
    assert set(told) == {""}
    assert told[""].origin.source == PREFIX + name


@rows("name", ["SERVER__PORT", "STATE_DIR", "SANDBOX__OS", "SERVER__PUBLIC_URL"])
def test_an_empty_variable_is_refused(refused, name):
    """It would remove a whole section, or have no effect."""
    (problem,) = refused(**{PREFIX + name: ""}).values()
    assert problem.origin.source == PREFIX + name
    assert problem.pointer == f"/{name.lower().replace('__', '/')}"


@rows("value", ["null", "~", "# off", "  "])
def test_a_variable_that_holds_nothing_is_refused(refused, value):
    """It would remove a whole section, like an empty one."""
    assert set(refused(**{f"{PREFIX}SANDBOX__OS": value})) == {"/sandbox/os"}


@rows(
    ("text", "name", "pointer"),
    [
        ("{}", "STATE_DIR__NAME", "/state_dir"),
        ("{}", "EXTRA_MODULE_DIRS__0", "/extra_module_dirs"),
        ("sandbox: 5", "SANDBOX__OS__ENABLED", "/sandbox"),
        ("sandbox: {os: [1]}", "SANDBOX__OS__ENABLED", "/sandbox/os"),
    ],
)
def test_a_variable_below_something_that_is_no_object_is_refused(config, refused, text, name, pointer):
    """The file's value is not replaced."""
    told = refused(config(text), **{PREFIX + name: "1"})
    assert told[pointer].origin.source == PREFIX + name
    assert told[pointer].message.endswith(repr(name.lower().replace("__", "/")[len(pointer) :]))


def test_a_section_without_keys_takes_variables(config, home):
    """``sandbox:`` with all its keys commented out is an ordinary object."""
    environ = {**home, f"{PREFIX}SANDBOX__CALL_TIMEOUT": "5"}
    assert load(config("sandbox:\n  # call_timeout: 3\n"), environ=environ).settings.call_timeout == 5


@rows("value", ["{a: ", "[1", "&x 1", "*x", "!!int 5", "a: 1\na: 2", "\x07", "\udcff"])
def test_a_value_that_is_no_plain_yaml_is_refused(refused, value):
    """With the name of the variable."""
    (problem,) = refused(**{f"{PREFIX}SANDBOX__MANAGERS": value}).values()
    assert problem.origin.source == f"{PREFIX}SANDBOX__MANAGERS"
    assert problem.pointer.startswith("/sandbox/managers")


@rows("value", ["yes", "on", "1", "True", "TRUE"])
def test_a_switch_is_true_or_false(refused, value):
    """As in the file."""
    told = refused(**{f"{PREFIX}SANDBOX__OS__ENABLED": value})
    assert set(told) == {"/sandbox/os/enabled"}
    assert value in told["/sandbox/os/enabled"].message


@rows("name", [name for name, form in KEYS.items() if form.name in ("PATH", "DATABASE")])
def test_paths_have_to_be_absolute(refused, name):
    """A variable has no folder to which they could be relative."""
    environ = {variable_for(name): "sqlite:///relative.db" if name == "/database/url" else "relative"}
    if name == "/network/stream/folder":
        environ[f"{PREFIX}NETWORK__STREAM__TYPE"] = "ipc"
    told = refused(**environ)
    assert set(told) == {name}
    assert told[name].origin.source == variable_for(name)


def test_each_refusal_of_a_variable_has_its_sentence(refused):
    """The message says what is wrong with the variable."""
    given = {
        *(
            ("SERVER__PORT", ""),
            ("STATE_DIR", ""),
            ("SANDBOX__OS", ""),
            ("SERVER__PUBLIC_URL", ""),
            ("", "1"),
            ("SANDBOX__OS", "null"),
            ("STATE_DIR__NAME", "1"),
            ("STATEDIR", "1"),
        ),
        *(("SANDBOX__MANAGERS", "[1"), ("SANDBOX__OS__ENABLED", "yes"), ("STATE_DIR", "relative")),
        *(("DATABASE__URL", "sqlite:///relative.db"), ("SERVER__PORT", "5")),
    }
    told = [refused(**{PREFIX + name: value, f"{PREFIX}server__port": "6"}) for name, value in sorted(given)]
    told.append(refused(DEMOCRAI_CONFIG_SANDBOX__OS__ENABLED="true"))
    sentence("refusals", "\n".join(str(problem) for problems in told for problem in problems.values()))


def test_other_variables_are_not_read(home):
    """They identify the subject of a child process, and have arbitrary values."""
    environ = {
        **home,
        "DEMOCRAI_ACCESS": "[",
        "DEMOCRAI_USER_ID": "uma",
        "DEMOCRAI_SERVER__PORT": "1",
        "democrai_config__x": "1",
    }
    assert load(environ=environ).settings == load(environ=home).settings
