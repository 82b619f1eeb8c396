"""The file itself: where it is, who may write it, and what is in it at all."""

from __future__ import annotations

import json
import os

import pytest

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.files import LARGEST_FILE

NOBODY = 65534


def told(path, environ):
    with pytest.raises(ConfigInvalid) as error:
        load(path, environ=environ)
    (problem,) = error.value.problems
    return str(problem)


def test_a_file_that_is_not_there_is_told(tmp_path, home):
    """With its name as it was given."""
    path = tmp_path / "none.yaml"
    assert told(path, home) == f"{path}: there is no such file"


def test_a_folder_is_no_file(tmp_path, home):
    """And is told as what it is."""
    assert told(tmp_path, home) == f"{tmp_path}: this is a folder, and a file is needed"


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, home, kind):
    """Nobody writes into a pipe of this name: reading it would never end."""
    path = tmp_path / "pipe" if kind == "pipe" else "/dev/null"
    if kind == "pipe":
        os.mkfifo(path)
    assert told(path, home) == f"{path}: this is no regular file"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_is_refused_with_the_fix(config, home, mode):
    """Whoever writes it decides what is enforced."""
    path = config("{}", mode)
    assert told(path, home).endswith(f"to fix it: chmod go-w {path}")


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o640, 0o400])
def test_a_file_of_its_owner_alone_is_read(config, home, mode):
    """Others may read it, if they do not write."""
    assert load(config("{}", mode), environ=home).settings.server.port == 8420


def test_the_fix_can_be_pasted_whatever_the_file_is_called(tmp_path, home):
    """A name with blanks in it is quoted."""
    path = tmp_path / "my config.yaml"
    path.write_text("{}")
    path.chmod(0o666)
    assert told(path, home).endswith(f"chmod go-w '{path}'")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_file_that_may_not_be_read_is_told(config, home):
    """With the reason of the system."""
    path = config("{}", 0o600)
    for folder in path.parents:
        if folder.stat().st_uid == 0 and folder.name.startswith(("pytest", "test_")):
            folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.seteuid(NOBODY)
            os.write(writer, json.dumps(told(path, home)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        assert json.load(answer) == f"{path}: the file cannot be read: Permission denied"
    os.waitpid(child, 0)


def test_bytes_that_are_no_utf8_are_told_with_their_line(config, home):
    """The file may have been saved in another encoding."""
    path = config(b"state_dir: /srv\nmodules_path: /srv/b\xfccher\n")
    assert told(path, home) == f"{path}:2: the text is not UTF-8 (byte 0xfc)"


def test_a_byte_order_mark_is_no_part_of_the_first_key(config, home):
    """Some editors write one."""
    path = config("server: {port: 1}\n".encode("utf-8-sig"))
    assert load(path, environ=home).settings.server.port == 1


def test_a_file_beyond_a_megabyte_is_refused(config, home):
    """One of that size is read."""
    comment = b"#" * (LARGEST_FILE - 3) + b"\n{}"
    assert len(comment) == LARGEST_FILE
    assert load(config(comment), environ=home)
    path = config(comment + b"\n")
    assert told(path, home) == f"{path}: the file is larger than 1,048,576 bytes"


@pytest.mark.parametrize("text", ["", "# all of it commented out\n", "---\n", "null\n"])
def test_a_file_without_settings_is_refused(config, home, text):
    """It may have been cut off, and every control would be off."""
    assert "no settings" in told(config(text), home)


@pytest.mark.parametrize(
    ("text", "got"),
    [("[]", "a list"), ("- a: 1", "a list"), ("text", "'text'"), ("5", "5"), ("true", "true")],
)
def test_what_is_no_object_is_refused(config, home, text, got):
    """And told as what it is."""
    assert told(config(text), home).endswith(f"expected an object of settings, got {got}")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(home, name):
    """Without another error than the typed one."""
    assert "cannot be read" in told(name, home)


@pytest.mark.parametrize("source", ["", 7, b"config.yaml", ["config.yaml"], object()])
def test_a_source_is_a_path_or_an_object(home, source):
    """Nothing else is guessed at."""
    assert told(source, home).startswith("argument: expected the path of a file, or an object of settings")


def test_the_file_can_be_named_by_a_variable(config, home):
    """An explicit source wins over it."""
    path = config("server: {port: 4711}")
    environ = {**home, "DEMOCRAI_CONFIG_FILE": str(path)}
    loaded = load(environ=environ)
    assert loaded.settings.server.port == 4711
    assert loaded.settings.config_file == str(path)
    assert load({}, environ=environ).settings.server.port == 8420


@pytest.mark.parametrize("name", ["", "config.yaml", "~/config.yaml", "$HOME/config.yaml"])
def test_a_file_named_by_a_variable_is_named_in_full(home, name):
    """Which file a relative name means would depend on where the host is started."""
    message = told(None, {**home, "DEMOCRAI_CONFIG_FILE": name})
    assert message.startswith("DEMOCRAI_CONFIG_FILE: ")
    assert "path" in message
