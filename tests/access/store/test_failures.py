"""Unavailable database: nothing is decided or half-written, and the store recovers without a restart."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time

import pytest

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.store import database as transactions
from democrai_sandbox.access.store import open_store, postgresql
from democrai_sandbox.access.values import DecisionFilter, RequestFilter
from democrai_sandbox.errors import ExternalAccessCheckFailed, StoreBusy, StoreUnavailable
from tests.access.store.samples import ALL, NOW, approval, live, request, sql

LONG = 60.0
"""Maximum waiting time in seconds, on the busiest machine."""


@pytest.fixture
def server(postgres):
    """Server of all tests: its data survives a kill, and the next test finds it running."""
    yield postgres
    if postgres._pid() is None:
        postgres.start()


@pytest.fixture
def served(server, pattern):
    store = open_store(server.new_database(like=pattern))
    yield store
    store.close()


def everything(store):
    """Each method of the store, as a function that uses the database."""
    return [
        store.generation,
        lambda: store.changes(0),
        lambda: store.register(request(), now=NOW),
        lambda: store.count_again("r", 1, now=NOW),
        lambda: store.decide(approval(), now=NOW),
        lambda: store.revoke("d", actor="a", reason="", now=NOW),
        lambda: store.end_session("s", actor="a", now=NOW),
        lambda: store.end_expired(now=NOW),
        lambda: store.age_out(before=NOW, now=NOW),
        lambda: store.note_use({"d": NOW}),
        lambda: store.request("r"),
        lambda: store.requests(RequestFilter(), ALL),
        lambda: store.decisions(DecisionFilter(), ALL),
        lambda: list(store.audit_rows()),
        store.audit_head,
        store.check_schema,
        lambda: store.claim_resume(node="n", lease_until=NOW, now=NOW),
        lambda: store.replace_contexts(lambda found, sealed: None),
    ]


def test_a_killed_server_is_unavailable_until_it_is_back(server, served):
    """Every method raises immediately; after a restart the same store works, with all acknowledged data."""
    served.decide(approval("/before"), now=NOW)
    server.kill()
    for method in everything(served):
        with pytest.raises(StoreUnavailable) as caught:
            method()
        assert caught.value.__cause__ is not None
        assert isinstance(caught.value, ExternalAccessCheckFailed)
        assert not isinstance(caught.value, PermissionError)
    server.start()
    served.decide(approval("/after"), now=NOW)
    assert [row[0] for row in live(served)] == ["/after", "/before"]
    assert verify_store(served).count == 2


def go_on(acknowledged):
    """Wait until some more writes were acknowledged."""
    deadline, enough = time.monotonic() + LONG, len(acknowledged) + 20
    while len(acknowledged) < enough:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_acknowledged_survives_kills_under_load(server, served):
    """At any moment that the server dies, acknowledged writes are stored and the chain is intact."""
    acknowledged, stop = [], threading.Event()

    def register(name):
        for number in range(100_000):
            if stop.is_set():
                return
            try:
                served.register(request(f"/{name}/{number}"), now=NOW)
            except StoreUnavailable:
                time.sleep(0.02)
            else:
                acknowledged.append(f"/{name}/{number}")

    threads = [threading.Thread(target=register, args=(name,), daemon=True) for name in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            go_on(acknowledged)
            server.kill()
            server.start()
        go_on(acknowledged)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    stored = {record.access.target for record in served.audit_rows()}
    assert set(acknowledged) <= stored
    assert verify_store(served).ok


def test_a_server_that_hangs_is_given_up(server, pattern, monkeypatch):
    """A hanging connection is replaced; if the whole server hangs, it is unavailable until it continues."""
    store = open_store(server.new_database(like=pattern) + "&connect_timeout=2")
    monkeypatch.setattr(postgresql.TimedConnection, "timeout", 0.5)
    (pid,) = store.database.ask(lambda connection: connection.exec_driver_sql("SELECT pg_backend_pid()").one())
    server.signal_process(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        assert store.generation() == 0
        server.signal(signal.SIGSTOP)
        (pid,) = store.database.ask(lambda connection: connection.exec_driver_sql("SELECT pg_backend_pid()").one())
        server.signal_process(pid, signal.SIGSTOP)
        with pytest.raises(StoreUnavailable):
            store.generation()
    finally:
        server.signal(signal.SIGCONT)
    assert time.monotonic() - began < LONG
    assert store.generation() == 0
    store.close()


def test_a_statement_has_its_time(url, monkeypatch):
    """A held lock makes others wait, but not forever; afterwards all work again."""
    monkeypatch.setattr(transactions, "_WAIT_SECONDS", 0.3)
    store = open_store(url)
    if url.startswith("sqlite"):
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        store.database.ask(lambda connection: connection.exec_driver_sql("PRAGMA busy_timeout = 300"))
        other.execute("BEGIN IMMEDIATE")
        release = other.close
    else:
        holder = open_store(url)
        held, done = threading.Event(), threading.Event()

        def hold(connection):
            connection.exec_driver_sql("SELECT * FROM access_meta FOR UPDATE")
            held.set()
            done.wait(30)

        thread = threading.Thread(target=lambda: holder.database.act(hold))
        thread.start()
        assert held.wait(10)
        store.database.ask(lambda connection: connection.exec_driver_sql("SET lock_timeout = '300ms'"))

        def release():
            done.set()
            thread.join(10)
            holder.close()

    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.decide(approval(), now=NOW)
        assert time.monotonic() - began < LONG
    finally:
        release()
    store.decide(approval(), now=NOW)
    assert store.generation() == 1
    store.close()


def test_a_broken_file_is_unavailable(tmp_path):
    """A file that is not a database is not treated as an empty one."""
    path = tmp_path / "access.db"
    path.write_bytes(b"this is no database, but long enough to be looked at" * 100)
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"this is no database")


@pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced"])
def test_nothing_is_decided_in_a_file_that_was_moved(tmp_path, database, replaced):
    """Connections would keep using the moved file, and their writes would be lost. The file may come back."""
    file, store = tmp_path / "access.db", open_store(database)
    store.register(request(), now=NOW)
    file.rename(tmp_path / "elsewhere.db")
    if replaced:
        file.write_bytes(b"")
    for use in everything(store):
        with pytest.raises(StoreUnavailable):
            use()
    store.close()
    with pytest.raises(StoreUnavailable):
        store.generation()
    assert file.exists() is replaced
    (tmp_path / "elsewhere.db").rename(file)
    assert len(store.requests(RequestFilter(), ALL).items) == 1
    store.close()


def test_nothing_is_half_written(own_store, own_url):
    """If the last step of an act fails, none of it is stored."""
    store, url = own_store, own_url
    asked = store.register(request(action="go"), now=NOW).request_id
    head = store.audit_head()
    if url.startswith("sqlite"):
        refuse = "BEGIN SELECT RAISE(ABORT, 'no'); END"
        sql(url, f"CREATE TRIGGER stop BEFORE UPDATE ON access_meta {refuse}")
    else:
        sql(url, "CREATE TRIGGER stop BEFORE UPDATE ON access_meta EXECUTE FUNCTION access_audit_stays()")
    with pytest.raises(StoreUnavailable):
        store.decide(approval(request_id=asked), now=NOW)
    with pytest.raises(StoreUnavailable):
        store.register(request("/other"), now=NOW)
    assert (live(store), store.generation(), store.audit_head()) == ([], 0, head)
    assert store.resumes(unfinished=False, page=ALL).items == ()
    assert [row.state.value for row in store.requests(RequestFilter(), ALL).items] == ["pending"]


def test_all_connections_in_use(server, pattern, monkeypatch):
    """The number of connections is the configured one; the error names the setting and the number."""
    monkeypatch.setattr(transactions, "_WAIT_SECONDS", 0.2)
    store = open_store(server.new_database(like=pattern), connections=3)
    inside, over = threading.Barrier(4), threading.Event()

    def hold(connection):
        inside.wait(LONG)
        assert over.wait(LONG)

    threads = [threading.Thread(target=store.database.ask, args=(hold,)) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        inside.wait(LONG)
        for method in (store.generation, lambda: store.decide(approval(), now=NOW)):
            with pytest.raises(StoreBusy) as caught:
                method()
            assert caught.value.connections == 3
            assert "database.connections" in str(caught.value.__cause__)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert store.generation() == 0
    store.close()
