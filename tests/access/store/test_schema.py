"""Migrations: up, down and up again; a schema of another version is refused with what to do about it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.store import migrating, open_store, schema, tables
from democrai_sandbox.access.store.urls import parse_url
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import InvalidInputError, SchemaOutdated
from democrai_sandbox.host.accounts import tables as host_tables
from democrai_sandbox.runtime.store import tables as runtime_tables
from tests.access.store.samples import NOW, approval, live, request, sql


def described(url):
    """All that makes up the schema, as the database tells it, but for the tables that keep its version."""
    if url.startswith("sqlite"):
        rows = sql(
            url, "SELECT type, name, sql FROM sqlite_master WHERE tbl_name NOT LIKE 'access_schema%%' ORDER BY 1, 2"
        )
    else:
        rows = sql(
            url,
            "SELECT table_name, column_name, data_type || is_nullable FROM information_schema.columns "
            "WHERE table_name ~ '^(access|runtime|host)_' AND table_name NOT LIKE 'access_schema%%' "
            "UNION SELECT 'index', indexname, indexdef FROM pg_indexes WHERE "
            "tablename ~ '^(access|runtime|host)_' AND tablename NOT LIKE 'access_schema%%' "
            "UNION SELECT 'check', conrelid::regclass::text || conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conname LIKE 'ck_%%' UNION SELECT 'trigger', tgname, '' FROM pg_trigger WHERE NOT tgisinternal "
            "UNION SELECT 'function', proname, '' FROM pg_proc WHERE proname LIKE 'access%%' ORDER BY 1, 2",
        )
    return [tuple(row) for row in rows]


def migrate(url, step):
    engine = sqlalchemy.create_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            step(connection)
    finally:
        engine.dispose()


def test_up_down_up(empty_url):
    """Down leaves nothing behind, and up again makes the same."""
    open_store(empty_url).close()
    first = described(empty_url)
    assert len(first) > 20
    migrate(empty_url, lambda connection: migrating.downgrade(connection, migrating.NOTHING))
    assert described(empty_url) == []
    migrate(empty_url, lambda connection: migrating.upgrade(connection, schema.HEAD))
    assert described(empty_url) == first
    store = open_store(empty_url)
    store.decide(approval(), now=NOW)
    assert verify_store(store).ok
    store.close()


def test_the_migrations_make_the_tables_that_the_code_uses(url):
    """Columns, types, indexes and constraints, as Alembic compares them; and the newest one is the one needed."""
    engine = sqlalchemy.create_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            all_metadata = [tables.metadata, runtime_tables.metadata, host_tables.metadata]
            made = {name: table for metadata in all_metadata for name, table in metadata.tables.items()}
            found = list(compare_metadata(context, all_metadata))
            kept = {schema.VERSION_TABLE, schema.NODES_TABLE}
            found = [difference for difference in found if getattr(difference[1], "name", None) not in kept]
            checks = {name: sqlalchemy.inspect(connection).get_check_constraints(name) for name in made}
    finally:
        engine.dispose()
    assert found == []
    for name, constraints in checks.items():
        wanted = [constraint for constraint in made[name].constraints if str(constraint.name).startswith("ck_")]
        assert {constraint["name"] for constraint in constraints} == {constraint.name for constraint in wanted}, name
        if url.startswith("sqlite"):  # PostgreSQL words them anew
            assert {constraint["sqltext"] for constraint in constraints} == {str(one.sqltext) for one in wanted}
    assert migrating.known_versions()[0] == schema.HEAD


def test_a_database_of_the_first_version_is_upgraded_with_all_that_is_in_it(empty_url):
    """It is refused until an operator says so; then what was there is as it was, and runtimes have their tables."""
    open_store(empty_url).close()
    migrate(empty_url, lambda connection: migrating.downgrade(connection, "0001"))
    with pytest.raises(SchemaOutdated, match="has the schema 0001"):
        open_store(empty_url)
    sql(empty_url, "INSERT INTO access_ended_sessions VALUES ('s-9', 7)")
    assert schema.upgrade_schema(empty_url) == "0001"
    open_store(empty_url).close()
    assert sql(empty_url, "SELECT session_key FROM access_ended_sessions") == [("s-9",)]
    assert sql(empty_url, "SELECT count(*) FROM runtime_tasks") == [(0,)]


def test_an_audit_of_the_second_version_keeps_its_rows_its_chain_and_its_protection(empty_url):
    """People come into the audit by a migration; what was written before stays as it was, and stays for good."""
    store = open_store(empty_url)
    store.decide(approval(), now=NOW)
    before = list(store.audit_rows())
    store.close()
    migrate(empty_url, lambda connection: migrating.downgrade(connection, "0002"))
    with pytest.raises(Exception, match=r"(?i)check"):
        sql(
            empty_url,
            "INSERT INTO access_audit SELECT 9, at, 'account_signed_in', actor, subject_kind, subject_name, "
            "resource_type, operation, target, request_id, before, after, previous_hash, hash FROM access_audit",
        )
    assert schema.upgrade_schema(empty_url) == "0002"
    store = open_store(empty_url)
    assert list(store.audit_rows()) == before
    store.record(AuditAction.ACCOUNT_SIGNED_IN, actor="ada", now=NOW)
    assert verify_store(store).ok
    store.close()
    for statement in ("DELETE FROM access_audit", "UPDATE access_audit SET actor = 'eve'"):
        with pytest.raises(Exception, match="append-only"):
            sql(empty_url, statement)


def test_an_empty_database_is_prepared_once_by_many(empty_url):
    """Nodes that start together wait for one another, and all of them work."""
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(open_store, [empty_url] * 8))
    for number, store in enumerate(stores):
        store.register(request(f"/{number}"), now=NOW)
        store.close()
    assert sql(empty_url, "SELECT version_num FROM access_schema") == [(schema.HEAD,)]
    assert sql(empty_url, "SELECT count(*) FROM access_requests") == [(8,)]


def test_tables_of_others_are_left_alone(empty_url):
    """A database that is shared with something else is empty as far as we are concerned."""
    sql(empty_url, "CREATE TABLE accounts (id INTEGER)", "INSERT INTO accounts VALUES (7)")
    open_store(empty_url).close()
    assert sql(empty_url, "SELECT id FROM accounts") == [(7,)]


def test_a_schema_that_is_behind_is_refused_with_the_command(url, monkeypatch):
    """The text has the command as it is typed; after it the store opens."""
    present = schema.HEAD
    monkeypatch.setattr(schema, "HEAD", "9998")
    monkeypatch.setattr(migrating, "known_versions", lambda: ["9998", present])
    with pytest.raises(SchemaOutdated) as caught:
        open_store(url)
    assert f"has the schema {present}, and 9998 is needed" in str(caught.value)
    command = str(caught.value).partition("upgrade it with: ")[2]
    assert command.startswith("democrai-sandbox db upgrade --database ")
    assert url.partition("?")[0] in command


def test_the_command_in_the_text_works(empty_url):
    """What an operator is told to type brings a database that is behind to the present schema, and nothing is lost."""
    store = open_store(empty_url)
    migrate(empty_url, lambda connection: migrating.downgrade(connection, migrating.NOTHING))
    with pytest.raises(SchemaOutdated) as caught:
        store.check_schema()
    store.close()
    words = shlex.split(str(caught.value).partition("upgrade it with: ")[2])
    command = [sys.executable, "-m", "democrai_sandbox.cli", *words[1:], "--yes"]
    for _ in range(2):  # the second time there is nothing to do
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        open_store(empty_url, create=False).close()


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE access_schema SET version_num = '9999'"],
        ["INSERT INTO access_schema VALUES ('0000')"],
        ["DELETE FROM access_schema"],
        ["DROP TABLE access_schema"],
    ],
)
def test_a_schema_that_nobody_here_made_is_refused(own_url, statements):
    """Newer, two at once, or tables without a version: nothing is guessed, nothing is changed."""
    sql(own_url, *statements)
    before = described(own_url)
    with pytest.raises(SchemaOutdated, match="does not know it"):
        open_store(own_url)
    assert described(own_url) == before


def test_a_newer_schema_that_only_added_is_worked_with(own_url):
    """Nodes of the version before go on, old and new ones, and are told that the database is ahead."""
    sql(
        own_url,
        "UPDATE access_schema SET version_num = '9999'",
        "INSERT INTO access_schema_nodes VALUES ('9999')",
        "CREATE TABLE access_more (id INTEGER)",
    )
    store = open_store(own_url)
    assert store.check_schema() == "9999"
    store.decide(approval(), now=NOW)
    assert live(store) == [("/srv/data", "approval", "")]
    sql(own_url, "DELETE FROM access_schema_nodes WHERE version_num <> '9999'")
    with pytest.raises(SchemaOutdated, match="does not know it"):
        store.check_schema()
    store.close()


def test_each_migration_says_whether_nodes_of_the_version_before_may_go_on(empty_url):
    """The database lists those that may: back to the last migration that did more than add, up and down."""
    scripts = {script.revision: script for script in ScriptDirectory.from_config(migrating._config()).walk_revisions()}
    assert [name for name, script in scripts.items() if not hasattr(script.module, "additive")] == ["0001"]
    open_store(empty_url).close()
    for version in scripts:  # the newest first
        migrate(empty_url, lambda connection, version=version: migrating.downgrade(connection, version))
        wanted, current = {version}, version
        while getattr(scripts[current].module, "additive", False):
            current = scripts[current].down_revision
            wanted.add(current)
        assert {row[0] for row in sql(empty_url, "SELECT version_num FROM access_schema_nodes")} == wanted
    assert schema.upgrade_schema(empty_url) == "0001"
    migrate(empty_url, lambda connection: migrating.downgrade(connection, "0004"))
    assert sql(empty_url, "SELECT version_num FROM access_schema_nodes ORDER BY 1") == [("0003",), ("0004",)]


def test_a_database_from_before_the_list_is_its_own_version_s(own_url):
    """Without the list nothing but the version itself is known to work."""
    sql(own_url, "DROP TABLE access_schema_nodes")
    open_store(own_url).close()
    sql(own_url, "UPDATE access_schema SET version_num = '9999'")
    with pytest.raises(SchemaOutdated):
        open_store(own_url)


def test_an_upgrade_that_fails_leaves_everything_as_it_was(own_url, monkeypatch):
    """All steps are one transaction, on SQLite too."""
    store = open_store(own_url)
    store.decide(approval(), now=NOW)

    def broken(connection):
        connection.execute(sqlalchemy.text("ALTER TABLE access_meta ADD COLUMN more INTEGER"))
        connection.execute(sqlalchemy.text("DROP TABLE access_resumes"))
        connection.execute(sqlalchemy.text("SELECT nonsense FROM nowhere"))

    monkeypatch.setattr(migrating, "known_versions", lambda present=schema.HEAD: ["9998", present])
    monkeypatch.setattr(schema, "HEAD", "9998")
    monkeypatch.setattr(schema, "_upgrade", broken)
    before = described(own_url)
    with pytest.raises(Exception, match="sandbox_external_access_check_failed"):
        schema.upgrade_schema(own_url)
    assert described(own_url) == before
    assert live(store) == [("/srv/data", "approval", "")]
    store.close()


def test_tools_do_not_make_databases(empty_url):
    """To look into what is not there is a mistake in the URL, and says so."""
    with pytest.raises((InvalidInputError, SchemaOutdated), match=r"there is no database|the schema of nothing"):
        open_store(empty_url, create=False)
