"""Sources are combined into one list; a failed source only loses its own entries."""

from __future__ import annotations

from types import SimpleNamespace

from democrai_sandbox.kernel.egress import AllowlistBuilder, Endpoint, EndpointSource, SourceEntry


class Given:
    def __init__(self, name, *entries):
        self.name = name
        self.entries = list(entries)

    def endpoints(self):
        for entry in self.entries:
            if isinstance(entry, Exception):
                raise entry
            yield SourceEntry(entry, self.name)


def build(*sources):
    return AllowlistBuilder(sources).build()


def test_entries_are_sorted_and_each_endpoint_comes_once_with_all_its_sources():
    found = build(
        Given("module:b", "https://z.example", "a.example:1"),
        Given("module:a", "https://z.example/v2", "a.example:1"),
        Given("config.x", "https://z.example"),
    )
    assert [(*end.key, end.source) for end in found.endpoints] == [
        ("a.example", 1, "tcp", "module:a,module:b"),
        ("a.example", 1, "udp", "module:a,module:b"),
        ("z.example", 443, "tcp", "config.x,module:a,module:b"),
    ]


def test_addresses_of_the_same_endpoint_are_merged_and_bounded():
    many = tuple(f"10.0.{n // 200}.{n % 200}" for n in range(500))
    found = build(
        Given("a", Endpoint("h.example", 1, addresses=("1.1.1.1",))),
        Given("b", Endpoint("h.example", 1, addresses=many)),
    )
    (end,) = found.endpoints
    assert len(end.addresses) == 256
    assert found == build(
        Given("a", *[Endpoint("h.example", 1, addresses=("1.1.1.1",))]),
        Given("b", Endpoint("h.example", 1, addresses=many)),
    )


def test_a_source_that_fails_adds_nothing_and_is_reported_while_the_others_stay():
    found = build(
        Given("module:good", "https://good.example"),
        Given("mcp", "https://half.example", RuntimeError("no database at postgres://u:pw@db/x")),
        Given("config", "https://also.example"),
    )
    assert [end.host for end in found.endpoints] == ["also.example", "good.example"]
    (failed,) = found.failed_sources
    assert failed.name == "mcp"
    assert failed.error.startswith("RuntimeError: no database")
    assert "pw" not in failed.error


def test_an_entry_that_is_no_entry_fails_its_source_only():
    broken = SimpleNamespace(name="broken", endpoints=lambda: [42])
    found = build(Given("a", "a.example:1"), broken)
    assert len(found.endpoints) == 2
    assert [source.name for source in found.failed_sources] == ["broken"]


def test_patterns_are_listed_once_with_who_wants_them():
    found = build(Given("module:a", "*.example.com", "*.example.com"), Given("module:b", "10.0.0.0/8"))
    assert found.endpoints == ()
    assert [(item.target, item.source) for item in found.not_materialised] == [
        ("*.example.com", "module:a"),
        ("10.0.0.0/8", "module:b"),
    ]


def test_sources_may_be_added_later_and_are_asked_anew_each_time():
    source = Given("a", "a.example:1")
    builder = AllowlistBuilder()
    assert builder.build().endpoints == ()
    builder.add(EndpointSource(source.name, source.endpoints))
    assert len(builder.build().endpoints) == 2
    source.entries.clear()
    assert builder.build().endpoints == ()


def test_very_many_sources_of_one_endpoint_make_no_long_text():
    found = build(*(Given(f"module:{n:04}", "https://a.example") for n in range(500)))
    assert len(found.endpoints[0].source) < 210
    assert found.endpoints[0].source.endswith(",...")


def test_an_address_counts_as_open_only_when_it_is_for_both_protocols():
    found = build(Given("a", "https://10.0.0.1", "10.0.0.2:443", Endpoint("h.example", 443, addresses=("10.0.0.3",))))
    assert found.pairs() == {("10.0.0.2", 443)}
