"""Secrets in targets, settings, errors and logs."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress

import pytest

from democrai_sandbox.access.access import AccessSettings
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.keyring import EncryptionKey, KeyFile, KeyRing
from democrai_sandbox.access.store import open_store
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, SandboxError
from tests.services.rows import rows

SECRET = "hunter2-of-uma"


def test_a_query_is_neither_stored_nor_in_the_audit(desk, tmp_path):
    """Queries contain keys and tokens; they are not part of a decision, and the audit log is kept forever."""
    for number, rest in enumerate((f"?token={SECRET}", f"?a=1&key={SECRET}#x", f"#{SECRET}")):
        try:
            asked = desk.check(f"https://api.test/{number}{rest}")
        except InvalidInputError as error:
            assert SECRET not in str(error)
            continue
        assert asked.request_id
    desk.close()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert SECRET.encode() not in kept


def test_settings_do_not_show_passwords():
    """A host prints its settings when it starts."""
    settings = AccessSettings(
        database=f"postgresql://app:{SECRET}@db.test/access",
        key_file="/keys",
        stream_type="redis",
        stream={"url": f"redis://:{SECRET}@redis.test/0"},
    )
    assert SECRET not in repr(settings)


@rows("url", [
    f"redis://:{SECRET}/x@redis.test:6379/0",
    f"redis://user:{SECRET}",
    f"redis://redis.test:{SECRET}/0",
    f"http://:{SECRET}@redis.test",
])  # fmt: skip
def test_a_bad_url_of_redis_is_refused_without_its_password(url):
    """The traceback, which includes the cause, does not contain the password either."""
    with pytest.raises(InvalidInputError) as caught:
        open_bus("redis", url=url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@rows("url", [
    f"postgresql://app:{SECRET}@127.0.0.1:1/access",
    f"postgresql://app:{SECRET}/x@127.0.0.1:1/access",
    f"postgresql://app:pw@127.0.0.1:{SECRET}/access",
    f"postgresql://app@127.0.0.1:1/access?password={SECRET}",
    f"postgresql://app@127.0.0.1:1/access?sslpassword={SECRET}&connect_timeout=1",
    f"mysql://app:{SECRET}@127.0.0.1/access",
    f"sqlite://:{SECRET}@host/file",
])  # fmt: skip
def test_a_database_that_cannot_be_reached_does_not_tell_its_password(url):
    """Neither the error nor its causes contain the password."""
    with pytest.raises(SandboxError) as caught:
        open_store(url).close()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_keys_do_not_show_themselves(tmp_path):
    """Representations and errors about an invalid file do not contain keys."""
    secret = b"0123456789abcdef0123456789abcdef"
    ring = KeyRing((EncryptionKey("k", secret),))
    assert "0123456789abcdef" not in repr(ring)
    place = tmp_path / "keys"
    place.write_text(f"k:{SECRET}\n")
    place.chmod(0o600)
    with pytest.raises(InvalidInputError) as caught:
        KeyFile(place)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_database_that_is_away_does_not_fill_the_log(desk, caplog, monkeypatch):
    """A subject that keeps asking writes no more log lines than its allowance."""

    def away(*_, **__):
        raise StoreUnavailable

    monkeypatch.setattr(desk.store, "register", away)
    with caplog.at_level(logging.ERROR):
        for number in range(600):
            with suppress(StoreUnavailable):
                desk.check(f"https://api.test/{number}")
    assert len(caplog.records) <= 220


@rows("action", ["go\x1b[2K", "go\nline", "\u202egnp", "go\0", "\ud800"])
def test_the_name_of_an_action_is_plain_text(make_desk, action):
    """Administrators read the name before approving, so it must not contain control characters."""
    desk = make_desk(seal=lambda *_: b"")
    with pytest.raises(InvalidInputError):
        desk.service.require_external_access(
            resource_type="network", operation="receive", target="https://api.test", resume_action=action
        )
