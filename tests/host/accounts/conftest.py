"""Accounts in both databases, with a manual clock and cheap password hashes."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from democrai_sandbox.access.store import open_store
from democrai_sandbox.host.accounts import Accounts, Cost
from democrai_sandbox.host.authentication import Visit
from democrai_sandbox.host.settings import ConsoleSettings, HostSettings, ServerSettings
from tests.access.store.samples import sql
from tests.services.marks import mark_below
from tests.services.postgres import postgres_server

PASSWORD = "correct horse battery staple"
CHEAP = Cost(memory_kib=64, passes=1)
TABLES = "host_sessions, host_tokens, host_throttle, host_people"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run these tests on the default interpreter only: nothing here depends on it."""
    mark_below(__file__, items, pytest.mark.once)


class Clock:
    """Clock that a test advances."""

    def __init__(self):
        self.now = datetime(2030, 1, 1, 12, tzinfo=UTC)

    def __call__(self):
        return self.now

    def wait(self, **amount):
        self.now += timedelta(**amount)


class House:
    """Database with its accounts, and the sessions that ended there."""

    def __init__(self, url, *, console=None, public_url=""):
        self.url = url
        self.clock = Clock()
        self.ended = []
        self.settings = HostSettings(
            state_dir="/nowhere",
            data_dir="/nowhere",
            database=url,
            key_file="",
            console=ConsoleSettings(**(console or {})),
            server=ServerSettings(public_url=public_url),
        )
        self.stores = []
        self.accounts = self.node()

    def node(self, **more):
        """Another node on the same database."""
        store = open_store(self.url)
        self.stores.append(store)
        given = {"on_session_end": self.ended.append, "cost": CHEAP, "clock": self.clock, **more}
        return Accounts(store.database, self.settings, **given)

    def person(self, name="ada", **more):
        return self.accounts.create_person(name, PASSWORD, actor="tests", **more)

    def sign_in(self, name="ada", password=PASSWORD, address="192.0.2.1", agent="a browser", accounts=None):
        visit = Visit({"user-agent": agent}, {}, address, "/login")
        return (accounts or self.accounts).sign_in(name, password, visit)

    def with_cookie(self, secret, accounts=None, **headers):
        cookies = {self.accounts.cookie_name: secret}
        return (accounts or self.accounts).identify(Visit(headers, cookies, "192.0.2.1", "/"))

    def with_token(self, secret, accounts=None):
        visit = Visit({"authorization": f"Bearer {secret}"}, {}, "192.0.2.1", "/api/v1/me")
        return (accounts or self.accounts).identify(visit)

    def audit(self):
        """Return the audit records, oldest first: action without its prefix, actor, details."""
        rows = self.stores[0].audit_rows()
        return [(row.action.removeprefix("account_"), row.actor, row.after) for row in rows]

    def close(self):
        for store in self.stores:
            store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Database with its schema and no users."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "accounts.db")
        return f"sqlite:///{tmp_path}/accounts.db"
    prepared = request.getfixturevalue("prepared_database")
    sql(
        prepared,
        "ALTER TABLE access_audit DISABLE TRIGGER USER",
        f"TRUNCATE {TABLES}, access_audit",
        "ALTER TABLE access_audit ENABLE TRIGGER USER",
        "UPDATE access_meta SET generation = 0, audit_sequence = 0, audit_hash = ''",
    )
    return prepared


@pytest.fixture
def house(url):
    house = House(url)
    yield house
    house.close()


@pytest.fixture
def ada_in(house):
    """House with one user, for all rows of a table."""
    house.person("ada")
    return house
