"""Status and metrics of a served process whose PostgreSQL is killed or stopped, answered from memory."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from democrai_sandbox.host.scopes import Scope
from tests.cli.goldens import within
from tests.console.serving import CHEAPLY, PLAIN, serving, until
from tests.services.postgres import postgres_server

QUICKLY = f"""{CHEAPLY}
from datetime import timedelta
from democrai_sandbox.host.accounts import accounts
accounts._TIDY_EVERY = timedelta(seconds=0.1)
"""
"""Has a served process remember new tokens soon."""
SCRAPE_SECONDS = 10
"""The time that Prometheus gives a target by default."""


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL server for these tests only."""
    with postgres_server() as found:
        yield found


@pytest.fixture(scope="module")
def served(server, tmp_path_factory):
    """A process on that server."""
    url = server.new_database()
    with serving(tmp_path_factory.mktemp("served"), {"database": {"url": url}}, before=QUICKLY) as found:
        yield found


@pytest.fixture
def token(served):
    """The token of an administrator, remembered by the process and not used yet."""
    secret = served.token(served.administrator(), Scope.STATUS_READ)
    time.sleep(1)  # nothing shows from outside that it is remembered
    return secret


@pytest.fixture(params=["killed", "stopped"])
def away(request, server, served):
    """Return a function that takes the database away until the end of the test."""

    def take():
        if request.param == "killed":
            server.kill()
            return
        for pid in backends(server):
            os.kill(pid, signal.SIGSTOP)

    yield take
    if request.param == "killed":
        server.start()
    else:
        for pid in backends(server):
            os.kill(pid, signal.SIGCONT)
    until(lambda: ask(served, "/health/ready").status_code == 200, "serving again")


def backends(server):
    """The first process of the server, and its children."""
    first = server._pid()
    return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]


def ask(served, path, token=""):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{served.url}{path}", **PLAIN, timeout=SCRAPE_SECONDS, headers=headers)


def _hang(served):
    with suppress(httpx.HTTPError):
        httpx.get(f"{served.url}/api/v1/requests", **PLAIN, timeout=60, headers={"Authorization": "Bearer dsb_x"})


def values(answer):
    """The samples of an answer, by name and labels."""
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_while_the_database_is_away(served, token, away):
    """Every scrape is answered in time, and reports the outage."""
    away()
    began = time.monotonic()
    while time.monotonic() - began < 8:
        found = values(ask(served, "/metrics", token))
        assert found["democrai_store_reachable"] == 0
        assert "democrai_pending_requests" not in found
        assert found['democrai_checks_total{layer="approvals",result="failed"}'] >= 0


def test_status_while_the_database_is_away(served, token, away):
    """The command shows every layer, and the failed one."""
    away()
    arguments = ("status", "--url", served.url, "--json")
    done = within(arguments, {"DEMOCRAI_TOKEN": token})
    assert (done.status, done.err) == (1, "")
    found = {line["name"]: line["state"] for line in json.loads(done.out)["lines"]}
    assert (found["guard"], found["store"]) == ("ok", "off")


def test_metrics_beside_many_requests_that_wait_for_the_database(served, token, server):
    """Waiting database calls do not block the metrics."""
    for pid in backends(server):
        os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(60) as pool:
            for _ in range(60):
                pool.submit(_hang, served)
            time.sleep(0.5)
            assert values(ask(served, "/metrics", token))["democrai_store_reachable"] == 0
            assert ask(served, "/health/ready").status_code == 503
            for pid in backends(server):
                os.kill(pid, signal.SIGCONT)
    finally:
        for pid in backends(server):
            os.kill(pid, signal.SIGCONT)
    until(lambda: ask(served, "/health/ready").status_code == 200, "serving again")


def test_nobody_else_is_let_in_by_an_outage(served, server, token):
    """Unknown, revoked and limited tokens are refused, also during an outage."""
    admin = served.administrator()
    other_scope = served.token(admin, Scope.MODULES_RUN)
    of_uma = served.token(served.person("uma"), Scope.STATUS_READ)
    revoked, secret = served.accounts.create_token(admin.id, "tests", (Scope.STATUS_READ,), None)
    served.accounts.revoke_token(revoked.id, admin.id)
    time.sleep(1)
    server.kill()
    try:
        strangers = ("dsb_unknown", other_scope, of_uma, secret)
        assert {ask(served, "/metrics", given).status_code for given in strangers} <= {401, 403, 503}
        assert ask(served, "/metrics", token).status_code == 200
        assert ask(served, "/api/v1/requests", token).status_code in {403, 503}
    finally:
        server.start()
    until(lambda: ask(served, "/health/ready").status_code == 200, "serving again")
