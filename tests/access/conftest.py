"""Service over a real SQLite store, and its users."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from zlib import crc32

import pytest

from democrai_sandbox.access.administration import Administration
from democrai_sandbox.access.caller import SUPER, Caller
from democrai_sandbox.access.checks import AccessService, PendingLimits
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import open_store
from democrai_sandbox.policy import Subject, SubjectKind

DEMO = Subject(SubjectKind.MODULE, "demo")
ADMIN = Caller(user_id="ada", role=SUPER)


class Around:
    """Surroundings whose caller a test sets, with a guard only if the test sets one."""

    def __init__(self):
        self.present = Caller(user_id="uma", session_key="s1")
        self.guarded = None

    def caller(self):
        return self.present

    def place_of(self, path):
        return os.path.realpath(path)

    def is_guarded(self):
        return self.guarded is not None

    def guard(self):
        return self.guarded

    def outside(self):
        return nullcontext()

    @contextmanager
    def serving(self, caller):
        before, self.present = self.present, caller
        try:
            yield
        finally:
            self.present = before


class Desk:
    """Node with its service, as a user and an administrator see it."""

    def __init__(self, database, **settings):
        self.around = Around()
        self.store = open_store(database)
        self.node = AccessNode(self.store, open_bus("memory", channel=f"c{crc32(database.encode())}"), poll_seconds=0.2)
        self.service = AccessService(self.node, self.around, **settings)
        self.administration = Administration(self.node, self.around)
        self.node.refresh()

    def check(self, target="https://api.test/v1", *, operation="receive", kind="network", user=None, **more):
        """Check as the current user, or as another one."""
        with self.around.serving(user or self.around.present):
            return self.service.check_external_access(
                resource_type=kind, operation=operation, target=target, **{"subject": DEMO, **more}
            )

    def decide(self, act, *args, **details):
        """Run an administration method as the administrator."""
        with self.around.serving(ADMIN):
            return getattr(self.administration, act)(*args, **details)

    def pending(self):
        """Return the pending requests."""
        return self.decide("pending_requests").items

    def close(self):
        """Close all parts."""
        self.node.stop()
        self.store.close()


@pytest.fixture
def database(tmp_path, prepared_file):
    """URL of a database with its schema and no rows."""
    shutil.copy(prepared_file, tmp_path / "access.db")
    return f"sqlite:///{tmp_path}/access.db"


@pytest.fixture(scope="session")
def pattern(postgres):
    """URL of a PostgreSQL database that is only copied and must have no connections."""
    url = postgres.new_database()
    open_store(url).close()
    return url


@pytest.fixture
def desk(database):
    """Unused service."""
    found = Desk(database)
    yield found
    found.close()


@pytest.fixture
def make_desk(database):
    """Return a factory of services over one database, with separate settings."""
    made = []

    def make(**settings):
        made.append(Desk(database, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def limits(**changes):
    """Return the default limits with changes."""
    return replace(PendingLimits(), **changes)
