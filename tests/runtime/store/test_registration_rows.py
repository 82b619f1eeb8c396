"""MCP servers and settings by administrators, validated before they are stored and again when they are read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from democrai_sandbox.errors import InvalidInputError, StoreUnavailable
from democrai_sandbox.manifests import ManifestError, McpServer, McpTransport
from democrai_sandbox.runtime.store import EntryExists, EntryUnknown, open_runtime_store
from tests.access.store.samples import NOW, at, sql
from tests.services.rows import rows

ENTRY = {
    "name": "search",
    "transport": "streamable_http",
    "endpoint_url": "https://mcp.example.com/v1?key=1",
    "enabled": True,
    "timeout_ms": 5000,
}


def test_an_entry_is_added_read_changed_and_removed(store, other, url):
    """As the value that runtimes use."""
    added = store.add_mcp_server(ENTRY, now=NOW)
    assert added == McpServer(
        name="search",
        transport=McpTransport.STREAMABLE_HTTP,
        endpoint_url="https://mcp.example.com/v1?key=1",
        timeout_ms=5000,
    )
    assert other.mcp_server("search") == added
    assert store.add_mcp_server(
        McpServer(name="files", transport=McpTransport.SSE, endpoint_url="http://127.0.0.1:9/sse"), now=NOW
    ).enabled
    changed = other.update_mcp_server("search", {"enabled": False, "timeout_ms": 900}, now=at(5))
    assert (changed.enabled, changed.timeout_ms, changed.endpoint_url) == (False, 900, added.endpoint_url)
    assert [server.name for server in store.mcp_servers()] == ["files", "search"]
    assert store.mcp_server("search") == changed
    times = sql(url, "SELECT updated_at - created_at FROM runtime_mcp_servers WHERE name = 'search'")
    assert times == [(5_000_000,)]
    store.remove_mcp_server("search")
    for act in (store.remove_mcp_server, store.mcp_server):
        with pytest.raises(EntryUnknown):
            act("search")
    with pytest.raises(EntryUnknown):
        store.update_mcp_server("search", {}, now=NOW)


@rows(
    "changes",
    [
        {"transport": "stdio"},
        {"endpoint_url": "ftp://x"},
        {"endpoint_url": ""},
        {"timeout_ms": 0},
        {"enabled": "yes"},
        {"name": ""},
        {"more": 1},
    ],
)
def test_what_is_no_entry_is_refused_and_nothing_is_kept(store, changes):
    """By the rules for manifests."""
    with pytest.raises(ManifestError):
        store.add_mcp_server({**ENTRY, **changes}, now=NOW)
    assert store.mcp_servers() == ()
    store.add_mcp_server(ENTRY, now=NOW)
    with pytest.raises((ManifestError, InvalidInputError)):
        store.update_mcp_server("search", changes, now=NOW)
    assert store.mcp_server("search").timeout_ms == 5000
    store.remove_mcp_server("search")


def test_a_name_is_given_once(store):
    """Also with many concurrent callers."""

    def add(_):
        try:
            return store.add_mcp_server(ENTRY, now=NOW).name
        except EntryExists:
            return ""

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(add, range(6))) == ["", "", "", "", "", "search"]
    with pytest.raises(InvalidInputError) as refused:
        store.update_mcp_server("search", {"name": "other"}, now=NOW)
    assert [problem.pointer for problem in refused.value.problems] == ["/name"]


def test_an_entry_that_was_broken_from_outside_does_not_stop_the_others(store, url, caplog):
    """It is logged, and not used."""
    store.add_mcp_server(ENTRY, now=NOW)
    store.add_mcp_server({**ENTRY, "name": "good"}, now=NOW)
    sql(url, "UPDATE runtime_mcp_servers SET endpoint_url = 'file:///etc/passwd' WHERE name = 'search'")
    assert [server.name for server in store.mcp_servers()] == ["good"]
    assert "search" in caplog.text
    with pytest.raises(ManifestError):
        store.mcp_server("search")


def test_settings_are_kept_by_kind_and_name(store, other):
    """The last ones count; the default is empty."""
    assert store.settings("engine", "whisper") == {}
    store.set_settings("engine", "whisper", {"url": "https://models.example.com", "deep": {"a": [1, None]}}, now=NOW)
    store.set_settings("extractor", "whisper", {"x": 1}, now=NOW)
    assert other.settings("engine", "whisper") == {"url": "https://models.example.com", "deep": {"a": [1, None]}}
    other.set_settings("engine", "whisper", {}, now=NOW)
    assert store.settings("engine", "whisper") == {}
    assert store.settings("extractor", "whisper") == {"x": 1}
    assert store.remove_settings("extractor", "whisper")
    assert not store.remove_settings("extractor", "whisper")


@rows(
    ("kind", "name", "settings", "place", "value"),
    [
        ("module", "x", {}, "/kind", "engine, extractor"),
        ("engine", "", {}, "/name", "200"),
        ("engine", "x", [], "/settings", "object"),
        ("engine", "x", {1: 2}, "/settings", "object"),
        ("engine", "x", {"a": object()}, "/settings", "JSON"),
        ("engine", "x", {"a": "x" * 300_000}, "/settings", "262144"),
    ],
)
def test_what_are_no_settings_is_refused(store, kind, name, settings, place, value):
    """Refusal before anything is written."""
    with pytest.raises(InvalidInputError, match=value) as refused:
        store.set_settings(kind, name, settings, now=NOW)
    assert [problem.pointer for problem in refused.value.problems] == [place]


def test_a_database_that_is_away_is_said_to_be_away(url):
    """A failure, not an empty registry."""
    store = open_runtime_store(url)
    store.close()

    def broken(*_, **__):
        raise OSError("gone")

    store.database._engine.connect = broken
    for act in (store.mcp_servers, store.tasks, lambda: store.settings("engine", "x")):
        with pytest.raises(StoreUnavailable):
            act()
