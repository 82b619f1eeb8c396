"""Names and addresses: the destinations of endpoints, and slow name servers that do not block the helper."""

from __future__ import annotations

import threading
import time

from democrai_sandbox.kernel.helper.iptables import Allow
from democrai_sandbox.kernel.helper.policy import PolicyEndpoint, Resolver, name_servers, system_lookup
from tests.services.rows import rows


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Names(dict):
    """A name server with a dictionary, which records its queries."""

    def __init__(self, **names):
        super().__init__({name.replace("_", "."): value for name, value in names.items()})
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        if name not in self:
            raise OSError("no such name")
        return self[name]


def resolved(resolver, *endpoints, **options):
    resolver.ask(endpoints, **{"patient": True, **options})
    return resolver.resolve(endpoints)


def addresses(resolution):
    return sorted(each.address for each in resolution.allowed)


def test_a_name_comes_to_all_of_its_addresses_once():
    names = Names(api_example=("192.0.2.1", "2001:db8::1", "192.0.2.1"))
    found = resolved(
        Resolver(names), PolicyEndpoint("api.example", 443), PolicyEndpoint("api.example", 443, source="other")
    )
    assert found.allowed == {Allow("tcp", "192.0.2.1", 443), Allow("tcp", "2001:db8::1", 443)}
    assert names.asked == ["api.example"]


def test_an_address_needs_no_lookup():
    names = Names()
    found = resolved(Resolver(names), PolicyEndpoint("192.0.2.7", 53, "udp"), PolicyEndpoint("2001:db8::7", 1))
    assert found.allowed == {Allow("udp", "192.0.2.7", 53), Allow("tcp", "2001:db8::7", 1)}
    assert not names.asked


@rows("host", ["localhost", "127.0.0.1", "::1"])
def test_the_spellings_of_this_machine_are_one(host):
    found = resolved(Resolver(Names()), PolicyEndpoint(host, 6379))
    assert addresses(found) == ["127.0.0.1", "::1"]


def test_what_the_application_has_resolved_is_added():
    names = Names(api_example=("192.0.2.1",))
    found = resolved(Resolver(names), PolicyEndpoint("api.example", 443, addresses=("192.0.2.9",)))
    assert addresses(found) == ["192.0.2.1", "192.0.2.9"]


def test_an_unknown_name_is_reported_and_the_others_stand():
    found = resolved(
        Resolver(Names(a_example=("192.0.2.1",))), PolicyEndpoint("a.example", 1), PolicyEndpoint("b.example", 2)
    )
    assert found.unresolved == ("b.example",)
    assert addresses(found) == ["192.0.2.1"]


@rows("address", ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"])
def test_a_name_server_cannot_open_this_machine_or_its_link(address, tmp_path):
    resolver = Resolver(Names(evil_example=(address,)), hosts=str(tmp_path / "none"))
    found = resolved(resolver, PolicyEndpoint("evil.example", 6379, addresses=(address,)))
    assert not found.allowed
    assert found.withheld == found.unresolved == ("evil.example",)


def test_the_machines_own_file_of_hosts_can_name_this_machine(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.1.1 Box.example box # 1\n\n192.0.2.1 other\n")
    resolver = Resolver(Names(box_example=("127.0.1.1", "127.0.0.9")), hosts=str(hosts))
    found = resolved(resolver, PolicyEndpoint("box.example", 80))
    assert addresses(found) == ["127.0.1.1"]
    assert found.withheld == ("box.example",)


def test_a_name_that_fails_keeps_its_addresses_for_a_while_and_not_for_ever():
    clock, names = Clock(), Names(api_example=("192.0.2.1",))
    resolver = Resolver(names, clock=clock, keep_seconds=100)
    endpoint = PolicyEndpoint("api.example", 443)
    assert addresses(resolved(resolver, endpoint)) == ["192.0.2.1"]
    names.clear()
    clock.now += 99
    found = resolved(resolver, endpoint, fresh=0)
    assert addresses(found) == ["192.0.2.1"]
    assert not found.unresolved
    clock.now += 2
    assert resolved(resolver, endpoint, fresh=0).unresolved == ("api.example",)


def test_an_address_that_left_the_answer_is_kept_as_long():
    clock, names = Clock(), Names(api_example=("192.0.2.1",))
    resolver = Resolver(names, clock=clock, keep_seconds=100)
    endpoint = PolicyEndpoint("api.example", 443)
    resolved(resolver, endpoint)
    names["api.example"] = ("192.0.2.2",)
    clock.now += 60
    assert addresses(resolved(resolver, endpoint, fresh=0)) == ["192.0.2.1", "192.0.2.2"]
    clock.now += 60
    assert addresses(resolved(resolver, endpoint, fresh=0)) == ["192.0.2.2"]


def test_a_name_is_not_asked_for_again_while_it_is_fresh():
    clock, names = Clock(), Names(api_example=("192.0.2.1",))
    resolver = Resolver(names, clock=clock)
    for _ in range(3):
        resolved(resolver, PolicyEndpoint("api.example", 443), fresh=30)
    clock.now += 31
    resolved(resolver, PolicyEndpoint("api.example", 443), fresh=30)
    assert len(names.asked) == 2


def test_a_name_server_that_hangs_is_waited_for_once_and_its_late_answer_is_taken():
    go_on = threading.Event()

    def hanging(name):
        assert go_on.wait(30)
        return ("192.0.2.1",)

    resolver, endpoint = Resolver(hanging), PolicyEndpoint("slow.example", 443)
    assert resolved(resolver, endpoint, seconds=0.3).unresolved == ("slow.example",)
    start = time.monotonic()
    assert resolved(resolver, endpoint, seconds=20).unresolved == ("slow.example",)
    assert time.monotonic() - start < 10
    go_on.set()
    end = time.monotonic() + 30
    while resolver.resolve([endpoint]).unresolved:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert addresses(resolver.resolve([endpoint])) == ["192.0.2.1"]


def test_what_is_known_or_told_is_not_waited_for():
    go_on, asked = threading.Event(), []

    def slow_the_second_time(name):
        asked.append(name)
        if len(asked) > 1:
            go_on.wait(60)
        return ("192.0.2.1",)

    resolver = Resolver(slow_the_second_time)
    known, told = PolicyEndpoint("known.example", 1), PolicyEndpoint("told.example", 2, addresses=("192.0.2.2",))
    start = time.monotonic()
    try:
        assert addresses(resolved(resolver, known, patient=False, seconds=30)) == ["192.0.2.1"]
        found = resolved(resolver, known, told, patient=False, fresh=0, seconds=30)
    finally:
        go_on.set()
    assert addresses(found) == ["192.0.2.1", "192.0.2.2"]
    assert time.monotonic() - start < 15


def test_many_names_that_hang_take_few_threads_and_little_time():
    go_on = threading.Event()
    before = threading.active_count()

    def hanging(name):
        go_on.wait(60)
        raise OSError("too late")

    resolver = Resolver(hanging)
    many = [PolicyEndpoint(f"n{number}.example", 443) for number in range(500)]
    start = time.monotonic()
    try:
        assert len(resolved(resolver, *many, seconds=0.3).unresolved) == 500
        assert time.monotonic() - start < 10
        assert threading.active_count() - before <= 8
    finally:
        go_on.set()


def test_the_system_is_asked_for_names():
    assert "127.0.0.1" in system_lookup("localhost") or "::1" in system_lookup("localhost")


def test_name_servers_are_read_with_both_protocols(tmp_path):
    file = tmp_path / "resolv.conf"
    file.write_text("# x\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver nonsense\nnameserver\nsearch a\n")
    assert name_servers(str(file)) == {
        Allow(protocol, address, 53) for protocol in ("tcp", "udp") for address in ("192.0.2.53", "fe80::1")
    }


def test_without_name_servers_this_machine_is_asked(tmp_path):
    assert {each.address for each in name_servers(str(tmp_path / "none"))} == {"127.0.0.1"}
