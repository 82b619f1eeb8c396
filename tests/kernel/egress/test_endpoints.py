"""Endpoints of a rule for the packet filter, and rules without endpoints."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.kernel.egress import Endpoint, NotMaterialised, endpoints_of
from democrai_sandbox.kernel.egress.updater import encoded
from democrai_sandbox.kernel.helper.policy import parse_policy
from democrai_sandbox.policy import (
    DEFAULT_PORTS,
    InvalidInputError,
    NetworkTarget,
    TargetKind,
    parse_access,
    parse_declaration,
)
from tests.services.golden import sentence
from tests.services.rows import rows

LOOPBACK = ("127.0.0.1", "::1")


def places(target):
    found = endpoints_of(target, "module:m")
    assert not isinstance(found, NotMaterialised), found
    return [(end.host, end.port, end.protocol) for end in found]


@rows(
    ("target", "host", "port"),
    [
        ("https://api.example.com/v1/reports", "api.example.com", 443),
        ("http://API.Example.com.", "api.example.com", 80),
        ("wss://example.com:8443/x", "example.com", 8443),
        ("https://[2001:DB8::1]/x", "2001:db8::1", 443),
        ("postgresql://db.internal", "db.internal", 5432),
        ("https://bücher.example", "xn--bcher-kva.example", 443),
        ("https://[::ffff:10.0.0.1]", "10.0.0.1", 443),
    ],
)
def test_a_url_is_one_tcp_endpoint_with_the_port_of_its_scheme(target, host, port):
    assert places(target) == [(host, port, "tcp")]


@rows(
    ("target", "host", "port"),
    [
        ("api.example.com:443", "api.example.com", 443),
        ("[2001:db8::1]:853", "2001:db8::1", 853),
        ("10.0.0.1:53", "10.0.0.1", 53),
    ],
)
def test_a_host_with_a_port_is_for_sockets_of_both_protocols(target, host, port):
    assert places(target) == [(host, port, "tcp"), (host, port, "udp")]


@rows("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST."])
def test_the_spellings_of_the_loopback_host_are_one_endpoint_with_both_addresses(host):
    tcp, udp = endpoints_of(f"{host}:6379", "config.redis")
    assert tcp == Endpoint("localhost", 6379, "tcp", "config.redis", LOOPBACK)
    assert udp == Endpoint("localhost", 6379, "udp", "config.redis", LOOPBACK)


@rows(
    "target",
    [
        "*.example.com",
        "*.example.com:443",
        "10.0.0.0/8",
        "2001:db8::/32",
        "unix:/run/app.sock",
        "api.example.com",
        "2001:db8::1",
        "not a target",
        "foo://host",
        "http://2130706433/",
    ],
)
def test_what_no_address_and_port_stands_for_is_told_with_its_reason(target):
    found = endpoints_of(target, "module:m")
    assert isinstance(found, NotMaterialised)
    assert (found.target, found.source) == (target, "module:m")
    sentence(target, found.why)


@rows(
    ("target", "place"),
    [
        ("postgresql+psycopg://app:s3cret@db.internal/app?sslmode=require", ("db.internal", 5432, "tcp")),
        ("postgresql://app:p@ss@db.internal:6432/app", ("db.internal", 6432, "tcp")),
        ("redis://:s3cret@cache.internal/0", ("cache.internal", 6379, "tcp")),
        ("git+ssh://git@code.internal/x.git", ("code.internal", 22, "tcp")),
        ("https://api.example.com/v1?key=s3cret#x", ("api.example.com", 443, "tcp")),
    ],
)
def test_a_configured_url_gives_its_place_and_leaves_everything_else_out(target, place):
    assert places(target) == [place]


def test_a_url_without_a_host_needs_nothing_of_the_network():
    assert places("sqlite:////var/lib/app.db") == []


def test_a_password_is_in_no_report():
    found = endpoints_of("nosuch://user:s3cret@host/x", "config.x")
    assert isinstance(found, NotMaterialised)
    assert "s3cret" not in repr(found)


def test_rules_about_files_need_nothing_of_the_network_and_rules_about_hosts_do():
    rules = parse_access(
        [
            {"resource_type": "filesystem", "operation": "read", "target": "/srv"},
            {"resource_type": "network", "operation": "connect", "target": "a.example:1"},
        ],
        base=None,
    )
    assert [places(rule) for rule in rules] == [[], [("a.example", 1, "tcp"), ("a.example", 1, "udp")]]


@rows(
    ("values", "pointer"),
    [
        (("", 1), "/host"),
        (("h", 0), "/port"),
        (("h", 65536), "/port"),
        (("h", True), "/port"),
        (("h", "1"), "/port"),
        (("h", 1, "icmp"), "/protocol"),
    ],
)
def test_an_endpoint_that_the_helper_would_refuse_cannot_be_made(values, pointer):
    with pytest.raises(InvalidInputError) as refused:
        Endpoint(*values)
    assert refused.value.problems[0].pointer == pointer


labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)
names = (
    st.lists(labels, min_size=1, max_size=4).map(".".join).filter(lambda name: not name.split(".")[-1][0].isdecimal())
)
addresses = st.ip_addresses().map(lambda a: f"[{a}]" if a.version == 6 else str(a))
ports = st.integers(1, 65535)


@given(st.one_of(names, addresses), ports, st.sampled_from(["", *sorted(DEFAULT_PORTS)]))
def test_whatever_the_matcher_takes_as_host_and_port_the_helper_takes_too(host, port, scheme):
    text = f"{scheme}://{host}:{port}" if scheme else f"{host}:{port}"
    target = parse_declaration(text)
    found = endpoints_of(text, "s")
    assert {end.port for end in found} == {port}
    assert len(found) == (1 if scheme else 2)
    read = parse_policy(encoded(found)).endpoints
    expected = {target.host, "localhost"} | ({"127.0.0.1", "::1"} if target.host in ("0.0.0.0", "::") else set())
    assert {end.host for end in read} <= expected
    assert [tuple(end[:3]) for end in read if end.host == target.host] == [
        end.key for end in found if end.host == target.host and target.host not in ("0.0.0.0", "::")
    ]


@given(st.text(max_size=60))
def test_no_text_makes_it_fail(text):
    found = endpoints_of(text, "s")
    if not isinstance(found, NotMaterialised):
        parse_policy(encoded(found))


@given(st.sampled_from(TargetKind), names, st.one_of(st.none(), ports))
def test_a_parsed_target_is_concrete_exactly_when_it_has_one_host_and_a_port(kind, host, port):
    target = NetworkTarget(kind, scheme="https", host=host, port=port, socket="/x")
    concrete = kind in (TargetKind.URL, TargetKind.HOST) and port is not None
    assert isinstance(endpoints_of(target, "s"), NotMaterialised) is not concrete
