"""Checks before a commit: its files, its subject, and the configuration that runs them."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
import yaml

from tests.scripts.runs import ROOT
from tests.services.rows import rows

sys.path.insert(0, str(ROOT / "scripts"))
import check_files
import check_subject

sys.path.remove(str(ROOT / "scripts"))
pytestmark = pytest.mark.once


@rows(
    ("name", "content", "count"),
    [
        ("a.py", b"x = 1\n", 0),
        ("a.py", b"x = 1 \n", 1),
        ("a.py", b"x = 1", 1),
        ("a.py", b"x = 1\n\n", 1),
        ("a.py", b"x = 1\r\ny = 2\r\n", 2),
        ("a.py", b"<<<<<<< HEAD\n=======\n>>>>>>> other\n", 2),
        ("a.py", b"# \xff\n", 1),
        ("a.py", b"", 0),
        ("a.md", b"text  \n", 0),
        ("a.png", b"\0\r\n ", 0),
        ("tests/cli/golden/a.txt", b"text ", 0),
        ("tests/fuzz/corpus/http1/a", b"\xff\r\n", 0),
        ("a.json", b"{}\n", 0),
        ("a.json", b"{,}\n", 1),
        ("a.toml", b"a =\n", 1),
        ("a.yaml", b"a: 1\n---\nb: 2\n", 0),
        ("a.yml", b"a: [\n", 1),
        ("a.txt", b"x\n" * 500_001, 1),
    ],
)
def test_problems_of_files(name, content, count):
    """Each problem is one line with the name of the file."""
    found = list(check_files.problems(name, content))
    assert len(found) == count
    assert all(problem.startswith(f"{name}:") for problem in found)


@rows(
    ("message", "count"),
    [
        ("guard: check the mode of os.open", 0),
        ("cli, console: move argument parsing out of command modules\n\nBecause.", 0),
        ("tests: seed the random numbers", 0),
        ("Merge branch 'core'", 0),
        ('Revert "guard: check the mode"', 0),
        ("fixup! guard: check", 0),
        ("check the mode of os.open", 1),
        ("Guard: check", 1),
        ("guard: Check the mode", 1),
        ("guard: checked the mode", 1),
        ("guard: checking the mode", 1),
        ("guard: check the mode.", 1),
        ("guard: check\nthe mode", 1),
        ("guard: " + "x" * 66, 1),
        ("guard: " + "x" * 65, 0),
    ],
)
def test_problems_of_subjects(message, count):
    """A scope, an imperative verb in lower case, at most 72 characters, and an empty second line."""
    assert len(list(check_subject.problems(message))) == count


def test_comments_of_git_are_ignored(tmp_path):
    """The file of a message contains comments, and with `--verbose` the change."""
    file = tmp_path / "message"
    file.write_text("guard: check\n# Please enter\n# ------------------------ >8 ---\ndiff " + "x" * 90)
    assert check_subject.main(str(file)) == 0


def test_all_files_pass():
    """The repository has no problem that the hook would report."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    assert [problem for name in names for problem in check_files.problems(name, (ROOT / name).read_bytes())] == []


def test_hooks_need_no_network():
    """Every hook is local and starts a program of the environment or a script of the repository."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        program, *words = shlex.split(hook["entry"])
        assert program.startswith(".venv/bin/")
        assert [word for word in words if "/" in word and not (ROOT / word).is_file()] == []
