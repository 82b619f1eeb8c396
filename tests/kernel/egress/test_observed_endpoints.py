"""Observed endpoints stay open for a while, as long as they are permitted, and within limits."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from democrai_sandbox.kernel.egress.allowlist import ObservedEndpoints, addresses_of
from tests.services.rows import rows


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def seen(host="a.example", port=443, addresses=("10.0.0.1",), subject="m", kind="module"):
    return SimpleNamespace(subject=subject, subject_kind=kind, host=host, addresses=addresses, port=port)


def hosts(table):
    return sorted({entry.target.host for entry in table.endpoints()})


def test_an_observation_is_new_until_its_addresses_are_known():
    table = ObservedEndpoints()
    assert table.observe(seen())
    assert not table.observe(seen())
    assert table.observe(seen(addresses=("10.0.0.1", "10.0.0.2")))
    assert table.observe(seen(port=80))
    assert table.observe(seen(subject="other"))


def test_it_is_an_endpoint_of_both_protocols_with_its_addresses_and_its_subject():
    table = ObservedEndpoints()
    table.observe(seen(addresses=("10.0.0.1", "2001:DB8::1", "::ffff:10.0.0.2", "fe80::1%eth0")))
    tcp, udp = (entry.target for entry in table.endpoints())
    assert (tcp.host, tcp.port, tcp.protocol, udp.protocol) == ("a.example", 443, "tcp", "udp")
    assert tcp.addresses == ("10.0.0.1", "2001:db8::1", "10.0.0.2", "fe80::1")
    assert tcp.source == "observed:module:m"


@rows(
    ("host", "addresses", "expected"),
    [
        ("0.0.0.0", ("0.0.0.0",), ("127.0.0.1",)),
        ("::", ("::",), ("::1",)),
        ("blocked.example", ("0.0.0.0", "::"), ()),
        ("10.0.0.1", (), ("10.0.0.1",)),
    ],
)
def test_any_address_is_this_machine_when_it_is_dialled_and_nowhere_when_a_name_leads_to_it(host, addresses, expected):
    assert addresses_of(seen(host=host, addresses=addresses)) == expected


def test_it_expires_unless_it_is_observed_again():
    clock = Clock()
    table = ObservedEndpoints(expiry=600, clock=clock)
    table.observe(seen("a.example"))
    table.observe(seen("b.example"))
    clock.now += 400
    table.observe(seen("a.example"))
    assert table.next_expiry() == 200
    clock.now += 201
    assert hosts(table) == ["a.example"]
    assert len(table) == 1
    clock.now += 400
    assert hosts(table) == []
    assert table.next_expiry() is None


def test_a_connection_that_is_open_keeps_its_endpoint():
    clock = Clock()
    used = {("10.0.0.1", 443)}
    table = ObservedEndpoints(expiry=600, clock=clock, in_use=lambda: frozenset(used))
    table.observe(seen())
    clock.now += 601
    assert hosts(table) == ["a.example"]
    used.clear()
    assert hosts(table) == ["a.example"]
    clock.now += 601
    assert hosts(table) == []


def test_what_is_not_permitted_any_more_is_left_out_and_comes_back_when_it_is_again():
    permitted = {("module", "m", "a.example", 443)}
    table = ObservedEndpoints(still_permitted=lambda *key: key in permitted)
    table.observe(seen("a.example"))
    table.observe(seen("b.example"))
    assert hosts(table) == ["a.example"]
    permitted.clear()
    assert hosts(table) == []
    permitted.add(("module", "m", "b.example", 443))
    assert hosts(table) == ["b.example"]


def test_the_oldest_go_when_there_are_too_many():
    table = ObservedEndpoints(capacity=10)
    for number in range(25):
        table.observe(seen(f"h{number}.example", subject=f"m{number}"))
    assert len(table) == 10
    assert "h24.example" in hosts(table) and "h14.example" not in hosts(table)


def test_no_subject_can_push_out_what_belongs_to_the_others():
    table = ObservedEndpoints(capacity=40)
    for number in range(8):
        table.observe(seen("quiet.example", addresses=(f"10.0.0.{number}",), subject="quiet"))
    for number in range(200):
        table.observe(seen(f"h{number}.example", subject="loud"))
        table.observe(seen("many.example", addresses=(f"10.1.0.{number}",), subject="loud"))
    assert len(table) == 18
    quiet = [entry.target for entry in table.endpoints() if entry.source.endswith(":quiet")]
    assert len(quiet[0].addresses) == 8
    many = [entry.target for entry in table.endpoints() if entry.target.host == "many.example"]
    assert many[0].addresses == tuple(f"10.1.0.{number}" for number in range(195, 200))


def test_a_name_without_addresses_is_an_endpoint_all_the_same():
    table = ObservedEndpoints()
    assert table.observe(seen(addresses=()))
    assert not table.observe(seen(addresses=()))
    assert [entry.target.addresses for entry in table.endpoints()] == [(), ()]


def test_many_threads_may_observe_while_it_is_read():
    table = ObservedEndpoints(capacity=50)
    errors = []

    def observe(number):
        try:
            for step in range(300):
                table.observe(seen(f"h{(number * step) % 90}.example", addresses=(f"10.0.{number}.{step % 250}",)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=observe, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(table.endpoints())
    assert not errors
    assert len(table) <= 50
