"""Two hosts with one PostgreSQL: a request of one is decided on the other, and resumes once."""

from __future__ import annotations

import shutil

import pytest

from tests.console.serving import Web, serving, until


@pytest.mark.slow
def test_two_nodes_share_requests_people_and_resumptions(tmp_path, postgres):
    """A user is denied on one node, approved on the other, and the action resumes exactly once."""
    web = Web()
    config = {"database": {"url": postgres.new_database()}}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with serving(tmp_path / "one", config, outside=web) as one:
        (tmp_path / "two" / "state").mkdir(mode=0o700)
        shutil.copy(tmp_path / "one" / "state" / "keys", tmp_path / "two" / "state" / "keys")
        with serving(tmp_path / "two", config, outside=web) as two:
            assert [line for line in two.said if line.startswith("first login")] == []
            uma, ada = one.person("uma"), one.administrator()
            with one.bearer(uma) as hers, two.bearer(ada) as admin:
                request = one.stop_weather(hers)
                admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()

                def resumed():
                    found = admin.get(f"/api/v1/requests/{request}").json()["resume"]
                    return found if found and found["state"] in {"succeeded", "failed"} else None

                assert until(resumed, "going on")["state"] == "succeeded"
            assert web.asked == ["/forecast/today"]
