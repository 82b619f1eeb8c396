"""``democrai-sandbox db``: upgrade, check, backup, rotate-key."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
import subprocess
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.encryption import Sealer
from democrai_sandbox.access.keyring import KeyRing
from democrai_sandbox.access.store import migrations, open_store
from democrai_sandbox.access.store.database import Database
from democrai_sandbox.access.store.database_location import parse_url
from democrai_sandbox.access.store.schema import HEAD, peek_schema
from democrai_sandbox.access.values import new_id
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.host.extension_admin import StoredModels
from democrai_sandbox.runtime.ai.model import KnownModels
from democrai_sandbox.runtime.store import open_runtime_store
from tests.access.store.samples import NOW, approval, request, sql
from tests.cli.goldens import code_of, golden, in_terminal, terminal, transcript
from tests.cli.local import configured, says
from tests.services.commands import COMMAND

NOBODY = 65534


@pytest.fixture
def url(prepared_file, tmp_path):
    """A SQLite database with its schema."""
    shutil.copy(prepared_file, tmp_path / "access.db")
    (tmp_path / "access.db").chmod(0o600)
    return f"sqlite:///{tmp_path}/access.db"


def emptied(url):
    """Remove the schema of a database."""
    with closing(Database(parse_url(url))) as database:
        database.act(lambda connection: migrations.downgrade(connection, migrations.NOTHING))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_upgrading(kind, request, url):
    """A dry run shows both versions; without --yes nothing happens; a second upgrade has nothing to do."""
    if kind == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    else:
        emptied(url)
    words = ("db", "upgrade", "--database", url)
    dry = says(*words, "--dry-run")
    assert (dry.status, HEAD in dry.out) == (0, True)
    unasked = says(*words)
    assert (unasked.status, unasked.out) == (2, "")
    assert "--yes" in unasked.err
    assert says("db", "check", "--database", url).status == 1
    done = says(*words, "--yes", "--json")
    again = says(*words, "--yes")
    assert (done.data["changed"], again.status, HEAD in again.out) == (True, 0, True)
    assert says(*words, "--yes", "--json").data["changed"] is False
    if kind == "sqlite":
        said = [(words, one) for one in (dry, unasked, again)]
        transcript("db-upgrade", said, folder=Path(url.removeprefix("sqlite:///")).parent, also=[(HEAD, "9999")])
    assert says("db", "check", "--database", url, "--audit").status == 0


def test_a_person_is_asked_before_an_upgrade(url, tmp_path):
    """The question names the change; the answer no changes nothing."""
    emptied(url)
    words = ["db", "upgrade", "--database", url]
    refused = terminal(words, typed="n\n", columns=300)
    assert refused.status == 1
    golden("db-upgrade-refused.terminal", refused.text.replace(HEAD, "9999"), folder=tmp_path)
    assert says("db", "check", "--database", url).status == 1
    assert terminal(words, typed="y\n").status == 0
    assert says("db", "check", "--database", url).status == 0


def test_checking(url, tmp_path):
    """The check reports connection, schema and audit log; a broken hash chain is reported with its record."""
    with closing(open_store(url)) as store:
        for number in range(3):
            store.decide(approval(f"/{number}"), now=NOW)
    found = says("db", "check", "--database", url, "--audit")
    golden("db-check.piped", found.out.replace(HEAD, "9999"), folder=tmp_path)
    assert (found.status, found.err) == (0, "")
    sql(url, "UPDATE access_meta SET audit_hash = 'x'")
    broken = says("db", "check", "--database", url, "--audit")
    golden("db-check-broken.piped", broken.out.replace(HEAD, "9999"), folder=tmp_path)
    assert broken.status == 1
    data = says("db", "check", "--database", url, "--audit", "--json").data
    assert (data["schema"], data["version"]) == ("democrai-sandbox/db.check/1", HEAD)
    assert (data["ok"], data["audit"]["first_bad"]) == (False, 3)


UNUSABLE = [
    ("nonsense", "command_misused", "sqlite:///", 2),
    ("mysql://a@b/c", "command_misused", "'mysql'", 2),
    ("sqlite:////tmp/no-such-database.db", "command_refused", "/tmp/no-such-database.db", 1),
    ("sqlite:////tmp", "command_refused", os.strerror(errno.EISDIR), 1),
    ("postgresql://ann:s3cret@127.0.0.1:1/db", "command_misused", "", 2),
    ("postgresql://ann@127.0.0.1:1/db?password=s3cret", "command_misused", "", 2),
    ("postgresql://ann@127.0.0.1:1/db?sslpassword=s3cret", "command_misused", "", 2),
    ("postgresql://ann@127.0.0.1:1/db", "sandbox_external_access_check_failed", "onnection refused", 3),
    ("postgresql://ann:***@127.0.0.1:1/db", "sandbox_external_access_check_failed", "onnection refused", 3),
]
"""A database, and with what it is refused: the code, a value in the message, the status."""


def test_what_cannot_be_opened_is_told_in_a_sentence(tmp_path):
    """An unusable database gives the documented status, without a traceback and the password."""
    steps, wrong = [], []
    for url, code, value, status in UNUSABLE:
        for verb in (("check",), ("upgrade", "--yes"), ("backup", str(tmp_path / "never-made.db"))):
            found = says("db", *verb, "--database", url)
            if status != 3:  # what PostgreSQL says about connections is its own
                steps.append((("db", *verb, "--database", url), found))
            elif verb[0] == "backup":
                code, value, status = "command_refused", "pg_dump", 1
            if (found.status, code_of(found.err), found.out, value in found.err) != (status, code, "", True):
                wrong.append((url, verb, found))
            assert "s3cret" not in found.err
    assert wrong == []
    transcript("db-unusable", steps, folder=tmp_path)


def test_a_file_that_is_no_database_stays_as_it_is(tmp_path):
    """Another file is refused before its content or mode changes."""
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    file.chmod(0o644)
    found = says("db", "upgrade", "--yes", "--database", f"sqlite:///{file}")
    assert (found.status, found.out) == (1, "")
    assert str(file) in found.err
    golden("db-no-database.piped", found.err, folder=tmp_path)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("mine", 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_database_of_somebody_else_is_left_alone(url, tmp_path):
    """Even root is refused: files that SQLite creates would block the owner."""
    os.chown(tmp_path / "access.db", NOBODY, NOBODY)
    found = says("db", "check", "--database", url)
    assert (found.status, found.out) == (1, "")
    assert "sudo -u nobody" in found.err
    (tmp_path / "link.db").symlink_to("/etc/hostname")
    os.chown(tmp_path / "link.db", NOBODY, NOBODY, follow_symlinks=False)
    found = says("db", "check", "--database", f"sqlite:///{tmp_path}/link.db")
    assert (found.status, found.out) == (1, "")
    assert f"{tmp_path}/link.db" in found.err and "nobody" in found.err


def test_looking_changes_nothing(tmp_path):
    """An empty file is neither filled nor changed in mode; a pipe is not waited for."""
    file = tmp_path / "empty.db"
    file.touch(0o644)
    for words in (("check",), ("upgrade", "--dry-run"), ("backup", str(tmp_path / "copy.db"))):
        says("db", *words, "--database", f"sqlite:///{file}")
        assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"", 0o644)
    assert list(tmp_path.iterdir()) == [file]
    os.mkfifo(tmp_path / "pipe.db")
    with pytest.raises(StoreUnavailable):
        peek_schema(f"sqlite:///{tmp_path}/pipe.db")


def test_a_backup_while_somebody_writes(url, tmp_path):
    """The copy is consistent, readable by its owner only, and its audit log is valid."""
    ended = threading.Event()
    with closing(open_store(url)) as store:

        def write():
            number = 0
            while not ended.is_set():
                store.decide(approval(f"/{number}"), now=NOW)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while store.audit_head()[0] < 20:
                pass
            found = says("db", "backup", tmp_path / "copy.db", "--database", url)
        finally:
            ended.set()
            writer.join()
    assert found.status == 0
    golden("db-backup.piped", found.err, folder=tmp_path)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    with closing(open_store(f"sqlite:///{tmp_path}/copy.db", create=False)) as copy:
        report = verify_store(copy)
    assert report.ok
    assert report.count >= 20
    left = sorted(path.name for path in tmp_path.iterdir() if "copy" in path.name and not path.name.startswith("copy"))
    assert left == []


def test_a_backup_before_an_upgrade(url, tmp_path):
    """A database with an older schema is copied unchanged; a foreign database is refused."""
    with closing(Database(parse_url(url))) as database:
        database.act(lambda connection: migrations.downgrade(connection, "0003"))
    assert says("db", "backup", tmp_path / "old.db", "--database", url).status == 0
    assert says("db", "check", "--database", f"sqlite:///{tmp_path}/old.db", "--json").data["version"] == "0003"
    emptied(url)
    found = says("db", "backup", tmp_path / "empty.db", "--database", url)
    assert (found.status, found.out) == (1, "")
    golden("db-backup-empty.piped", found.err, folder=tmp_path)
    assert not (tmp_path / "empty.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a disk that is soon full")
def test_a_backup_on_a_full_disk(url, tmp_path):
    """The error names the target, and no partial copy remains."""
    (tmp_path / "small").mkdir()
    command = f"{shlex.join(COMMAND)} db backup small/copy.db --database {url}; echo $?; ls -A small"
    script = f"mount -t tmpfs -o size=64k none small && {command}"
    argv = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
    assert "small/copy.db" in done.stderr
    assert os.strerror(errno.ENOSPC) in done.stderr


def test_a_backup_replaces_nothing(url, tmp_path):
    """An existing file stays; a missing folder is reported."""
    (tmp_path / "copy.db").write_text("precious")
    steps = []
    for place in (tmp_path / "copy.db", tmp_path / "none" / "x.db"):
        found = says("db", "backup", place, "--database", url)
        assert (found.status, found.out) == (1, "")
        assert str(place) in found.err
        steps.append((("db", "backup", place), found))
    transcript("db-backup-refused", steps, folder=tmp_path)
    assert (tmp_path / "copy.db").read_text() == "precious"


@pytest.fixture
def kept(tmp_path):
    """A configuration, a database with encrypted data, and a function that decrypts it with the current keys."""
    config = configured(tmp_path)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    ring = KeyRing.open(state / "keys")
    bare = replace(request("/x", action="go"), id=new_id())
    with closing(open_store(f"sqlite:///{state}/sandbox.db")) as store:
        store.register(replace(bare, resume_context=Sealer(lambda: ring).seal({"a": 1}, bare)), now=NOW)

    def opened():
        (blob,) = sql(f"sqlite:///{state}/sandbox.db", "SELECT resume_context FROM access_requests")[0]
        return Sealer(lambda: KeyRing.read(state / "keys")).unseal(bytes(blob), bare)

    return config, state / "keys", opened


def ids(keys):
    return [key.id for key in KeyRing.read(keys).keys]


def test_another_key_at_once(kept):
    """A new key encrypts all data; the old one stays until it is retired."""
    config, keys, opened = kept
    (old,) = ids(keys)
    words = ("db", "rotate-key", "--config", config)
    assert says(*words).status == 2
    dry = says(*words, "--dry-run")
    golden("db-rotate-key.preview", dry.out)
    assert (dry.status, ids(keys)) == (0, [old])
    done = says(*words, "--yes", "--json").data
    new = done["keys"][0]["id"]
    assert (done["replaced"], done["keys"][0]["contexts"], ids(keys)) == (1, 1, [new, old])
    assert opened() == {"a": 1}
    assert old in says(*words, "--retire", "--yes").out
    assert (ids(keys), opened()) == ([new], {"a": 1})
    none = says(*words, "--retire", "--yes")
    assert (none.status, ids(keys)) == (0, [new])
    golden("db-rotate-key-none.piped", none.out)


def test_keys_of_models_are_encrypted_with_another_key(kept, tmp_path):
    """The old key stays until they are re-encrypted; a value that no key decrypts is reported."""
    config, keys, _ = kept
    (old,) = ids(keys)
    words = ("db", "rotate-key", "--config", config)
    with closing(open_runtime_store(f"sqlite:///{tmp_path}/state/sandbox.db")) as store:
        models = StoredModels(store, lambda: KeyRing.read(keys), KnownModels())
        entry = {"endpoint": "https://models.example.com/v1", "model": "small", "api_key": "sk-sealed"}
        models.add("default", entry, now=NOW, actor="ann")
        dry = says(*words, "--dry-run")
        done = says(*words, "--yes", "--json").data
        new = done["keys"][0]["id"]
        assert [key["model_keys"] for key in done["keys"]] == [1, 0]
        assert (done["replaced_model_keys"], done["unreadable_model_keys"]) == (1, [])
        assert says(*words, "--retire", "--yes").status == 0
        assert ids(keys) == [new]
        known = KnownModels()
        StoredModels(store, lambda: KeyRing.read(keys), known).refresh()
        assert known["default"]._key() == "sk-sealed"
        blob = store.models()[0].sealed_key
        store.change_model("default", lambda one: one._replace(sealed_key=blob[:-1]), now=NOW)
        lost = says(*words, "--yes")
        stays = says(*words, "--retire", "--yes")
        assert (new in ids(keys), new in stays.err) == (True, True)
    steps = [((what,), done) for what, done in (("preview", dry), ("unreadable", lost), ("retire", stays))]
    also = [(old, "OLD"), (new, "NEW"), (ids(keys)[0], "NEWEST")]
    transcript("db-rotate-key-models", steps, folder=config.parent, also=also)


def test_another_key_in_steps(kept):
    """An introduced key is not used before ``--use``; a key in use is not retired."""
    config, keys, opened = kept
    (old,) = ids(keys)
    words = ("db", "rotate-key", "--config", config)
    told = says(*words, "--introduce", "--yes")
    new = ids(keys)[1]
    assert (new in told.out, ids(keys)) == (True, [old, new])
    assert f"--use {new}" in told.err
    kept_all = says(*words, "--retire", "--yes")
    assert (kept_all.status, ids(keys), new in kept_all.err) == (0, [old, new], True)
    steps = [(("db", "rotate-key", verb), done) for verb, done in (("--introduce", told), ("--retire", kept_all))]
    transcript("db-rotate-key-steps", steps, folder=config.parent, also=[(old, "OLD"), (new, "NEW")])
    assert says(*words, "--use", "nonsense", "--yes").status == 2
    assert says(*words, "--use", new, "--yes").status == 0
    assert (ids(keys), opened()) == ([new, old], {"a": 1})
    assert says(*words, "--use", old, "--yes").status == 0
    assert says(*words, "--introduce", "--retire", "--yes").status == 2
    assert says("db", "rotate-key", "--database", "sqlite:////x", "--yes").status == 2


def test_a_key_with_which_something_is_just_being_sealed_stays(kept, tmp_path):
    """A write that a node started before the question is waited for and counted."""
    config, keys, _ = kept
    words = ("db", "rotate-key", "--config", config)
    url = f"sqlite:///{tmp_path}/state/sandbox.db"
    old, bare = KeyRing.read(keys), replace(request("/y", action="go"), id=new_id())
    has_sealed, go_on = threading.Event(), threading.Event()

    def seal():
        has_sealed.set()
        assert go_on.wait(60)
        return Sealer(lambda: old).seal({"b": 2}, bare)

    assert says(*words, "--yes").status == 0
    with closing(open_store(url)) as store, in_terminal((*words, "--retire"), columns=300) as (process, screen):
        screen.read_until("permanently remove")
        writer = threading.Thread(target=store.register, args=(replace(bare, seal_again=seal),), kwargs={"now": NOW})
        writer.start()
        try:
            assert has_sealed.wait(60)
            screen.type("y\n")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            go_on.set()
            writer.join(60)
        screen.read_to_end()
        assert process.wait(60) == 0
    (stays,) = [line for line in screen.text.splitlines() if line.startswith(f"{old.first.id} ")]
    assert " 1 " in stays
    assert ids(keys)[1:] == [old.first.id]


def test_keys_that_no_one_may_use(kept):
    """A missing key file, or one that others can read, is refused, and no new one is created."""
    config, keys, _ = kept
    keys.chmod(0o644)
    found = says("db", "rotate-key", "--config", config, "--yes")
    assert (found.status, found.out, str(keys) in found.err) == (1, "", True)
    keys.unlink()
    missing = says("db", "rotate-key", "--config", config, "--yes")
    assert (missing.status, missing.out, keys.exists()) == (1, "", False)
    steps = [((what,), done) for what, done in (("readable", found), ("gone", missing))]
    transcript("db-rotate-key-refused", steps, folder=config.parent)
