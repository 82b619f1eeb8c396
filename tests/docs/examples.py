"""Programs in the documents, taken out and run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.docs.pages import REPOSITORY
from tests.services.commands import printed


def blocks(page, language):
    """The fenced blocks of one language, in order."""
    text = (REPOSITORY / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def examples(page):
    """Each Python block of a page with the output that is shown below it."""
    return list(zip(blocks(page, "python"), blocks(page, "text"), strict=True))


def programs(page):
    """Each Python block of a page that is followed by its output, with that: other blocks may stand before it."""
    text, inside = (REPOSITORY / page).read_text(), r"((?:(?!^```).)*)"
    form = rf"^```python\n{inside}^```\n(?:(?!^```).)*^```text\n{inside}^```$"
    return re.findall(form, text, re.DOTALL | re.MULTILINE)


def files(page):
    """The blocks of a page that are files: the line before each begins with its path."""
    text = (REPOSITORY / page).read_text()
    return dict(re.findall(r"^`([\w./-]+\.\w+)`[^\n]*:\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def write(given, folder):
    """Put files where a page says."""
    for path, text in given.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def run(example, folder, given=None, *, fresh=False):
    """Run an example in a folder of its own, with the given files in it, and return what it prints.

    In a fork of a process that has imported much; where it matters that nothing is loaded, in a fresh one.
    """
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    write(given or {}, home)
    (home / "first.py").write_text(example)
    environ = {"TMPDIR": str(temporary)}
    if fresh:
        done = subprocess.run(
            [sys.executable, "first.py"], cwd=home, env=os.environ | environ, capture_output=True, text=True, timeout=60
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        status, out, err = printed(home / "first.py", folder=home, environ=environ, beside=[REPOSITORY / "examples"])
    assert err == ""
    assert status == 0
    return out
