"""Selection of the current environment, and removal of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.policy import InvalidInputError, Subject
from democrai_sandbox.runtime.installs.environments import (
    EnvironmentFolder,
    InstalledEnvironment,
    hold_environment,
    make_plan,
)
from tests.runtime.installs.packages import source
from tests.services.rows import rows


@pytest.fixture
def place(tmp_path):
    """Return the place of one engine."""
    return EnvironmentFolder(str(tmp_path / "data"), Subject("engine", "whisper"))


def built(place, name="one"):
    """Make a finished environment."""
    folder = place.environments / name
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /nowhere\n")
    return InstalledEnvironment(name, str(folder), ("a==1",))


class TestFingerprint:
    def test_it_follows_the_requirements_in_their_order(self, tmp_path):
        """The same requirements give the same fingerprint, others another one."""
        marks = [make_plan(words, str(tmp_path)).fingerprint for words in (["a"], ["a"], ["b"], ["a", "b"], ["ab"], [])]
        assert marks[0] == marks[1]
        assert len(set(marks)) == 5

    def test_it_follows_the_contents_of_local_packages(self, tmp_path):
        """A changed, added or renamed file counts; files of the interpreter's cache do not."""
        package = source(tmp_path / "tiny", "tiny")

        def mark():
            return make_plan(["./tiny"], str(tmp_path)).fingerprint

        before = mark()
        (package / "__pycache__").mkdir()
        (package / "__pycache__" / "tiny.pyc").write_bytes(b"x")
        assert mark() == before
        (package / "tiny.py").write_text("VERSION = 2\n")
        changed = mark()
        (package / "tiny.py").rename(package / "tiny2.py")
        assert len({before, changed, mark()}) == 3

    def test_a_link_is_not_followed(self, tmp_path):
        """Its target path counts, the content there does not."""
        package = source(tmp_path / "tiny", "tiny")
        (package / "link").symlink_to("/proc")
        assert make_plan(["./tiny"], str(tmp_path)).packages == ("tiny",)

    def test_packages_with_such_letters_in_their_names_are_not(self, tmp_path):
        """``digit+`` is not version control, and neither is a local version."""
        assert make_plan(["gitpython>=3", "thing==1.0+git5", "digital"], str(tmp_path)).packages == ()


@rows("path", ["./../outside", "./inside/../..", "./link", "./.", "./absent"])
def test_a_local_package_lies_below_the_manifest(tmp_path, path):
    """Anything else is refused, with its location in the manifest."""
    folder = tmp_path / "engine"
    if not folder.exists():
        (folder / "inside").mkdir(parents=True)
        (tmp_path / "outside").mkdir()
        (folder / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidInputError) as refused:
        make_plan(["numpy", path], str(folder))
    assert refused.value.problems[0].pointer == "/install/requirements/1"


@rows("text", ["x @ git+https://example.com/x", "git+ssh://example.com/x", "x @ GIT://example.com/x"])
def test_version_control_is_refused(tmp_path, text):
    """The guard could not check the network access of the fetching program."""
    with pytest.raises(InvalidInputError) as refused:
        make_plan([text], str(tmp_path))
    assert [problem.pointer for problem in refused.value.problems] == ["/install/requirements/0"]


class TestCurrent:
    def test_nothing_counts_until_it_was_finished(self, place):
        """A folder alone is a leftover."""
        made = built(place)
        assert place.installed() is None
        place.finish(made)
        assert place.installed() == made

    def test_an_environment_that_is_gone_does_not_count(self, place):
        """Treat it as missing once its files were removed."""
        made = built(place)
        place.finish(made)
        Path(made.folder, "pyvenv.cfg").unlink()
        assert place.installed() is None


@rows("text", ["", "{", "[]", "null", '{"fingerprint": "x"}', '{"fingerprint":1,"folder":2}'])
def test_what_cannot_be_read_does_not_count(place, text):
    """It is installed again, never partly used."""
    made = InstalledEnvironment("one", str(place.environments / "one"), ("a==1",))
    if not place.environments.exists():
        built(place)
    place.finish(made)
    assert place.installed() == made
    (place.root / "current").write_text(text)
    assert place.installed() is None


class TestSweep:
    def test_leftovers_go_and_what_counts_stays(self, place):
        """Folders, files and links that current does not name."""
        place.finish(built(place, "two"))
        built(place, "one")
        (place.environments / "file").write_text("x")
        (place.environments / "link").symlink_to(place.root.parent)
        assert place.sweep() == ["file", "link", "one"]
        assert [entry.name for entry in place.environments.iterdir()] == ["two"]
        assert place.root.is_dir()

    def test_what_is_used_stays_until_it_is_used_no_more(self, place):
        """A worker of this or another process holds a lock on its environment."""
        old = built(place, "old")
        place.finish(old)
        use = hold_environment(old.folder)
        place.finish(built(place, "new"))
        assert place.sweep() == []
        use.close()
        assert place.sweep() == ["old"]

    def test_a_share_ends_with_its_process(self, place):
        """For any kind of end."""
        old = built(place, "old")
        code = (
            f"import fcntl, os; fcntl.flock(os.open({old.folder!r}, os.O_RDONLY), fcntl.LOCK_SH); print(1, flush=True)"
        )
        command = [sys.executable, "-c", code + "; input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            assert place.sweep() == []
            other.kill()
            other.wait()
        assert place.sweep() == ["old"]


def test_only_one_builds_at_a_time(place):
    """In this process and all others."""
    assert not place.is_busy()
    with place.locked(), pytest.raises(InstallBusy):
        assert place.is_busy()
        with place.locked():
            pass
    assert not place.is_busy()
    with place.locked() as lock:
        assert lock > 2
