"""Backup and restore, on both databases: what comes back, what goes on, and what only the keys open."""

from __future__ import annotations

import pytest
import yaml

from democrai_sandbox.access.keyring import KeyRing
from tests.cluster.page import commands, run
from tests.console.serving import Served, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def backed_up(served, place, postgres):
    """Make a backup while the node serves; return the URL of the database that was restored from it."""
    if postgres is None:
        for line in commands("db backup"):
            run(line, served, folder=place)
        (place / "restored").mkdir(mode=0o700)
        (place / "sandbox.db").rename(place / "restored" / "sandbox.db")
        return f"sqlite:///{place}/restored/sandbox.db"
    for line in commands("pg_dump"):
        run(line, served, folder=place, DATABASE_URL=served.config["database"]["url"])
    restored = postgres.new_database()
    for line in commands("pg_restore"):
        run(line, served, folder=place, RESTORED_URL=restored)
    return restored


def again(served, url, keys):
    """Serve the restored database in the place of the one that was lost."""
    served.config["database"] = {"url": url, "key_file": str(keys)}
    served.rewrite()
    served.start()


def resumed(client, request):
    def ended():
        found = client.get(f"/api/v1/requests/{request}").json()["resume"]
        return found if found and found["state"] in {"succeeded", "failed"} else None

    return until(ended, "going on")


class Restorable(Served):
    """A node whose configuration can be exchanged while it is down."""

    def rewrite(self):
        self.file.write_text(yaml.safe_dump(self.config))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_backup_brings_back_everything_of_its_time(tmp_path, request, backend):
    """Decisions, people, sessions and tokens are as they were, the audit is whole; contexts need their keys."""
    postgres = request.getfixturevalue("postgres") if backend == "postgresql" else None
    database = {"database": {"url": postgres.new_database()}} if postgres else {}
    served = Restorable(tmp_path, database)
    try:
        ada = served.administrator()
        kept = served.bearer(ada)
        token = kept.headers["Authorization"]
        with kept, served.signed_in() as session:
            cookies = session.cookies
            first, second = (served.stop_weather(kept, f"/forecast/{name}") for name in ("first", "second"))
            other = served.stop_weather(kept, "/forecast/other")
            decision = kept.post(f"/api/v1/requests/{other}/approve", json={}).json()["decision"]["id"]
            assert resumed(kept, other)["state"] == "succeeded"
            url = backed_up(served, tmp_path, postgres)
            kept.post(f"/api/v1/decisions/{decision}/revoke", json={}).raise_for_status()
            assert kept.get("/api/v1/audit/verify").json()["ok"] is True
        assert served.stop() == 0
        again(served, url, tmp_path / "democrai.keys")
        with served.client(cookies=cookies) as session:
            assert session.get("/requests").status_code == 200
        with served.client() as client:
            client.headers["Authorization"] = token
            assert client.get("/api/v1/audit/verify").json()["ok"] is True
            # Revoked since: it is in force again, as the page on deployment says.
            assert client.get(f"/api/v1/decisions/{decision}").json()["ended_at"] is None
            client.post(f"/api/v1/requests/{first}/approve", json={}).raise_for_status()
            assert resumed(client, first)["state"] == "succeeded"
        assert served.stop() == 0
        if postgres is None:  # what follows has nothing to do with the kind of the database
            return
        again(served, url, tmp_path / "state" / "other-keys")
        with served.client() as client:
            client.headers["Authorization"] = token
            client.post(f"/api/v1/requests/{second}/approve", json={}).raise_for_status()
            found = resumed(client, second)
            missing = KeyRing.read(tmp_path / "democrai.keys").keys[0].id
            assert found["state"] == "failed" and missing in found["last_error"]
    finally:
        served.stop()
        served.web.stop()


def test_the_keys_of_one_node_are_rotated_while_it_serves(tmp_path):
    """By the two commands of the page: another key is the only one afterwards, and the node goes on."""
    with serving(tmp_path, extensions=False) as served:
        file = tmp_path / "state" / "keys"
        before = {key.id for key in KeyRing.read(file).keys}
        for line in commands("rotate-key --yes"):
            run(line, served)
        after = {key.id for key in KeyRing.read(file).keys}
        assert len(after) == 1
        assert not after & before
        with served.client() as client:
            assert client.get("/health/ready").status_code == 200
