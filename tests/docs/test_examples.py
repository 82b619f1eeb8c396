"""The examples in the README and the documents, run as a reader would run them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.postgres import postgres_server
from tests.services.redis import RedisServer

REPOSITORY = Path(__file__).resolve().parents[1]


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
    return dict(re.findall(r"^`([\w./-]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def run(example, folder, given=None):
    """Run an example in a folder of its own, with the given files in it, and return what it prints."""
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    for path, text in (given or {}).items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    (home / "first.py").write_text(example)
    finished = subprocess.run(
        [sys.executable, "first.py"],
        cwd=home,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(REPOSITORY / "examples")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.stderr == ""
    assert finished.returncode == 0
    return finished.stdout


@pytest.mark.once
def test_first_module_prints_what_the_readme_says(tmp_path):
    """The three files work as they stand, and with the entry that is printed the third call is allowed too."""
    (example, expected), _ = programs("README.md")
    given = files("README.md")
    assert sorted(given) == ["host.py", "modules/hello/manifest.json", "modules/hello/module.py"]
    (tmp_path / "1").mkdir()
    assert run(example, tmp_path / "1", given) == expected
    entry = expected.splitlines()[4].strip()
    given["modules/hello/manifest.json"] = given["modules/hello/manifest.json"].replace("\n  ]", f",\n    {entry}\n  ]")
    (tmp_path / "2").mkdir()
    assert run(example, tmp_path / "2", given).splitlines()[1:] == ["True", "True"]


def test_first_example_prints_what_the_readme_says(tmp_path):
    """The example runs as it stands, prints the lines shown below it, and then a hint with the missing entry."""
    _, (example, expected) = programs("README.md")
    printed = run(example, tmp_path)
    assert printed.startswith(expected)
    hint = printed.removeprefix(expected)
    assert "/etc/passwd" in hint
    assert "read" in hint
    assert (tmp_path / "home" / "notes" / "today.txt").read_text() == "water the plants"


@pytest.mark.parametrize(("example", "expected"), examples("docs/network.md"), ids=itertools.count(1))
def test_network_examples_print_what_the_page_says(example, expected, tmp_path):
    """Each example runs as it stands and prints what is shown below it, but for the port of the stand-in server."""
    printed = run(example, tmp_path)
    assert re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8731", printed) == expected


@pytest.mark.once
@pytest.mark.parametrize(("example", "expected"), examples("docs/approvals.md"), ids=itertools.count(1))
def test_examples_of_approvals_print_what_the_page_says(example, expected, tmp_path):
    """Each example runs as it stands and prints what is shown below it."""
    assert run(example, tmp_path) == expected


@pytest.fixture
def servers(tmp_path):
    """What stands in the place of the servers that the page names."""
    with postgres_server() as postgres:
        redis = RedisServer(tmp_path).start()
        yield {
            "postgresql://access@db.example.com/access": postgres.new_database(),
            "redis://events.example.com:6379/0": redis.url,
        }
        redis.stop()


@pytest.mark.once
@pytest.mark.parametrize(("example", "expected"), examples("docs/access-service.md"), ids=itertools.count(1))
def test_examples_of_the_access_service_print_what_the_page_says(example, expected, tmp_path, request):
    """Each example runs as it stands and prints what is shown below it, with servers of this machine."""
    if ".example.com:" in example:
        for named, real in request.getfixturevalue("servers").items():
            assert named in example
            example = example.replace(named, real)
    assert run(example, tmp_path) == expected
