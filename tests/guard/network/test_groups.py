"""Multicast groups: joining one announces it on the link, so it needs a rule that names the group."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def joining(world):
    """Join groups on the loopback interface, which sends no report."""
    import socket
    import struct

    (rules,) = world.args
    four, loopback = socket.inet_aton("239.9.9.9"), socket.inet_aton("127.0.0.1")
    six = socket.inet_pton(socket.AF_INET6, "ff05::99")
    address_four = struct.pack("=HH4s", socket.AF_INET, 0, four).ljust(128, b"\0")
    address_six = struct.pack("=HHI16s", socket.AF_INET6, 0, 0, six).ljust(128, b"\0")
    interface = struct.pack("=I4x", 1)

    def joined(family, level, option, value):
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.setsockopt(level, option, value)

    actions = {
        "four": lambda: joined(socket.AF_INET, 0, 35, four + loopback),
        "four by six": lambda: joined(socket.AF_INET6, 0, 35, four + loopback),
        "four, one source": lambda: joined(socket.AF_INET, 0, 39, four + loopback + socket.inet_aton("127.0.0.5")),
        "four, group": lambda: joined(socket.AF_INET, 0, 42, interface + address_four),
        "six": lambda: joined(socket.AF_INET6, 41, 20, six + struct.pack("=I", 1)),
        "six, group": lambda: joined(socket.AF_INET6, 41, 42, interface + address_six),
        "a buffer": lambda: joined(socket.AF_INET, 0, 35, bytearray(four + loopback)),
        "cut off": lambda: joined(socket.AF_INET, 0, 42, interface),
        "ordinary": lambda: joined(socket.AF_INET, 0, socket.IP_MULTICAST_TTL, 1),
    }
    return world.under([rule(*one) for one in rules], actions)["seen"]


FOUR, SIX = ("four", "four by six", "four, one source", "four, group"), ("six", "six, group")


def test_no_group_is_joined_without_a_rule(net):
    """A rule for another address is not enough. The denial names the entry to declare."""
    for rules in ([], [["239.9.9.8", "connect"], ["a.example", "connect"]]):
        seen = net.run(joining, rules)
        assert {seen[name] for name in FOUR} == {"denied connect 239.9.9.9"}
        assert {seen[name] for name in SIX} == {"denied connect ff05::99"}
        assert {seen[name] for name in ("a buffer", "cut off")} == {"denied connect socket:option"}
        assert seen["ordinary"] == "ok"


def test_a_group_that_a_rule_names_is_joined(net):
    seen = net.run(joining, [["239.9.9.9", "connect"], ["ff05::99", "connect"]])
    assert {seen[name] for name in (*FOUR, *SIX)} == {"ok"}
