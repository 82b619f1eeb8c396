"""The configuration file: its place, its permissions, and its content."""

from __future__ import annotations

import errno
import json
import os

import pytest

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.yaml_document import LARGEST_FILE
from tests.services.golden import sentence
from tests.services.rows import rows

NOBODY = 65534


def told(path, environ):
    """Return the one problem of a source."""
    with pytest.raises(ConfigInvalid) as error:
        load(path, environ=environ)
    (problem,) = error.value.problems
    assert problem.pointer == ""
    return problem


def test_each_refusal_of_a_file_has_its_sentence(tmp_path, config, home):
    """The message says what is wrong with the file."""
    os.mkfifo(tmp_path / "pipe")
    problems = [told(source, home) for source in (tmp_path / "none.yaml", tmp_path, tmp_path / "pipe", 7)]
    problems += [told(config(text), home) for text in (b"a: \xfc", b"#" * (LARGEST_FILE + 1), "", "[]", "text")]
    problems += [told(None, {**home, "DEMOCRAI_CONFIG_FILE": name}) for name in ("config.yaml", "~/config.yaml")]
    problems.append(told(config("{}", 0o666), home))
    sentence("refusals", "\n".join(map(str, problems)), folder=tmp_path)


def test_a_file_that_is_not_there_is_told(tmp_path, home):
    """The problem contains its name as given."""
    path = tmp_path / "none.yaml"
    assert told(path, home).origin == (str(path), 0)


def test_a_folder_is_no_file(tmp_path, home):
    """A folder is distinguished from a missing file."""
    assert told(tmp_path, home).origin == (str(tmp_path), 0)
    assert told(tmp_path, home).message != told(tmp_path / "none", home).message


@rows("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, home, kind):
    """A pipe without a writer would block forever."""
    path = tmp_path / "pipe" if kind == "pipe" else "/dev/null"
    if kind == "pipe":
        os.mkfifo(path)
    assert told(path, home).origin == (str(path), 0)
    assert told(path, home).message == told("/dev/zero", home).message


@rows("mode", [0o664, 0o646, 0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_is_refused_with_the_fix(config, home, mode):
    """Its writer decides what is enforced."""
    path = config("{}", mode)
    assert told(path, home).message.endswith(f": chmod go-w {path}")


@rows("mode", [0o644, 0o600, 0o640, 0o400])
def test_a_file_of_its_owner_alone_is_read(config, home, mode):
    """Other users may read it."""
    assert load(config("{}", mode), environ=home).settings.server.port == 8420


def test_the_fix_can_be_pasted_whatever_the_file_is_called(tmp_path, home):
    """A name with spaces is quoted."""
    path = tmp_path / "my config.yaml"
    path.write_text("{}")
    path.chmod(0o666)
    assert told(path, home).message.endswith(f": chmod go-w '{path}'")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_file_that_may_not_be_read_is_told(config, home):
    """With the system's reason."""
    path = config("{}", 0o600)
    for folder in path.parents:
        if folder.stat().st_uid == 0 and folder.name.startswith(("pytest", "test_")):
            folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.seteuid(NOBODY)
            os.write(writer, json.dumps(told(path, home).message).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        assert os.strerror(errno.EACCES) in json.load(answer)
    os.waitpid(child, 0)


def test_bytes_that_are_no_utf8_are_told_with_their_line(config, home):
    """The file may have been saved in another encoding."""
    path = config(b"state_dir: /srv\nmodules_path: /srv/b\xfccher\n")
    assert told(path, home).origin == (f"{path}:2", 2)
    assert "0xfc" in told(path, home).message


def test_a_byte_order_mark_is_no_part_of_the_first_key(config, home):
    """Some editors write one."""
    path = config("server: {port: 1}\n".encode("utf-8-sig"))
    assert load(path, environ=home).settings.server.port == 1


def test_a_file_beyond_a_megabyte_is_refused(config, home):
    """A file of exactly that size is read."""
    comment = b"#" * (LARGEST_FILE - 3) + b"\n{}"
    assert len(comment) == LARGEST_FILE
    assert load(config(comment), environ=home)
    path = config(comment + b"\n")
    assert told(path, home).origin == (str(path), 0)
    assert "1,048,576" in told(path, home).message


@rows("text", ["", "# all of it commented out\n", "---\n", "null\n"])
def test_a_file_without_settings_is_refused(config, home, text):
    """It may be truncated, and every control would be off."""
    assert "{}" in told(config(text), home).message


@rows(
    ("text", "got"),
    [("[]", "a list"), ("- a: 1", "a list"), ("text", "'text'"), ("5", "5"), ("true", "true")],
)
def test_what_is_no_object_is_refused(config, home, text, got):
    """The problem names the type found."""
    assert told(config(text), home).message.endswith(f" {got}")


@rows("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(home, name):
    """Only the typed error is raised."""
    assert told(name, home).origin.source == name


@rows("source", ["", 7, b"config.yaml", ["config.yaml"], object()])
def test_a_source_is_a_path_or_an_object(home, source):
    """Other types are rejected."""
    assert told(source, home).origin.source == "argument"


def test_the_file_can_be_named_by_a_variable(config, home):
    """An explicit source overrides it."""
    path = config("server: {port: 4711}")
    environ = {**home, "DEMOCRAI_CONFIG_FILE": str(path)}
    loaded = load(environ=environ)
    assert loaded.settings.server.port == 4711
    assert loaded.settings.config_file == str(path)
    assert load({}, environ=environ).settings.server.port == 8420


@rows("name", ["", "config.yaml", "~/config.yaml", "$HOME/config.yaml"])
def test_a_file_named_by_a_variable_is_named_in_full(home, name):
    """A relative name would depend on the working directory."""
    assert told(None, {**home, "DEMOCRAI_CONFIG_FILE": name}).origin.source == "DEMOCRAI_CONFIG_FILE"
