"""Complete loading: the origin of each value, relative paths, and the content of errors."""

from __future__ import annotations

import os
import pickle
import time
import traceback

import pytest

from democrai_sandbox.errors import ConfigInvalid, InvalidInputError
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.keys import KEYS, OPEN
from tests.services.golden import sentence
from tests.services.rows import rows

PASSWORD = "hunter22"


def refusal(source, environ):
    with pytest.raises(ConfigInvalid) as error:
        load(source, environ=environ)
    return error.value


# ---- origins ---------------------------------------------------------------------------------------------------------


def test_each_key_has_its_origin(config, home):
    """The line of the file, the variable, or the default."""
    path = config("server:\n  port: 1\n  host: 127.0.0.2\nsandbox:\n  isolation:\n    'module:a': process\n")
    environ = {**home, "DEMOCRAI_CONFIG__SERVER__PORT": "2", "DEMOCRAI_CONFIG__NETWORK__ENDPOINTS": "{a: https://h}"}
    loaded = load(path, environ=environ)
    given = {pointer: origin.source for pointer, origin in loaded.origins.items() if origin.source != "default"}
    assert given == {
        "/server/port": "DEMOCRAI_CONFIG__SERVER__PORT",
        "/server/host": f"{path}:3",
        "/sandbox/isolation/module:a": f"{path}:6",
        "/network/endpoints/a": "DEMOCRAI_CONFIG__NETWORK__ENDPOINTS",
    }
    assert loaded.origins["/server/host"].line == 3
    assert set(loaded.origins) == {*KEYS, *OPEN, *given}


def test_what_an_application_hands_over_is_the_argument(home):
    """Also a list, which is one value."""
    origins = load({"server": {"trusted_proxies": ["::1"]}}, environ=home).origins
    assert origins["/server/trusted_proxies"].source == "argument"
    assert origins["/server/port"].source == "default"
    assert "/server/trusted_proxies/0" not in origins


def test_a_section_that_a_variable_replaces_leaves_no_lines_behind(config, home):
    """The file's values of that section and their lines no longer count."""
    path = config("server:\n  port: 1\n  host: 127.0.0.2\n")
    origins = load(path, environ={**home, "DEMOCRAI_CONFIG__SERVER": "{port: 2}"}).origins
    assert origins["/server/port"].source == "DEMOCRAI_CONFIG__SERVER"
    assert origins["/server/host"].source == "default"


def test_the_environment_of_the_process_is_the_default(config, monkeypatch):
    """Unless another one is passed."""
    monkeypatch.setenv("DEMOCRAI_CONFIG__SERVER__PORT", "4711")
    monkeypatch.setenv("HOME", "/home/ann")
    assert load().settings.server.port == 4711
    assert load({"state_dir": "/srv"}, environ={}).settings.server.port == 8420


# ---- paths -----------------------------------------------------------------------------------------------------------


def test_relative_paths_of_a_file_begin_at_its_folder(tmp_path, home, monkeypatch):
    """Independent of the working directory, and for every key with a path."""
    folder = tmp_path / "etc"
    folder.mkdir()
    for name in ("modules", "more", "db"):
        (tmp_path / name).mkdir()
    (folder / "config.yaml").write_text(
        "state_dir: state\n"
        "data_dir: ../data\n"
        "modules_path: ../modules\n"
        "extra_module_dirs: [../more, ./../more/]\n"
        "database: {url: 'sqlite:///../db/x.db', key_file: ../db/keys}\n"
        "network: {stream: {type: ipc, folder: events}}\n"
        "sandbox: {os: {policy_file: p.json, helper_socket: 'h{pid}.sock', landlock: {extra_read_paths: [r]}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = load("etc/config.yaml", environ=home).settings
    base = str(tmp_path)
    assert settings.state_dir == f"{base}/etc/state"
    assert settings.data_dir == f"{base}/data"
    assert settings.modules_path == f"{base}/modules"
    assert settings.extra_module_dirs == (f"{base}/more", f"{base}/more")
    assert settings.database == f"sqlite:///{base}/db/x.db"
    assert settings.key_file == f"{base}/db/keys"
    assert settings.stream == {"folder": f"{base}/etc/events"}
    assert settings.os.policy_file == f"{base}/etc/p.json"
    assert settings.os.helper_socket == f"{base}/etc/h{{pid}}.sock"
    assert settings.os.landlock.extra_read_paths == (f"{base}/etc/r",)
    assert settings.config_file == f"{base}/etc/config.yaml"


def test_relative_paths_of_an_argument_are_refused(refused):
    """They would depend on the working directory."""
    told = refused({"state_dir": "state"})
    assert set(told) == {"/state_dir"}
    assert "'state'" in told["/state_dir"].message


def test_a_relative_path_of_a_variable_is_refused_also_beside_a_file(config, refused):
    """They do not start at the folder of the file."""
    told = refused(config("{}"), DEMOCRAI_CONFIG__STATE_DIR="state")
    assert set(told) == {"/state_dir"}
    assert "'state'" in told["/state_dir"].message


def test_reading_changes_nothing(config, tmp_path, home):
    """No folder is created, and nothing is written beside the file."""
    path = config("state_dir: state\ndata_dir: data\n")
    load(path, environ=home)
    assert list(tmp_path.iterdir()) == [path]


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_has_one_line_for_each_problem_with_file_and_line(config, home, monkeypatch, tmp_path):
    """From top to bottom of the file, then those of variables."""
    config("server:\n  prot: 5\nsandbox:\n  os:\n    enabled: yes\n")
    monkeypatch.chdir(tmp_path)
    error = refusal("config.yaml", {**home, "DEMOCRAI_CONFIG__DATA_DIR": "data"})
    assert isinstance(error, InvalidInputError)
    assert error.code == "config_invalid"
    assert [(problem.origin.source, problem.pointer, problem.suggestion) for problem in error.problems] == [
        ("config.yaml:2", "/server/prot", "port"),
        ("config.yaml:5", "/sandbox/os/enabled", None),
        ("DEMOCRAI_CONFIG__DATA_DIR", "/data_dir", None),
    ]
    assert error.diagnostics().splitlines()[1:] == [f"  - {problem}" for problem in error.problems]
    sentence("problems with file and line", error.diagnostics())


def test_a_key_that_is_missing_is_told_where_it_would_stand(config, home):
    """With the line of the section."""
    path = config("network:\n  stream:\n    type: redis\n")
    (problem,) = refusal(path, home).problems
    assert (problem.origin.source, problem.pointer) == (f"{path}:2", "/network/stream/url")
    assert "redis" in problem.message


def test_a_value_that_could_not_be_read_is_told_once(config, home):
    """It is not reported again as missing or of the wrong type."""
    path = config("server:\n  port: !!int 5\nextra_module_dirs: [*x]\nconsole: &c\n  idle_minutes: 5\n")
    assert [problem.origin.line for problem in refusal(path, home).problems] == [2, 3, 4]


def test_of_a_thousand_problems_a_hundred_are_told(home):
    """And the number of the others."""
    error = refusal({f"key{number}": 1 for number in range(1000)}, home)
    assert len(error.problems) == 101
    assert " 900 " in str(error.problems[-1])


def test_an_error_survives_its_way_to_another_process(config, home):
    """With the places of its problems."""
    error = refusal(config("x: 1\n"), home)
    again = pickle.loads(pickle.dumps(error))
    assert again.diagnostics() == error.diagnostics()


@rows(
    "text",
    [
        f"database: postgresql://ann:{PASSWORD}@db/x",
        f"database: {{url: 'mysql://ann:{PASSWORD}@db/x'}}",
        f"database: {{url: ['postgresql://ann:{PASSWORD}@db/x']}}",
        f"database: {{url: 'postgresql://ann:{PASSWORD}@db:port/x'}}",
        f"database: {{key_file: 'postgresql://ann:{PASSWORD}@db/x'}}",
        f"network: redis://:{PASSWORD}@cache",
        f"network: {{stream: 'redis://:{PASSWORD}@cache'}}",
        f"network: {{stream: {{type: 'redis://:{PASSWORD}@cache'}}}}",
        f"network: {{stream: {{type: redis, url: 'http://:{PASSWORD}@cache'}}}}",
        f"network: {{stream: {{channel: 'redis://:{PASSWORD}@cache'}}}}",
        f"network: {{endpoints: {{a: 'https://ann:{PASSWORD}@h:port/x'}}}}",
        f"network: {{endpoints: 'https://ann:{PASSWORD}@h/x'}}",
        f"server: {{public_url: 'https://ann:{PASSWORD}@h/x'}}",
        f"server: {{public_url: 'https://ann:{PASSWORD}@h:port'}}",
        f"server: {{host: 'ann:{PASSWORD}@h'}}",
        f"server: {{port: 'x://ann:{PASSWORD}@h'}}",
        f"server: {{public_url: 'ftp://h/x?token={PASSWORD}'}}",
        f"sandbox: {{managers: ['x://ann:{PASSWORD}@h']}}",
        f"sandbox: {{isolation: {{'module:a': 'x://ann:{PASSWORD}@h'}}}}",
        f"sandbox: {{os: {{enabled: 'x://ann:{PASSWORD}@h'}}}}",
        f"state_dir: x://{'ann' * 40}:{PASSWORD}@h\nzzz: 1",
        f"postgresql://ann:{PASSWORD}@db/x",
        f"database:\n  url:postgresql://ann:{PASSWORD}@db/x\n",
        f"database:\n  url: postgresql://ann:{PASSWORD}@db/x\n url: 5",
        f"database:\n  url: *{PASSWORD}\n",
        f"database:\n  url: !{PASSWORD} x\n",
        f'database:\n  url: "{PASSWORD}',
    ],
)
def test_no_password_is_repeated_wherever_it_stands(config, home, text):
    """Not in the text, the diagnostics or a traceback."""
    error = refusal(config(text), home)
    said = "".join([str(error), error.diagnostics(), *traceback.format_exception(error)])
    assert PASSWORD not in said


def test_a_password_is_not_repeated_out_of_a_variable(home):
    """The same for the environment."""
    for name in ("DATABASE", "DATABASE__KEY_FILE", "SERVER__PUBLIC_URL", "SANDBOX__OS__ENABLED", "X"):
        error = refusal(None, {**home, f"DEMOCRAI_CONFIG__{name}": f"postgresql://ann:{PASSWORD}@db/x"})
        assert PASSWORD not in error.diagnostics()


def test_settings_do_not_show_passwords(home):
    """For example in a log."""
    network = {"stream": {"type": "redis", "url": f"redis://:{PASSWORD}@h"}}
    loaded = load({"database": {"url": f"postgresql://ann:{PASSWORD}@db/x"}, "network": network}, environ=home)
    assert PASSWORD not in repr(loaded)


def test_the_cost_of_loading_grows_with_the_size_of_the_file(config, home):
    """The time for a file with many endpoints grows linearly, not quadratically."""

    def endpoints(count):
        lines = "".join(f"    name{number}: https://host{number}.example.com/v1\n" for number in range(count))
        return f"server: {{port: 1}}\nconsole: {{idle_minutes: 5}}\nnetwork:\n  endpoints:\n{lines}"

    def cost(count):
        path, times = config(endpoints(count)), []
        for _ in range(3):
            begin = time.thread_time()
            load(path, environ=home)
            times.append(time.thread_time() - begin)
        return min(times)

    assert cost(400) < 32 * cost(50)
