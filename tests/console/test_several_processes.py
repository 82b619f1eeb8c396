"""Several serving processes: PostgreSQL allows them, SQLite allows one."""

from __future__ import annotations

import pytest

from tests.console.serving import Served, serving, until

POLL = 600.0
"""Longer than the test: what another process hears of it hears by an event."""


def events(folder):
    return {"stream": {"type": "ipc", "folder": str(folder / "events")}}


def test_sqlite_is_served_once_also_with_ipc(tmp_path):
    """The second process is refused with the owner of the database."""
    config = {"network": events(tmp_path)}
    with serving(tmp_path, config, extensions=False) as first:
        with pytest.raises(RuntimeError, match="host_state_unusable"):
            Served(tmp_path, config, extensions=False, outside=first.web)
        assert first.process.poll() is None


def test_postgresql_is_served_by_two_processes_with_ipc(tmp_path, postgres):
    """A decision in one applies in the other at once."""
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    config = {
        "database": {"url": postgres.new_database(), "key_file": str(tmp_path / "keys")},
        "network": events(tmp_path),
        "sandbox": {"poll_seconds": POLL},
    }
    with serving(places[0], config) as one, serving(places[1], config, outside=one.web) as two:
        uma = one.person("uma")
        with one.bearer(one.administrator()) as admin, two.bearer(uma) as elsewhere:
            request = two.stop_weather(elsewhere)
            assert admin.post(f"/api/v1/requests/{request}/approve", json={}).status_code == 200
            call = {"params": {"url": f"{one.web.url}/forecast/today"}}
            until(lambda: elsewhere.post("/api/v1/modules/weather/actions/fetch", json=call).status_code == 200)
