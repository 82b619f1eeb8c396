"""Service as a host assembles it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from democrai_sandbox.access import Access, AccessSettings, AsyncAccess, Caller
from democrai_sandbox.policy import DecisionCode, InvalidInputError
from tests.access.conftest import ADMIN, DEMO, Around


@pytest.fixture
def settings(tmp_path, database):
    """Settings of one host without additional servers; its database has its schema already."""
    return AccessSettings(database=database, key_file=str(tmp_path / "keys"), poll_seconds=0.1)


def test_it_starts_on_embedded_defaults_and_keeps_what_was_decided(tmp_path):
    """The first start creates the database; the second one loads the decision of the first."""
    around, url = Around(), f"sqlite:///{tmp_path}/access.db"
    settings = AccessSettings(database=url, key_file=str(tmp_path / "keys"), poll_seconds=0.1)
    wanted = {"resource_type": "network", "operation": "send", "target": "https://api.test", "subject": DEMO}
    with Access(settings, around) as access:
        asked = access.service.check_external_access(**wanted)
        with around.serving(ADMIN):
            access.administration.approve_permanently(asked.request_id)
    with Access(settings, around) as access:
        assert access.service.check_external_access(**wanted).code is DecisionCode.PERMANENT_APPROVAL


def test_an_approval_goes_on_with_what_was_stopped(settings):
    """The handler gets the context and the requester's identity."""
    done = threading.Event()
    got = []

    def handler(context, *, origin, subject, request_id):
        got.append((context, origin.user_id, str(subject), request_id))
        done.set()

    around = Around()
    with Access(settings, around, {"fetch": handler}) as access:
        asked = access.service.require_external_access(
            resource_type="network",
            operation="receive",
            target="https://api.test",
            subject=DEMO,
            resume_action="fetch",
            resume_context={"page": 7},
        )
        with around.serving(ADMIN):
            access.administration.approve_for_session(asked.request_id)
        assert done.wait(10)
    assert got == [({"page": 7}, "uma", "module:demo", asked.request_id)]


def test_what_to_go_on_with_may_come_after_the_request(settings):
    """A check files the request; the first action offered later is attached, further ones are not."""
    done = threading.Event()
    got = []

    def handler(context, **_):
        got.append(context)
        done.set()

    around = Around()
    wanted = {"resource_type": "network", "operation": "receive", "target": "https://api.test", "subject": DEMO}
    with Access(settings, around, {"fetch": handler}) as access:
        asked = access.service.check_external_access(**wanted)
        for page in (1, 2):
            again = access.service.require_external_access(
                **wanted, resume_action="fetch", resume_context={"page": page}
            )
            assert again.request_id == asked.request_id
        with around.serving(ADMIN):
            access.administration.approve_permanently(asked.request_id)
        assert done.wait(10)
    assert got == [{"page": 1}]


def test_coroutines_ask_for_the_same_caller(settings):
    """The request context is copied to the thread that waits for the database."""
    from contextvars import ContextVar

    present = ContextVar("present", default=Caller(user_id="uma", session_key="s1"))
    around = Around()
    around.caller = present.get

    async def story(access):
        api = AsyncAccess(access.service, access.administration)
        asked = await api.check_external_access(
            resource_type="network", operation="receive", target="https://api.test", subject=DEMO
        )
        present.set(ADMIN)
        waiting = await api.pending_requests()
        await api.approve_permanently(asked.request_id, reason="needed")
        approvals = await api.approvals()
        await api.revoke(approvals.items[0].id)
        (first,) = waiting  # a page is iterable
        return first.origin.user_id, len(await api.history()), list(await api.denials())

    with Access(settings, around) as access:
        assert asyncio.run(story(access)) == ("uma", 3, [])


def test_an_unknown_stream_type_is_refused_with_the_nearest_name(settings):
    """The name is rejected before anything runs."""
    from dataclasses import replace

    with pytest.raises(InvalidInputError) as caught:
        Access(replace(settings, stream_type="reddis"))
    assert caught.value.problems[0].suggestion == "redis"


def test_importing_the_package_loads_neither_the_database_nor_the_guard():
    """Half a second is too long for a command that only prints its help."""
    heavy = ("sqlalchemy", "alembic", "cryptography", "redis", "psycopg", "democrai_sandbox.guard")
    code = (
        "import sys, democrai_sandbox.access, democrai_sandbox.access.values, democrai_sandbox.access.caller;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
