"""Colors, widths and character sets: a terminal gets what it can show, other outputs plain text."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
from datetime import datetime

import pytest

from democrai_sandbox.cli.output import CommandOutput, Mood, ago, visible, when
from tests.cli.goldens import Screen, golden

ESCAPES = re.compile(r"\x1b\[\d+m")
WISH = "https://coloured.example.org/a/rather/long/path/to/something/that/does/not/fit"


@contextlib.contextmanager
def a_terminal(columns=80):
    """A terminal as text stream, and a function that closes it and returns the output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with open(theirs, "w", encoding="utf-8") as stream:

        def written():
            stream.close()
            screen = Screen(ours)
            screen.read_to_end()
            return screen.text

        yield stream, written
    os.close(ours)


@pytest.mark.parametrize(
    ("environ", "is_coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["xterm", "NO_COLOR", "dumb"],
)
def test_colours_are_for_terminals_that_have_them(monkeypatch, environ, is_coloured):
    """NO_COLOR and TERM=dumb disable colors without changing the text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with a_terminal() as (stream, written):
        output = CommandOutput(out=stream)
        output.table(("NAME", "STATE"), [("one", "denied")], {"denied": Mood.BAD})
        output.line("whole", Mood.OK)
        text = written()
    assert bool(ESCAPES.search(text)) is is_coloured
    assert ESCAPES.sub("", text) == "NAME  STATE\none   denied\nwhole\n"


def test_a_pipe_gets_all_of_it(asked):
    """A narrow terminal shortens the widest column; a pipe and --json get the whole, without color."""
    asked.wants(WISH)
    arguments = ("requests", "list", "--state", "pending", "--text", "coloured.example")
    narrow = asked.terminal(*arguments, columns=100, NO_COLOR="1")
    golden("requests-list.narrow", narrow.text)
    assert max(map(len, narrow.text.splitlines())) <= 100
    piped = asked.piped(*arguments, COLUMNS="40")
    golden("requests-list.state.piped", piped.out)
    assert json.loads(asked.says(*arguments, "--json").out)["items"][0]["access"]["target"] == WISH


def test_another_character_set(asked):
    """Characters missing in the encoding are escaped; ids are never shortened."""
    request = asked.wants(WISH)
    arguments = ("requests", "list", "--text", "coloured.example")
    done = asked.terminal(*arguments, columns=60, PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert done.status == 0
    assert "\\u2026" in done.text
    assert request in done.text


def test_progress_is_for_terminals():
    """Progress is one line that vanishes; a file gets none."""
    with a_terminal() as (stream, written):
        with CommandOutput(out=io.StringIO(), err=stream) as output:
            output.progress("500 lines")
            output.progress("9 lines")
            output.say("done")
        assert written() == "\r500 lines\r9 lines  \r       \rdone\n"
    file = io.StringIO()
    with CommandOutput(out=io.StringIO(), err=file) as output:
        output.progress("500 lines")
    assert file.getvalue() == ""


def test_nothing_hidden_reaches_a_terminal():
    """Control characters, line ends and direction marks are escaped."""
    stream = io.StringIO()
    CommandOutput(out=stream).table(("A",), [("x\x1b[2J\r\ny\u202e\u200b\x9b",)])
    assert stream.getvalue() == "A\nx\\x1b[2J\\r\\ny\\u202e\\u200b\\x9b\n"
    assert visible("été 漢字") == "été 漢字"


def test_marks_do_not_pile_up():
    """A few marks per letter stay; further ones are escaped."""
    written = "e\u0323\u0302 \u05e9\u05bc\u05c1\u05b8\u0591"
    assert visible(written) == written
    assert visible("x" + "\u0336" * 500 + "y\u0336") == "x" + "\u0336" * 4 + r"\u0336" * 496 + "y\u0336"


def test_ages():
    """Ages use their largest full unit."""
    at = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
    given = ("2026-01-31T11:59:18Z", "2026-01-31T11:58:00Z", "2026-01-31T09:00:01Z", "2026-01-01T12:00:00Z", None)
    assert [ago(one, at) for one in given] == ["42s", "2m", "2h", "30d", "-"]
    assert ago("2026-01-31T12:00:09Z", at) == "0s"
    assert when("2026-01-31T13:00:00.123456+01:00") == "2026-01-31T12:00:00Z"
