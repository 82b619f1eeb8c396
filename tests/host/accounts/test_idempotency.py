"""Repeated HTTP requests get the first answer, on every node, for a day, for the same caller."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from democrai_sandbox.access.store import open_store
from democrai_sandbox.errors import IdempotencyConflict, IdempotencyRunning
from democrai_sandbox.host.accounts.idempotency import LARGEST_ANSWER, LEASE, LIFETIME, MOST_KEYS, IdempotencyKeys
from democrai_sandbox.host.accounts.tables import idempotency


class Clock:
    def __init__(self):
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now


def stored_keys(node, caller):
    """Number of stored keys of a caller."""
    counted = select(func.count()).select_from(idempotency).where(idempotency.c.caller == caller)
    return node._database.ask(lambda connection: connection.execute(counted).scalar_one())


@pytest.fixture(params=["sqlite", "postgresql"])
def nodes(request, tmp_path):
    """Two nodes with one database and one clock."""
    clock = Clock()
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/sandbox.db"
    else:
        url = request.getfixturevalue("postgres").new_database()
    stores = [open_store(url) for _ in range(2)]
    yield [IdempotencyKeys(store.database, clock=clock) for store in stores], clock
    for store in stores:
        store.close()


def test_the_first_answer_is_given_again(nodes):
    """Also on the other node; another caller or another key is a new request."""
    (here, there), _ = nodes
    assert here.begin("ada", "k", "d") is None
    here.finish("ada", "k", "answer")
    assert there.begin("ada", "k", "d") == here.begin("ada", "k", "d") == "answer"
    assert there.begin("uma", "k", "d") is None
    assert there.begin("ada", "k2", "d") is None


def test_another_request_with_the_same_key_is_a_conflict(nodes):
    """Whether the first one has finished or not."""
    (here, there), _ = nodes
    here.begin("ada", "k", "d")
    with pytest.raises(IdempotencyConflict):
        there.begin("ada", "k", "other")
    here.finish("ada", "k", "answer")
    with pytest.raises(IdempotencyConflict):
        there.begin("ada", "k", "other")


def test_a_request_that_runs_is_not_begun_again(nodes):
    """After the maximum time its node counts as dead; a failed request releases its key immediately."""
    (here, there), clock = nodes
    here.begin("ada", "k", "d")
    with pytest.raises(IdempotencyRunning):
        there.begin("ada", "k", "d")
    here.abandon("ada", "k")
    assert there.begin("ada", "k", "d") is None
    clock.now += LEASE + timedelta(seconds=1)
    assert here.begin("ada", "k", "d") is None


def test_one_of_many_at_once_is_the_first(nodes):
    """Over all threads and nodes exactly one begins."""
    keys, _ = nodes
    begun, refused = [], []

    def begin(node):
        try:
            begun.append(node.begin("ada", "k", "d"))
        except IdempotencyRunning:
            refused.append(node)

    threads = [threading.Thread(target=begin, args=(keys[number % 2],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (begun, len(refused)) == ([None], 7)


def test_keys_expire(nodes):
    """After its lifetime the same key is new, and nothing is stored."""
    (here, there), clock = nodes
    here.begin("ada", "k", "d")
    here.finish("ada", "k", "answer")
    clock.now += LIFETIME + timedelta(seconds=1)
    assert there.begin("ada", "k", "other") is None
    there.abandon("ada", "k")
    here.begin("ada", "k", "d")
    here.finish("ada", "k", "answer")
    clock.now += LIFETIME + timedelta(seconds=1)
    there.tidy()
    assert stored_keys(there, "ada") == 0


def test_only_so_much_is_kept(nodes, monkeypatch):
    """Only the latest keys of each caller are stored; an answer that is too large is not, and its key stays used."""
    monkeypatch.setattr("democrai_sandbox.host.accounts.idempotency.MOST_KEYS", 3)
    (here, _), clock = nodes
    assert MOST_KEYS > 3
    for number in range(5):
        clock.now += timedelta(seconds=1)
        here.begin("ada", f"k{number}", "d")
        here.finish("ada", f"k{number}", "answer")
    assert stored_keys(here, "ada") == 3
    assert here.begin("ada", "k4", "d") == "answer"
    here.begin("uma", "k", "d")
    here.finish("uma", "k", "x" * (LARGEST_ANSWER + 1))
    with pytest.raises(IdempotencyConflict):
        here.begin("uma", "k", "d")
