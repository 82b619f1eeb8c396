"""Colours, widths and character sets: a terminal gets what it can show, everything else the plain text."""

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

from democrai_sandbox.cli.output import Mood, Output, visible
from democrai_sandbox.cli.times import ago, when
from tests.cli.goldens import Screen, golden

ESCAPES = re.compile(r"\x1b\[\d+m")
WISH = "https://coloured.example.org/a/rather/long/path/to/something/that/does/not/fit"


@contextlib.contextmanager
def a_terminal(columns=80):
    """A text stream that is a terminal, and a function that ends it and returns what was written."""
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
    """With NO_COLOR and with TERM=dumb there is no escape, and the text is the same."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with a_terminal() as (stream, written):
        output = Output(out=stream)
        output.table(("NAME", "STATE"), [("one", "denied")], {"denied": Mood.BAD})
        output.line("whole", Mood.OK)
        text = written()
    assert bool(ESCAPES.search(text)) is is_coloured
    assert ESCAPES.sub("", text) == "NAME  STATE\none   denied\nwhole\n"


def test_a_pipe_gets_all_of_it(asked):
    """A narrow terminal cuts the middle of the widest column; a pipe and --json get the whole, without colour."""
    asked.wants(WISH)
    arguments = ("requests", "list", "--state", "pending", "--text", "coloured.example")
    narrow = asked.terminal(*arguments, columns=100, NO_COLOR="1")
    golden("requests-list.narrow", narrow.text)
    assert max(map(len, narrow.text.splitlines())) <= 100
    piped = asked.piped(*arguments, COLUMNS="40")
    golden("requests-list.state.piped", piped.out)
    assert json.loads(asked.says(*arguments, "--json").out)["items"][0]["access"]["target"] == WISH


def test_another_character_set(asked):
    """What a terminal's character set lacks is written out; ids are whole, however narrow it is."""
    request = asked.wants(WISH)
    arguments = ("requests", "list", "--text", "coloured.example")
    done = asked.terminal(*arguments, columns=60, PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert done.status == 0
    assert "\\u2026" in done.text
    assert request in done.text


def test_progress_is_for_terminals():
    """How far long work is stands in one line that vanishes; a file gets none of it."""
    with a_terminal() as (stream, written):
        with Output(out=io.StringIO(), err=stream) as output:
            output.progress("500 lines")
            output.progress("9 lines")
            output.say("done")
        assert written() == "\r500 lines\r9 lines  \r       \rdone\n"
    file = io.StringIO()
    with Output(out=io.StringIO(), err=file) as output:
        output.progress("500 lines")
    assert file.getvalue() == ""


def test_nothing_hidden_reaches_a_terminal():
    """Control characters, line ends and marks that turn the direction of writing are written out."""
    stream = io.StringIO()
    Output(out=stream).table(("A",), [("x\x1b[2J\r\ny\u202e\u200b\x9b",)])
    assert stream.getvalue() == "A\nx\\x1b[2J\\r\\ny\\u202e\\u200b\\x9b\n"
    assert visible("été 漢字") == "été 漢字"


def test_marks_do_not_pile_up():
    """A few on one letter are writing, and stay; what comes on top of them is written out."""
    written = "e\u0323\u0302 \u05e9\u05bc\u05c1\u05b8\u0591"
    assert visible(written) == written
    assert visible("x" + "\u0336" * 500 + "y\u0336") == "x" + "\u0336" * 4 + r"\u0336" * 496 + "y\u0336"


def test_ages():
    """In the largest unit that is full."""
    at = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
    given = ("2026-01-31T11:59:18Z", "2026-01-31T11:58:00Z", "2026-01-31T09:00:01Z", "2026-01-01T12:00:00Z", None)
    assert [ago(one, at) for one in given] == ["42s", "2m", "2h", "30d", "-"]
    assert ago("2026-01-31T12:00:09Z", at) == "0s"
    assert when("2026-01-31T13:00:00.123456+01:00") == "2026-01-31T12:00:00Z"
