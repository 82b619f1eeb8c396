"""Key rings and their files."""

from __future__ import annotations

import base64
import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from democrai_sandbox.access.keyring import (
    KEY_BYTES,
    EncryptionKey,
    KeyFile,
    KeyRing,
    introduce,
    promote,
    retire,
    rotate,
)
from democrai_sandbox.errors import InvalidInputError
from tests.access.forked_programs import Started
from tests.services.golden import sentence
from tests.services.rows import rows

SECRET = bytes(range(KEY_BYTES))
ENCODED = base64.b64encode(SECRET).decode()


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def place(tmp_path):
    return tmp_path / "keys"


def test_a_missing_file_is_made_with_one_random_key(place):
    """Opening a missing ring creates a file of mode 0600 that contains the same ring."""
    before = os.umask(0)
    try:
        ring = KeyRing.open(place)
    finally:
        os.umask(before)
    assert len(ring.keys) == 1
    assert len(ring.first.secret) == KEY_BYTES
    assert place.stat().st_mode & 0o777 == 0o600
    assert KeyRing.open(str(place)) == ring
    assert os.listdir(place.parent) == ["keys"]


def test_made_keys_differ(tmp_path):
    """No two files get the same key or id."""
    rings = [KeyRing.open(tmp_path / str(number)) for number in range(20)]
    assert len({ring.first.secret for ring in rings}) == len({ring.first.id for ring in rings}) == 20


def test_of_several_that_find_no_file_one_makes_it(place):
    """Processes that open a missing ring at the same time get the same keys."""
    program = place.parent / "open.py"
    program.write_text(
        "import sys\n"
        "from democrai_sandbox.access.keyring import KeyRing\n"
        "sys.stdin.readline()\n"
        "print(KeyRing.open(sys.argv[1]).first.id)"
    )
    processes = [Started(program, place) for _ in range(4)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    ids = [process.stdout.readline().strip() for process in processes]
    assert [process.finish(60) for process in processes] == [0] * 4
    assert ids == [KeyRing.open(place).first.id] * 4
    assert sorted(os.listdir(place.parent)) == ["keys", "open.py"]


def test_threads_that_find_no_file_get_one_ring(place):
    """Threads that open a missing ring at the same time, repeatedly, never see two rings."""
    for number in range(5):
        path, found, barrier = place.with_name(f"keys-{number}"), [], threading.Barrier(4)

        def look(path=path, found=found, barrier=barrier):
            barrier.wait(30)
            found.append(KeyRing.open(path))

        threads = [threading.Thread(target=look) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join(30) for thread in threads]
        assert len(found) == 4
        assert len(set(found)) == 1


def test_the_order_of_the_lines_is_the_order_of_the_keys(place):
    """The first line encrypts; comments, empty lines and surrounding white space do not matter."""
    other = base64.b64encode(SECRET[::-1]).decode()
    ring = KeyRing.open(write(place, f"# ours\n\n  new-1:{ENCODED}  \r\n#old:\nold_1.x:{other}"))
    assert ring == KeyRing((EncryptionKey("new-1", SECRET), EncryptionKey("old_1.x", SECRET[::-1])))
    assert ring.first.id == "new-1"
    assert ring.find("old_1.x").secret == SECRET[::-1]
    assert ring.find("old") is None


@rows(
    ("line", "reason"),
    [
        (ENCODED, "no colon"),
        (f":{ENCODED}", "no id"),
        (f"a b:{ENCODED}", "no id"),
        (f"{'x' * 65}:{ENCODED}", "no id"),
        ("new:", "no bytes"),
        (f"new:{ENCODED[:-4]}", "too few bytes"),
        (f"new:{ENCODED[:-1]}", "not base64"),
        (f"new:{ENCODED[:8]} {ENCODED[8:]}", "not base64"),
        (f"new:{ENCODED}:x", "not base64"),
        (f"first:{ENCODED}", "the same id"),
        (f"n\u00e4w:{ENCODED}", "not ASCII"),
    ],
)
def test_a_malformed_line_is_named_and_not_shown(place, line, reason):
    """A malformed line is rejected with its number and the reason, without its text."""
    with pytest.raises(InvalidInputError) as caught:
        KeyRing.open(write(place, f"# comment\nfirst:{base64.b64encode(SECRET[::-1]).decode()}\n\n{line}\n"))
    assert f"{place}, line 4: " in str(caught.value)
    sentence(reason, str(caught.value), folder=place.parent)
    assert ENCODED[:8] not in caught.value.diagnostics()


def test_all_malformed_lines_are_named(place):
    """One error names every malformed line."""
    with pytest.raises(InvalidInputError) as caught:
        KeyRing.open(write(place, f"x\ny:{ENCODED}\nz:z\n"))
    assert [problem.message.partition(", ")[2][:6] for problem in caught.value.problems] == ["line 1", "line 3"]


@rows("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_a_key_is_refused(place, text):
    """An empty file is an error, never an empty ring, and it is not filled."""
    with pytest.raises(InvalidInputError) as caught:
        KeyRing.open(write(place, text))
    sentence("no key", str(caught.value), folder=place.parent)
    assert place.read_text() == text


def test_a_huge_file_is_refused(place):
    """A file that is far too large is not read."""
    with pytest.raises(InvalidInputError, match="65536"):
        KeyRing.open(write(place, f"a:{ENCODED}\n" + "#" * 70_000))


def test_a_ring_is_never_empty_nor_ambiguous():
    """Rings created in code follow the same rules as files."""
    for keys in ((), (EncryptionKey("a", SECRET), EncryptionKey("a", SECRET[::-1]))):
        with pytest.raises(InvalidInputError):
            KeyRing(keys)
    for key_id, secret in (("", SECRET), ("a:b", SECRET), ("a\n", SECRET), ("a", SECRET[1:])):
        with pytest.raises(InvalidInputError):
            EncryptionKey(key_id, secret)


def test_secrets_are_not_shown():
    """The representation of keys and rings contains only their ids."""
    assert repr(KeyRing((EncryptionKey("a", SECRET),))) == "KeyRing(keys=(EncryptionKey(id='a'),))"


@rows("mode", [0o640, 0o620, 0o604, 0o602, 0o610, 0o777])
def test_a_file_that_others_may_use_is_refused(place, mode):
    """Any right of group or others is rejected with the found and the expected mode."""
    with pytest.raises(InvalidInputError, match=rf"\b{mode:04o}\b.*\b0600\b"):
        KeyRing.open(write(place, f"a:{ENCODED}\n", mode))


def test_a_file_that_its_owner_may_only_read_is_fine(place):
    """Mode 0400 is stricter than needed and works."""
    assert KeyRing.open(write(place, f"a:{ENCODED}\n", 0o400)).first.id == "a"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(place):
    """The owner of the file could replace the keys, so it must be the user of this process."""
    os.chown(write(place, f"a:{ENCODED}\n"), 65534, -1)
    with pytest.raises(InvalidInputError, match=r"\b65534\b.*\b0\b"):
        KeyRing.open(place)


def test_what_is_no_plain_file_is_refused(tmp_path):
    """Links, folders and pipes are rejected immediately."""
    write(tmp_path / "real", f"a:{ENCODED}\n")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir(0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "dangling"):
        with pytest.raises(InvalidInputError) as caught:
            KeyRing.open(tmp_path / name)
        sentence(f"a {name}", str(caught.value), folder=tmp_path)
    for name in ("folder", "pipe"):
        with pytest.raises(InvalidInputError) as caught:
            KeyRing.open(tmp_path / name)
        sentence(f"a {name}", str(caught.value), folder=tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_missing_folder_is_named(tmp_path):
    """The folder is not created, because it is probably misspelled."""
    with pytest.raises(InvalidInputError) as caught:
        KeyRing.open(tmp_path / "typo" / "keys")
    sentence("no folder", str(caught.value), folder=tmp_path)
    assert not (tmp_path / "typo").exists()


def test_rotation_puts_a_new_key_first(place):
    """After a rotation the new key encrypts, the old ones stay in their order, and comments survive."""
    write(place, f"# ours\na:{ENCODED}\n")
    rotated = rotate(place)
    assert rotated == KeyRing.open(place)
    assert [key.id for key in rotate(place).keys[1:]] == [rotated.first.id, "a"]
    assert place.stat().st_mode & 0o777 == 0o600
    assert "# ours\n" in place.read_text()
    assert os.listdir(place.parent) == ["keys"]


def test_rotations_at_once_lose_no_key(place):
    """Each concurrent rotation adds its key."""
    KeyRing.open(place)
    made = []

    def turn():
        for _ in range(5):
            made.append(rotate(place).first)

    threads = [threading.Thread(target=turn) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    ring = KeyRing.open(place)
    assert len(ring.keys) == 21
    assert set(made) < set(ring.keys)


def test_a_key_can_be_known_everywhere_before_it_encrypts(place):
    """An introduced key is last; a promoted key is first, and comments stay in place."""
    old = KeyRing.open(place).first
    write(place, f"# ours\n{old.line.strip()}")
    introduced = introduce(place)
    assert introduced.first == old and len(introduced.keys) == 2
    promoted = promote(place, introduced.keys[1].id)
    assert promoted.keys == (introduced.keys[1], old) == KeyRing.open(place).keys
    assert "# ours" in place.read_text().splitlines()
    assert promote(place, promoted.first.id) == promoted
    with pytest.raises(InvalidInputError, match="other") as caught:
        promote(place, "other")
    assert caught.value.problems[0].pointer == "/key_id"


def test_a_key_is_marked_until_it_is_used(place):
    """The file marks introduced keys in a comment, so that other versions read the same keys."""
    old = KeyRing.open(place).first
    new = introduce(place).keys[1]
    other = introduce(place).keys[2]
    assert [key.introduced for key in KeyRing.read(place).keys] == [False, True, True]
    lines = [line for line in place.read_text().splitlines() if not line.startswith("#")]
    assert lines == [key.line.strip() for key in (old, new, other)]
    assert [key.introduced for key in rotate(place).keys] == [False, False, True, True]
    assert [key.introduced for key in promote(place, new.id).keys] == [False, False, False, True]
    assert [key.introduced for key in promote(place, old.id).keys] == [False, False, False, True]
    assert other.id not in "".join(retire(place, other.id) and place.read_text())


def test_a_mark_on_a_key_that_is_in_use_is_nothing(place):
    """A marked key that was moved to the front by hand encrypts, and counts as an old one after the next rotation."""
    write(place, f"# introduced: a\na:{ENCODED}\n")
    assert not KeyRing.read(place).first.introduced
    assert not rotate(place).find("a").introduced


def test_retiring_takes_one_key_out(place):
    """A retired key is removed from the file; the others stay."""
    write(place, f"a:{ENCODED}\n# of 2025\n b:{ENCODED}\nab:{ENCODED}\n")
    assert retire(place, "b") == KeyRing.open(place)
    assert place.read_text() == f"a:{ENCODED}\n# of 2025\nab:{ENCODED}\n"


def test_the_key_that_encrypts_cannot_be_retired(place):
    """The first key, and so the last remaining one, stays until another one encrypts; the file is unchanged."""
    write(place, f"first:{ENCODED}\n")
    with pytest.raises(InvalidInputError) as caught:
        retire(place, "first")
    assert caught.value.problems[0].pointer == "/key_id"
    sentence("the key that encrypts", str(caught.value))
    rotate(place)
    retire(place, "first")
    assert len(KeyRing.open(place).keys) == 1


def test_retiring_an_unknown_key_suggests_the_nearest(place):
    """A misspelled id changes nothing."""
    text = write(place, f"a:{ENCODED}\nspring:{ENCODED}\n").read_text()
    with pytest.raises(InvalidInputError) as caught:
        retire(place, "sprint")
    assert [(problem.pointer, problem.suggestion) for problem in caught.value.problems] == [("/key_id", "spring")]
    assert place.read_text() == text


@rows("act", [rotate, lambda path: retire(path, "a")])
def test_a_malformed_file_is_not_rewritten(place, act):
    """Neither rotation nor retirement changes a malformed file."""
    text = write(place, f"a:{ENCODED}\nbroken\n").read_text()
    with pytest.raises(InvalidInputError, match="line 2"):
        act(place)
    assert place.read_text() == text


def test_a_write_that_fails_leaves_the_old_file(place, monkeypatch):
    """If the new file cannot be moved into place, the old ring stays and no copy of the keys is left behind."""
    ring = KeyRing.open(place)

    def fail(self, target):
        assert len(KeyRing.open(self).keys) == 2  # complete and readable before it is renamed
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError) as caught:
        rotate(place)
    assert caught.value.errno == errno.ENOSPC
    assert KeyRing.open(place) == ring
    assert os.listdir(place.parent) == ["keys"]


def test_a_key_file_follows_rotations(place):
    """A ring in use sees new and retired keys without being opened again."""
    file = KeyFile(place)
    old = file.ring().first
    assert rotate(place) == file.ring()
    assert file.ring() is file.ring()
    retire(place, old.id)
    assert old not in file.ring().keys


def test_a_rotation_right_after_opening_is_seen(place, monkeypatch):
    """Keys that arrive just after the first read are not missed."""
    read = KeyRing.open

    def read_and_lag(path):
        ring = read(path)
        rotate(path)
        return ring

    monkeypatch.setattr(KeyRing, "open", read_and_lag)
    file = KeyFile(place)
    assert file.ring() == read(place)
    assert len(file.ring().keys) == 2


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: write(path, "broken")])
def test_a_key_file_that_goes_bad_keeps_the_ring_and_says_so_once(place, spoil, caplog):
    """The last keys stay in use while the file is missing or malformed; valid ones are loaded later."""
    file = KeyFile(place)
    ring = file.ring()
    spoil(place)
    with caplog.at_level(logging.WARNING):
        assert [file.ring(), file.ring()] == [ring, ring]
    assert [str(place) in record.getMessage() for record in caplog.records] == [True]
    write(place, f"b:{ENCODED}\n")
    assert file.ring() == KeyRing((EncryptionKey("b", SECRET),))


def test_a_bad_key_file_is_refused_at_start(place):
    """Nothing starts with unreadable keys."""
    with pytest.raises(InvalidInputError):
        KeyFile(write(place, "broken"))
