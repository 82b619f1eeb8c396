"""Migrations: up, down and up again; a schema of another version is refused with the next step."""

from __future__ import annotations

import re
import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError, IntegrityError

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.store import migrations, open_store, schema, tables
from democrai_sandbox.access.store.database_location import parse_url
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.cli.entry import main as command
from democrai_sandbox.errors import InvalidInputError, SchemaOutdated, StoreUnavailable
from democrai_sandbox.host.accounts import tables as host_tables
from democrai_sandbox.runtime.store import values as runtime_tables
from tests.access.store.samples import NOW, approval, at, denial, live, request, sql
from tests.services.rows import rows

COMMAND = "democrai-sandbox db upgrade --database "


def described(url):
    """Return the whole schema from the database, except the version tables."""
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


def command_in(error):
    """Return the words of the command at the end of an error; empty without a command."""
    _, name, rest = str(error).partition(COMMAND)
    return shlex.split(name + rest)


def migrate(url, step):
    engine = sqlalchemy.create_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            step(connection)
    finally:
        engine.dispose()


def test_up_down_up(own_url):
    """Downgrading leaves nothing behind, and upgrading again creates the same schema."""
    first = described(own_url)
    assert len(first) > 20
    migrate(own_url, lambda connection: migrations.downgrade(connection, migrations.NOTHING))
    assert described(own_url) == []
    migrate(own_url, lambda connection: migrations.upgrade(connection, schema.HEAD))
    assert described(own_url) == first
    store = open_store(own_url)
    store.decide(approval(), now=NOW)
    assert verify_store(store).ok
    store.close()


def test_the_migrations_make_the_tables_that_the_code_uses(url):
    """Alembic compares columns, types, indexes and constraints; the newest migration is the required one."""
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
        if url.startswith("sqlite"):  # PostgreSQL rewrites the expressions
            assert {constraint["sqltext"] for constraint in constraints} == {str(one.sqltext) for one in wanted}
    assert migrations.known_versions()[0] == schema.HEAD


def test_a_database_of_the_first_version_is_upgraded_with_all_that_is_in_it(own_url):
    """It is refused until an operator upgrades it; the data is unchanged, and the runtime tables exist."""
    migrate(own_url, lambda connection: migrations.downgrade(connection, "0001"))
    with pytest.raises(SchemaOutdated, match=rf"\b0001\b.*\b{schema.HEAD}\b"):
        open_store(own_url)
    sql(own_url, "INSERT INTO access_ended_sessions VALUES ('s-9', 7)")
    assert schema.upgrade_schema(own_url) == "0001"
    open_store(own_url).close()
    assert sql(own_url, "SELECT session_key FROM access_ended_sessions") == [("s-9",)]
    assert sql(own_url, "SELECT count(*) FROM runtime_tasks") == [(0,)]


def test_an_audit_of_the_second_version_keeps_its_rows_its_chain_and_its_protection(own_url):
    """A migration adds accounts to the audit log; earlier records stay unchanged and protected."""
    store = open_store(own_url)
    store.decide(approval(), now=NOW)
    before = list(store.audit_rows())
    store.close()
    migrate(own_url, lambda connection: migrations.downgrade(connection, "0002"))
    with pytest.raises(IntegrityError):
        sql(
            own_url,
            "INSERT INTO access_audit SELECT 9, at, 'account_signed_in', actor, subject_kind, subject_name, "
            "resource_type, operation, target, request_id, before, after, previous_hash, hash FROM access_audit",
        )
    assert schema.upgrade_schema(own_url) == "0002"
    store = open_store(own_url)
    assert list(store.audit_rows()) == before
    store.record(AuditAction.ACCOUNT_SIGNED_IN, actor="ada", now=NOW)
    assert verify_store(store).ok
    store.close()
    for statement in ("DELETE FROM access_audit", "UPDATE access_audit SET actor = 'eve'"):
        with pytest.raises(DBAPIError, match="append-only"):
            sql(own_url, statement)


def test_an_empty_database_is_prepared_once_by_many(empty_url):
    """Nodes that start together wait for each other, and all of them work."""
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(open_store, [empty_url] * 4))
    for number, store in enumerate(stores):
        store.register(request(f"/{number}"), now=NOW)
        store.close()
    assert sql(empty_url, "SELECT version_num FROM access_schema") == [(schema.HEAD,)]
    assert sql(empty_url, "SELECT count(*) FROM access_requests") == [(4,)]


def test_tables_of_others_are_left_alone(empty_url):
    """A database with other tables counts as empty."""
    sql(empty_url, "CREATE TABLE accounts (id INTEGER)", "INSERT INTO accounts VALUES (7)")
    open_store(empty_url).close()
    assert sql(empty_url, "SELECT id FROM accounts") == [(7,)]


def test_a_schema_that_is_behind_is_refused_with_the_command(url, monkeypatch):
    """The error contains the complete command; after it the store opens."""
    present = schema.HEAD
    monkeypatch.setattr(schema, "HEAD", "9998")
    monkeypatch.setattr(migrations, "known_versions", lambda: ["9998", present])
    with pytest.raises(SchemaOutdated) as caught:
        open_store(url)
    assert re.search(rf"\b{present}\b.*\b9998\b", str(caught.value))
    assert url.partition("?")[0] in command_in(caught.value)[-1]


def test_the_command_in_the_text_works(own_url):
    """The command in the error upgrades an old database without losing data."""
    store = open_store(own_url)
    migrate(own_url, lambda connection: migrations.downgrade(connection, migrations.NOTHING))
    with pytest.raises(SchemaOutdated) as caught:
        store.check_schema()
    store.close()
    for _ in range(2):  # the second run has nothing to do
        assert command([*command_in(caught.value)[1:], "--yes"]) == 0
        open_store(own_url, create=False).close()


@rows(
    "statement",
    [
        "UPDATE access_schema SET version_num = '9999'",
        "INSERT INTO access_schema VALUES ('0000')",
        "DELETE FROM access_schema",
        "DROP TABLE access_schema",
    ],
)
def test_a_schema_that_nobody_here_made_is_refused(own_url, statement):
    """Newer, several versions, or tables without a version: nothing is guessed or changed."""
    sql(own_url, "DELETE FROM access_schema", f"INSERT INTO access_schema VALUES ('{schema.HEAD}')")
    open_store(own_url).close()
    sql(own_url, statement)
    before = described(own_url)
    with pytest.raises(SchemaOutdated) as caught:
        open_store(own_url)
    assert command_in(caught.value) == []
    assert described(own_url) == before


def test_a_newer_schema_that_only_added_is_worked_with(own_url):
    """Old and new nodes of the previous version keep working and report that the database is newer."""
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
    with pytest.raises(SchemaOutdated) as caught:
        store.check_schema()
    assert command_in(caught.value) == []
    store.close()


def test_each_migration_says_whether_nodes_of_the_version_before_may_go_on(own_url):
    """The database lists compatible versions: back to the last non-additive migration, up and down."""
    scripts = {script.revision: script for script in ScriptDirectory.from_config(migrations._config()).walk_revisions()}
    assert [name for name, script in scripts.items() if not hasattr(script.module, "additive")] == ["0001"]
    for version in scripts:  # the newest first
        migrate(own_url, lambda connection, version=version: migrations.downgrade(connection, version))
        wanted, current = {version}, version
        while getattr(scripts[current].module, "additive", False):
            current = scripts[current].down_revision
            wanted.add(current)
        assert {row[0] for row in sql(own_url, "SELECT version_num FROM access_schema_nodes")} == wanted
    assert schema.upgrade_schema(own_url) == "0001"
    migrate(own_url, lambda connection: migrations.downgrade(connection, "0004"))
    assert sql(own_url, "SELECT version_num FROM access_schema_nodes ORDER BY 1") == [("0003",), ("0004",)]


def test_a_database_from_before_the_list_is_its_own_version_s(own_url):
    """Without the list, only the version itself is compatible."""
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

    monkeypatch.setattr(migrations, "known_versions", lambda present=schema.HEAD: ["9998", present])
    monkeypatch.setattr(schema, "HEAD", "9998")
    monkeypatch.setattr(schema, "_upgrade", broken)
    before = described(own_url)
    with pytest.raises(StoreUnavailable):
        schema.upgrade_schema(own_url)
    assert described(own_url) == before
    assert live(store) == [("/srv/data", "approval", "")]
    store.close()


def test_tools_do_not_make_databases(empty_url):
    """A missing database is reported as a mistake in the URL."""
    is_file = empty_url.startswith("sqlite")
    with pytest.raises(InvalidInputError if is_file else SchemaOutdated) as caught:
        open_store(empty_url, create=False)
    assert empty_url.partition("///" if is_file else "?")[2 if is_file else 0] in str(caught.value)


def test_requests_of_the_fifth_version_show_that_their_decision_has_ended(own_url):
    """Revoked, replaced and expired requests show this after the migration; others stay in force."""
    store = open_store(own_url)
    names = ("kept", "covered", "revoked", "replaced", "timed")
    asked = {name: store.register(request(f"/{name}"), now=NOW).request_id for name in names}
    kept = store.decide(approval("/kept", request_id=asked["kept"], also=(asked["covered"],)), now=at(1))
    revoked = store.decide(approval("/revoked", request_id=asked["revoked"]), now=at(1))
    store.decide(approval("/replaced", request_id=asked["replaced"]), now=at(1))
    store.decide(approval("/timed", request_id=asked["timed"], expires_at=at(2)), now=at(1))
    store.revoke(revoked.id, actor="eva", reason="", now=at(3))
    store.decide(denial("/replaced"), now=at(3))
    store.end_expired(now=at(3))
    before = {name: store.request(one) for name, one in asked.items()}
    store.close()
    migrate(own_url, lambda connection: migrations.downgrade(connection, "0005"))
    assert set(sql(own_url, "SELECT state FROM access_requests")) == {("approved",)}
    assert schema.upgrade_schema(own_url) == "0005"
    store = open_store(own_url)
    after = {name: store.request(one) for name, one in asked.items()}
    assert after == before
    assert {name: found.state.value for name, found in after.items()} == {
        "kept": "approved",
        "covered": "approved",
        "revoked": "revoked",
        "replaced": "replaced",
        "timed": "expired",
    }
    assert after["covered"].decision_id == kept.id
    assert verify_store(store).ok
    store.close()
