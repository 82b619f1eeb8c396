"""Health and metrics of a host whose database is unreachable or outdated."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from democrai_sandbox.access import Access, AccessSettings
from democrai_sandbox.console.health import Metrics, readiness
from democrai_sandbox.host.observations import Observations
from democrai_sandbox.host.settings import HostSettings
from democrai_sandbox.runtime.store import RuntimeStore
from tests.console.serving import until


@contextmanager
def hosted(tmp_path, **stream):
    """A real access service, and the parts of a host that need no runtime."""
    folder = tmp_path / "state"
    folder.mkdir()
    url, keys = f"sqlite:///{folder}/sandbox.db", str(tmp_path / "keys")
    settings = HostSettings(state_dir=str(folder), data_dir=str(folder), database=url, key_file=keys, poll_seconds=0.05)
    access = Access(AccessSettings(database=url, key_file=keys, poll_seconds=0.05, **stream))
    access.start()
    yield SimpleNamespace(
        access=access,
        settings=settings,
        is_started=True,
        closing=asyncio.Event(),
        observations=Observations(),
        kernel=SimpleNamespace(egress=None, spawn=None, supervisor=None),
        runtime=SimpleNamespace(
            extensions=(),
            limits_reached={("module:a", "memory_mb"): 2},
            worker_events={("module:a", "crashed"): 3},
            store=RuntimeStore(access.store.database),
        ),
    )
    access.stop()


@pytest.fixture
def host(tmp_path):
    """A healthy host."""
    with hosted(tmp_path) as found:
        yield found


def lose(host):
    """Take the database away, with all connections."""
    state = Path(host.settings.state_dir)
    state.rename(state.with_name("away"))  # at once: while files are removed one by one, connections make new ones
    host.access.store.close()


def test_ready(host):
    """A healthy host is ready."""
    found = readiness(host)
    assert found.ready
    assert set(found.checks.values()) == {"ok"}


def test_store_away(host):
    """Without its database a host is not ready, and the failed checks are named."""
    lose(host)
    found = until(lambda: (now := readiness(host)).checks["snapshot"] == "failed" and now)
    assert not found.ready
    assert found.checks["store"] == "failed"
    assert found.checks["events"] == "ok"


def test_events_away(tmp_path):
    """Without events a host is ready while polling works, and reports the failed check."""
    with hosted(tmp_path, stream_type="redis", stream={"url": "redis://127.0.0.1:9/0"}) as host:
        found = readiness(host)
        assert found.ready
        assert {name for name, state in found.checks.items() if state != "ok"} == {"events"}
        assert found.checks["events"] == "degraded"
        lose(host)
        found = until(lambda: (now := readiness(host)).checks["snapshot"] == "failed" and now)
        assert (found.ready, found.checks["events"]) == (False, "failed")


def test_schema_of_another_version(host):
    """With an outdated database a host is not ready."""
    host.access.store.database.act(
        lambda connection: connection.execute(text("UPDATE access_schema SET version_num = 'x'"))
    )
    found = readiness(host)
    assert (found.ready, found.checks["store"], found.checks["schema"]) == (False, "ok", "failed")


def test_stopping(host):
    """A stopping host is not ready."""
    host.closing.set()
    assert readiness(host).checks["runtime"] == "failed"


def test_metrics_without_a_store(host):
    """Metrics work while the database is unreachable, and report that."""
    numbers = Metrics(host)
    assert b"democrai_store_reachable 1.0" in numbers.text()
    assert b"democrai_pending_requests 0.0" in numbers.text()
    assert b'democrai_limits_reached_total{limit="memory_mb",subject="module:a"} 2.0' in numbers.text()
    assert b'democrai_worker_events_total{event="crashed",subject="module:a"} 3.0' in numbers.text()
    lose(host)
    told = numbers.text()
    assert b"democrai_store_reachable 0.0" in told
    assert b"democrai_pending_requests " not in told
    assert b"democrai_refresh_lag_seconds" in told
