"""Sections and keys: accepted values, and problems with their pointers."""

from __future__ import annotations

import errno
import os
from dataclasses import fields
from datetime import date

import pytest

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.keys import KEYS, NAMED, OPEN, ValueFormat
from democrai_sandbox.host.config.yaml_document import DEEPEST_NESTING, LONGEST_KEY
from democrai_sandbox.host.settings import (
    ConsoleSettings,
    GuardSettings,
    HostSettings,
    InstalledSettings,
    ModelSettings,
    ServerSettings,
    WorkerSettings,
)
from democrai_sandbox.kernel import LandlockSettings, OsSettings, SeccompSettings
from democrai_sandbox.manifests import Limits
from democrai_sandbox.policy import Subject
from tests.services.golden import sentence
from tests.services.rows import rows


def nested(pointer, value):
    """Return an object with only this value, at the pointer."""
    for step in reversed(pointer.split("/")[1:]):
        value = {step: value}
    return value


def test_without_anything_every_key_has_its_default(home):
    """State in the user's folder, loopback, SQLite, all kernel controls off."""
    state = f"{home['HOME']}/.local/state/democrai-sandbox"
    settings = load(environ=home).settings
    assert settings == HostSettings(
        state_dir=state, data_dir=f"{state}/data", database=f"sqlite:///{state}/sandbox.db", key_file=f"{state}/keys"
    )


def test_all_keys_are_read(tmp_path, home):
    """Each is stored in the setting of its name."""
    for name in ("modules", "engines", "extractors", "more"):
        (tmp_path / name).mkdir()
    base = str(tmp_path)
    settings = load(
        {
            "state_dir": tmp_path / "state",
            "data_dir": f"{base}/data/",
            "modules_path": f"{base}/modules",
            "engines_path": f"{base}/engines",
            "extractors_path": f"{base}/extractors",
            "extra_module_dirs": [f"{base}/more"],
            "extra_engine_dirs": (f"{base}/more",),
            "extra_extractor_dirs": [],
            "database": {"url": "postgresql://ann:pw@db/name", "key_file": f"{base}/keys"},
            "network": {
                "stream": {"type": "redis", "url": "redis://:pw@cache:6379/0", "channel": "c", "longest": 600},
                "endpoints": {"mail": "smtps://mail.example.com:465", "api": "https://u:pw@api.example.com/v1"},
            },
            "sandbox": {
                "os": {"enabled": True, "landlock": {"extra_read_paths": ["/opt/x"]}, "seccomp": {"enabled": True}},
                "isolation": {"module:reports": "process", "tool:a.b": "in_process"},
                "limits": {"cpu_seconds": 10},
                "guard": {"native_packages": ["scipy", "torch"]},
                "call_timeout": 5,
                "load_timeout": 0.5,
                "managers": ["module:gate"],
                "pending_days": 7,
                "poll_seconds": 0.25,
            },
            "server": {
                "host": "::",
                "port": 0,
                "public_url": "https://Sandbox.Example.com:443",
                "trusted_proxies": ["10.0.0.1", "::1"],
            },
            "console": {
                "enabled": False,
                "idle_minutes": 5,
                "session_hours": 6,
                "reauth_minutes": 7,
                "reauth_high_risk": False,
                "unused_days": 8,
            },
        },
        environ={},
    ).settings
    assert settings == HostSettings(
        state_dir=f"{base}/state",
        data_dir=f"{base}/data",
        database="postgresql://ann:pw@db/name",
        key_file=f"{base}/keys",
        modules_path=f"{base}/modules",
        engines_path=f"{base}/engines",
        extractors_path=f"{base}/extractors",
        extra_module_dirs=(f"{base}/more",),
        extra_engine_dirs=(f"{base}/more",),
        stream_type="redis",
        stream={"url": "redis://:pw@cache:6379/0", "channel": "c", "longest": 600},
        endpoints={"mail": "smtps://mail.example.com:465", "api": "https://u:pw@api.example.com/v1"},
        isolation={"module:reports": "process", "tool:a.b": "in_process"},
        limits=Limits(cpu_seconds=10),
        guard=GuardSettings(native_packages=("scipy", "torch")),
        call_timeout=5.0,
        load_timeout=0.5,
        managers=(Subject("module", "gate"),),
        pending_days=7,
        poll_seconds=0.25,
        os=OsSettings(
            enabled=True,
            landlock=LandlockSettings(extra_read_paths=("/opt/x",)),
            seccomp=SeccompSettings(enabled=True),
        ),
        server=ServerSettings(
            host="::", port=0, public_url="https://sandbox.example.com", trusted_proxies=("10.0.0.1", "::1")
        ),
        console=ConsoleSettings(
            enabled=False, idle_minutes=5, session_hours=6, reauth_minutes=7, reauth_high_risk=False, unused_days=8
        ),
    )


def test_the_table_of_keys_has_all_that_the_settings_have():
    """For a missing key, relative paths, variables and origins would be wrong."""
    renamed = {"database": "/database/url", "key_file": "/database/key_file", "stream_type": "/network/stream/type"}
    renamed |= {"database_wait": "/database/wait_seconds", "database_connections": "/database/connections"}
    inner = {"server": ServerSettings, "console": ConsoleSettings, "sandbox/worker": WorkerSettings}
    own = {"config_file", "stream", "endpoints", "isolation", "limits", "os", "guard", "extensions", "worker", *inner}
    expected = {f"/sandbox/limits/{item.name}" for item in fields(Limits)}
    expected |= {f"/{section}/{item.name}" for section, kind in inner.items() for item in fields(kind)}
    expected |= {f"/sandbox/guard/{item.name}" for item in fields(GuardSettings)}
    expected |= {f"/sandbox/os/{item.name}" for item in fields(OsSettings) if item.name not in ("seccomp", "landlock")}
    expected |= {f"/sandbox/os/landlock/{item.name}" for item in fields(LandlockSettings)} | {
        "/sandbox/os/seccomp/enabled"
    }
    expected |= {"/extensions/mcp/approval"}
    expected |= {f"/network/stream/{name}" for name in ("type", "channel", "folder", "url", "longest")}
    for item in fields(HostSettings):
        if item.name not in own:
            places = {f"/{item.name}", f"/sandbox/{item.name}", renamed.get(item.name)} & set(KEYS)
            assert len(places) == 1, item.name
            expected |= places
    assert set(KEYS) == expected
    assert set(OPEN) == {"/network/endpoints", "/sandbox/isolation"}
    assert set(NAMED["/extensions/models"]) == {item.name for item in fields(ModelSettings)}
    assert set(NAMED["/extensions/engines"]) == {item.name for item in fields(InstalledSettings)}
    assert set(NAMED["/extensions/extractors"]) == {item.name for item in fields(InstalledSettings)}


@pytest.fixture
def unknown(refused):
    """Message about an unknown key zzz."""
    return refused({"zzz": 1})["/zzz"].message


@rows("pointer", KEYS)
@rows("value", [None, [[]], {"a": 1}, -1, "\0"], ids=str)
def test_a_value_of_the_wrong_type_is_refused_at_its_place(refused, unknown, pointer, value):
    """Null, nested lists, an object, a negative number and a meaningless text are invalid for every key."""
    told = refused(nested(pointer, value))
    assert len(told) == 1
    ((place, problem),) = told.items()
    assert place == pointer or place.startswith(f"{pointer}/")
    assert problem.origin.source == "argument"
    assert problem.message != unknown.replace("zzz", pointer.rpartition("/")[2])


@rows("pointer", [key for key, form in KEYS.items() if form is ValueFormat.VALUE])
def test_a_number_in_quotes_is_a_text(refused, pointer):
    """And rejected where a number is needed."""
    assert any(place.startswith(pointer) for place in refused(nested(pointer, "5")))


@rows("name", ["database", "network", "sandbox", "server", "console"])
def test_a_section_is_an_object(refused, home, name):
    """An empty section is the same as a missing one."""
    assert load({name: None}, environ=home).settings == load(environ=home).settings
    for wrong in ([], "text", 5, True):
        assert set(refused({name: wrong})) == {f"/{name}"}


@rows(
    ("given", "pointer", "close"),
    [
        ({"module_path": "/x"}, "/module_path", "modules_path"),
        ({"database": {"uri": "x"}}, "/database/uri", "url"),
        ({"network": {"streams": {}}}, "/network/streams", "stream"),
        ({"network": {"stream": {"chanel": "x"}}}, "/network/stream/chanel", "channel"),
        ({"sandbox": {"timeout": 1}}, "/sandbox/timeout", "load_timeout"),
        ({"sandbox": {"os": {"landlok": {}}}}, "/sandbox/os/landlok", "landlock"),
        ({"sandbox": {"limits": {"cpu": 1}}}, "/sandbox/limits/cpu", "cpu_seconds"),
        ({"server": {"prot": 1}}, "/server/prot", "port"),
        ({"console": {"idle_minute": 1}}, "/console/idle_minute", "idle_minutes"),
        ({"zzz": 1}, "/zzz", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(given, pointer, close):
    """Only as a hint: a similar key is never used instead."""
    with pytest.raises(ConfigInvalid) as error:
        load(given, environ={"HOME": "/home/ann"})
    (problem,) = error.value.problems
    assert (problem.pointer, problem.suggestion) == (pointer, close)


def test_everything_that_is_wrong_is_told_at_once(refused):
    """Not one after another."""
    told = refused(
        {"server": {"port": 99999, "host": 5}, "console": {"enabled": 1}, "sandbox": {"os": {"x": 1}}, "y": 1}
    )
    assert set(told) == {"/server/port", "/server/host", "/console/enabled", "/sandbox/os/x", "/y"}


# ---- places ----------------------------------------------------------------------------------------------------------


@rows("name", ["state_dir", "data_dir", "modules_path"])
def test_a_path_that_no_file_can_have(refused, name):
    """A lone surrogate cannot occur in a file name: it is rejected here, not when the folder is created."""
    told = refused({name: "/srv/\ud800"})
    assert set(told) == {f"/{name}"}
    assert r"\ud800" in told[f"/{name}"].message


@rows("name", ["modules_path", "engines_path", "extractors_path"])
def test_a_folder_of_extensions_has_to_be_there(refused, tmp_path, name):
    """A misspelled one would silently be a host without extensions."""
    (tmp_path / "file").touch()
    missing = refused({name: tmp_path / "none"})[f"/{name}"]
    assert repr(f"{tmp_path}/none") in missing.message or "..." in missing.message
    assert os.strerror(errno.ENOTDIR) in refused({name: tmp_path / "file"})[f"/{name}"].message
    assert os.strerror(errno.ENAMETOOLONG) in refused({name: "/" + "x" * 300})[f"/{name}"].message


def test_further_folders_are_checked_one_by_one(refused, tmp_path):
    """Each invalid one at its own pointer."""
    told = refused({"extra_engine_dirs": [str(tmp_path), "/no/such", "relative", 5]})
    assert set(told) == {f"/extra_engine_dirs/{index}" for index in (1, 2, 3)}


@rows("path", ["~/state", "~", "~ann/x", "$HOME/state", "${HOME}"])
def test_nothing_is_put_in_the_place_of_a_tilde_or_a_variable(refused, config, path):
    """In a file and in an argument they would be ambiguous: a home folder, or a folder with that name."""
    for source in ({"state_dir": path}, config(f'state_dir: "{path}"')):
        told = refused(source)
        assert set(told) == {"/state_dir"}
        assert repr(path[0]) in told["/state_dir"].message
        assert repr(path) in told["/state_dir"].message


@rows(
    ("environ", "state"),
    [
        ({"XDG_STATE_HOME": "/xdg/", "HOME": "/home/ann"}, "/xdg/democrai-sandbox"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/ann"}, "/home/ann/.local/state/democrai-sandbox"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/ann"}, "/home/ann/.local/state/democrai-sandbox"),
    ],
)
def test_state_is_kept_where_the_system_says(environ, state):
    """A relative folder for state is ignored."""
    assert load(environ=environ).settings.state_dir == state


@rows("environ", [{}, {"HOME": ""}, {"HOME": "home"}])
def test_without_a_home_the_state_folder_has_to_be_named(environ):
    """No other folder is used instead."""
    with pytest.raises(ConfigInvalid) as error:
        load(environ=environ)
    (problem,) = error.value.problems
    assert (problem.origin.source, problem.pointer) == ("default", "/state_dir")
    assert "HOME" in problem.message
    assert load({"state_dir": "/srv/state"}, environ=environ)


@rows("name", ["a?b", "a?mode=ro"])
def test_a_state_folder_that_no_url_can_hold_is_told(refused, name):
    """Unless the database is elsewhere."""
    state = {"state_dir": f"/srv/{name}"}
    assert "database.url" in refused(state)["/state_dir"].message
    assert load({**state, "database": {"url": "postgresql://db/x"}}, environ={})


# ---- database --------------------------------------------------------------------------------------------------------


DATABASES = [
    *("mysql://u:hunter22@h/x", "hunter22", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=ro"),
    *("sqlite:///relative.db", "sqlite:////no/such/folder/x.db", "postgresql://u:hunter22@h:port/x", ""),
    ["postgresql://u:hunter22@h/x"],
]
"""Invalid database URLs."""


@rows("url", DATABASES)
def test_a_database_that_cannot_be_used_is_refused(refused, url):
    """The error does not quote its URL."""
    told = refused({"database": {"url": url}})
    assert set(told) == {"/database/url"}
    assert "hunter22" not in str(told["/database/url"])


def test_database_and_keys_may_lie_in_the_state_folder_before_it_is_made(tmp_path):
    """The host creates that folder, and no other."""
    state = tmp_path / "state"
    database = {"url": f"sqlite:///{state}/my.db", "key_file": f"{state}/my.keys"}
    settings = load({"state_dir": state, "database": database}, environ={}).settings
    assert (settings.database, settings.key_file) == (database["url"], database["key_file"])
    assert list(tmp_path.iterdir()) == []


def test_keys_elsewhere_need_their_folder(refused):
    """It is not created."""
    told = refused({"database": {"key_file": "/no/such/keys"}})
    assert set(told) == {"/database/key_file"}
    assert "'/no/such'" in told["/database/key_file"].message


# ---- network ---------------------------------------------------------------------------------------------------------


@rows(
    ("stream", "places"),
    [
        ({"type": "redi", "url": "redis://h"}, {"type"}),
        ({"type": None}, {"type"}),
        ({"type": ["redis"]}, {"type"}),
        ({"type": "redis"}, {"url"}),
        ({"url": "redis://h"}, {"url"}),
        ({"type": "redis", "url": "http://:hunter22@h", "longest": 5}, {"url", "longest"}),
        ({"type": "ipc"}, {"folder"}),
        ({"type": "ipc", "folder": "relative"}, {"folder"}),
        ({"type": "ipc", "folder": "/srv/x", "channel": "a/b"}, {"channel"}),
        ({"type": "redis://:hunter22@h"}, {"type"}),
        ({"channel": "redis://:hunter22@h"}, {"channel"}),
    ],
)
def test_an_event_stream_that_cannot_be_opened_is_refused(refused, stream, places):
    """By the checks of the streams, with pointers into this section; errors do not quote passwords."""
    told = refused({"network": {"stream": stream}})
    assert set(told) == {f"/network/stream/{place}" for place in places}
    assert "hunter22" not in "".join(map(str, told.values()))


def test_reading_makes_no_folder_for_events(tmp_path, home):
    """The stream creates it when it is opened."""
    folder = tmp_path / "events"
    settings = load({"network": {"stream": {"type": "ipc", "folder": folder}}}, environ=home).settings
    assert settings.stream == {"folder": str(folder)}
    assert not folder.exists()


@rows(
    "url",
    [
        "api.example.com",
        "https://",
        "sqlite:////srv/x.db",
        "https://h:99999",
        "https://*.example.com",
        "foo://h",
        "",
        5,
        None,
        "https://u:hunter22@h:port",
        "https://u:hunter22",
    ],
)
def test_an_endpoint_is_a_url_with_a_place(refused, url):
    """Endpoints that the allowlist could not use are rejected here."""
    told = refused({"network": {"endpoints": {"api": url}}})
    assert set(told) == {"/network/endpoints/api"}
    if "@" in str(url):
        assert "hunter22" not in str(told["/network/endpoints/api"])


@rows("name", ["", "a b", "a/b", "x" * 65, "\n"])
def test_an_endpoint_has_a_plain_name(refused, name):
    """It is shown as the origin of a rule."""
    (problem,) = refused({"network": {"endpoints": {name: "https://h"}}}).values()
    assert problem.pointer.startswith("/network/endpoints")
    assert " 64 " in problem.message


# ---- sandbox ---------------------------------------------------------------------------------------------------------


ISOLATIONS = [
    ({"reports": "process"}, None),
    ({"modul:reports": "process"}, "module"),
    ({"module:": "process"}, None),
    ({"engine:x": "process"}, None),
    ({"module:x": "proces"}, "process"),
    ({"module:x": True}, None),
    ({"module:a/b~c": "none"}, None),
]
"""Invalid isolation settings, and the suggestions."""


@rows(("isolation", "suggestion"), ISOLATIONS)
def test_isolation_is_of_modules_and_tools(refused, isolation, suggestion):
    """The checks of the runtime decide; a name with a slash is escaped in its pointer."""
    ((place, problem),) = refused({"sandbox": {"isolation": isolation}}).items()
    (name,) = isolation
    assert place == "/sandbox/isolation/" + name.replace("~", "~0").replace("/", "~1")
    assert problem.suggestion == suggestion


@rows("manager", ["gate", "tool:a.b", "modul:x", "module:", 5, None, "redis://:hunter22@h"])
def test_a_manager_is_a_module(refused, manager):
    """Reported with its index in the list."""
    told = refused({"sandbox": {"managers": ["module:fine", manager]}})
    assert set(told) == {"/sandbox/managers/1"}
    assert "hunter22" not in str(told["/sandbox/managers/1"])


@rows("name", ["scikit-learn", "scipy.sparse", "", 5, None])
def test_a_package_has_the_name_that_is_imported(refused, name):
    """Not the name of its distribution."""
    told = refused({"sandbox": {"guard": {"native_packages": ["scipy", name]}}})
    assert set(told) == {"/sandbox/guard/native_packages/1"}


@rows("name", ["call_timeout", "load_timeout", "poll_seconds"])
@rows("value", [0, -1, float("nan"), float("inf"), 1e9, "1:30", True])
def test_a_time_is_a_positive_number_of_seconds(refused, name, value):
    """With an upper limit."""
    assert set(refused({"sandbox": {name: value}})) == {f"/sandbox/{name}"}


def test_the_problems_of_the_kernel_section_have_their_places(refused):
    """The kernel layer validates its section."""
    told = refused({"sandbox": {"os": {"enabled": "yes", "landlock": {"extra_read_paths": ["/a", "b"]}}}})
    assert set(told) == {"/sandbox/os/enabled", "/sandbox/os/landlock/extra_read_paths/1"}


# ---- server ----------------------------------------------------------------------------------------------------------


@rows("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_nothing_further(home, host):
    """Passwords stay on this machine."""
    assert load({"server": {"host": host}}, environ=home).settings.server.host == host


@rows("host", ["0.0.0.0", "::", "192.168.1.5", "2001:db8::1"])
@rows("url", [None, "http://localhost:8420"])
def test_an_address_that_others_reach_needs_https(refused, home, host, url):
    """Reported at the address, with the fix."""
    server = {"host": host} if url is None else {"host": host, "public_url": url}
    assert "server.public_url" in refused({"server": server})["/server/host"].message
    assert load({"server": {**server, "public_url": "https://s.example.com"}}, environ=home)


@rows("host", ["example.com", "127.1", "", "0", "0x7f000001", "[::1]", "127.0.0.1:8420", "*", "LOCALHOST"])
def test_a_host_is_an_address(refused, host):
    """A name could resolve to any address."""
    told = refused({"server": {"host": host}})
    assert set(told) == {"/server/host"}
    assert "127.0.0.1" in told["/server/host"].message


@rows("port", [-1, 65536, 80.0, True, "80", "22:22"])
def test_a_port_is_a_number_within_its_range(refused, port):
    """From 0, which selects a free one, to 65535."""
    told = refused({"server": {"port": port}})
    assert set(told) == {"/server/port"}
    assert " 65535" in told["/server/port"].message


@rows(
    ("url", "suggestion"),
    [
        ("https://s.example.com/", "https://s.example.com"),
        ("https://s.example.com/console", "https://s.example.com"),
        ("https://S.example.com:8443?x=1", "https://s.example.com:8443"),
        ("https://s.example.com#x", "https://s.example.com"),
        ("http://s.example.com", "https://s.example.com"),
        ("HTTP://s.example.com:80", "https://s.example.com:80"),
        ("https://u:hunter22@s.example.com", None),
        ("https://s.example.com\\@x.example.com", None),
        ("ftp://s.example.com", None),
        ("s.example.com", None),
        ("https://", None),
        ("https://a b", None),
        ("https://h:99999", None),
        ("", None),
        (" https://s.example.com", None),
    ],
)
def test_a_public_url_is_a_scheme_and_a_host(home, url, suggestion):
    """With the valid part as the suggestion, and never with a password."""
    with pytest.raises(ConfigInvalid) as error:
        load({"server": {"public_url": url}}, environ=home)
    (problem,) = error.value.problems
    assert (problem.pointer, problem.suggestion) == ("/server/public_url", suggestion)
    assert "hunter22" not in str(error.value)


@rows(
    ("url", "normal"),
    [
        ("https://s.example.com", "https://s.example.com"),
        ("HTTPS://S.Example.com:443", "https://s.example.com"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("http://localhost:8420", "http://localhost:8420"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("http://[::1]:8420", "http://[::1]:8420"),
    ],
)
def test_a_public_url_is_kept_as_browsers_write_it(home, url, normal):
    """So that it can be compared with an Origin header."""
    assert load({"server": {"public_url": url}}, environ=home).settings.server.public_url == normal


@rows("proxies", ["*", "10.0.0.1", ["*"], ["10.0.0.0/8"], ["proxy"], [5]])
def test_trusted_proxies_are_addresses(refused, proxies):
    """Otherwise every client could choose its address."""
    (place,) = refused({"server": {"trusted_proxies": proxies}})
    assert place.startswith("/server/trusted_proxies")


# ---- objects of an application ---------------------------------------------------------------------------------------


@rows("value", [date(2026, 11, 15), {1, 2}, object(), b"x", 10**400, 1j])
def test_an_argument_holds_plain_values(refused, value):
    """A value that YAML does not support is reported once, with its type."""
    (problem,) = refused({"server": {"port": value}}).values()
    assert problem.pointer == "/server/port"
    assert type(value).__name__ in problem.message


def test_an_argument_is_copied(home):
    """Later changes by the application have no effect."""
    given = {"network": {"endpoints": {"a": "https://a.example.com"}}}
    settings = load(given, environ=home).settings
    given["network"]["endpoints"]["b"] = "nonsense"
    assert settings.endpoints == {"a": "https://a.example.com"}


def test_an_object_that_holds_itself_is_refused(refused):
    """It is not followed forever."""
    given = {}
    given["server"] = given["console"] = given
    assert any(f" {DEEPEST_NESTING} " in problem.message for problem in refused(given).values())


@rows("key", [1, None, "x" * 300, ("a",)])
def test_keys_of_an_argument_are_texts(refused, key):
    """A key has a maximum length."""
    told = refused({"server": {key: 1}})
    assert set(told) == {"/server"}
    assert f" {LONGEST_KEY} " in told["/server"].message


def test_each_refusal_has_its_sentence(refused):
    """The message says what is wrong with a value, not only where."""
    given = [
        *({"database": {"url": url}} for url in DATABASES),
        *({"sandbox": {"isolation": isolation}} for isolation, _ in ISOLATIONS),
        *({"sandbox": {"call_timeout": 0}}, {"sandbox": {"managers": ["tool:a.b"]}}, {"sandbox": []}, {"zzz": 1}),
        *({"state_dir": path} for path in ("/srv/\ud800", "~/state", "$HOME", "relative", "/srv/a?b")),
        *({"modules_path": "/no/such"}, {"modules_path": "/dev/null"}, {"database": {"key_file": "/no/such/keys"}}),
        *({"network": {"stream": stream}} for stream in ({"type": "redi"}, {"type": "redis"}, {"type": "ipc"})),
        *({"network": {"endpoints": {name: url}}} for name, url in (("a b", "https://h"), ("api", "foo://h"))),
        *({"server": {"host": host}} for host in ("example.com", "0.0.0.0")),
        *({"server": {"port": port}} for port in (-1, {1, 2})),
        *({"server": {"public_url": f"{url}.example.com/x"}} for url in ("ftp://s", "https://s", "http://s")),
        *({"server": {"public_url": "http://s.example.com"}}, {"server": {"trusted_proxies": ["*"]}}),
        *({"server": {1: 1}}, {"sandbox": {"os": {"enabled": "yes"}}}, {"sandbox": {"limits": {"cpu_seconds": 0}}}),
    ]
    told = [problem for source in given for problem in refused(source).values()]
    sentence("refusals", "\n".join(map(str, told)))
