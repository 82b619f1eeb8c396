"""Folders of the host, and the services that it must reach."""

from __future__ import annotations

from democrai_sandbox.host.directories import own_services
from democrai_sandbox.host.settings import HostSettings
from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder
from democrai_sandbox.runtime.confinement.allowlist_sources import config_source
from tests.services.rows import rows


@rows(
    ("database", "stream", "expected"),
    [
        ("sqlite:////srv/state/sandbox.db", {}, set()),
        ("postgresql://us:er@db.example/sandbox", {}, {("db.example", 5432)}),
        (
            "postgresql+psycopg://db.example:6543/sandbox",
            {"url": "redis://:secret@events.example"},
            {("db.example", 6543), ("events.example", 6379)},
        ),
    ],
)
def test_the_packet_filter_knows_database_and_events_from_the_start(database, stream, expected):
    """They are in the allowlist without an explicit entry, and without passwords."""
    settings = HostSettings(
        state_dir="/srv/state", data_dir="/srv/state/data", key_file="/srv/keys", database=database, stream=stream
    )
    allowlist = AllowlistBuilder([config_source(own_services(settings))]).build()
    assert {(endpoint.host, endpoint.port) for endpoint in allowlist.endpoints} == expected
    assert "secret" not in repr(allowlist)
