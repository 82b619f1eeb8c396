"""Name lookups: allowed questions, usable answers, and rejected answers."""

from __future__ import annotations

import ipaddress

import pytest

RESOLVING = __file__.replace("test_names.py", "name_lookups.py")
CLIENT_FILE = __file__.replace("test_names.py", "clients.py")
ZONE = {
    "api.example.com": {"A": ["203.0.113.5"]},
    "two.example.com": {"A": ["203.0.113.5", "203.0.113.6"]},
    "dual.example.com": {"A": ["203.0.113.5"], "AAAA": ["2001:db8::5"]},
    "alias.example.com": {"CNAME": "target.example.net"},
    "target.example.net": {"A": ["203.0.113.7"]},
    "mixed.example.com": {"A": ["127.0.0.1", "203.0.113.5", "169.254.169.254"]},
    "deep.sub.example.com": {"A": ["203.0.113.8"]},
    "example.com": {"A": ["203.0.113.1"]},
    "evil.example.net": {"A": ["203.0.113.66"]},
    "broken.example.com": {"A": ["198.51.100.1", "203.0.113.5"]},
    "sly.example.com": {"CNAME": "inner.example.net"},
    "inner.example.net": {"A": ["169.254.169.254"]},
    "5.113.0.203.in-addr.arpa": {"PTR": ["api.example.com."]},
}
FORBIDDEN = (
    *("127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.1.1", "224.0.0.251", "239.1.1.1"),
    *("255.255.255.255", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    *("::1", "::", "fe80::1", "ff02::1", "fd00:ec2::254"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
)


def lookups(world):
    """Look up each of the names in every way."""
    kinds, names, rules = world.args
    resolving = world.load(RESOLVING)
    tables = {"lookups": ("LOOKUPS", "ON_LOOPS"), "dials": ("DIALS", "LOOP_DIALS")}
    told = {}
    for name in names:
        plain, loops = (resolving[table] for table in tables[kinds])
        told[name] = world.under([rule(*one) for one in rules], resolving["ways"](plain, loops, name, run_async))
    return told


def quiet(world):
    """Ask questions that may fail, but must not be sent."""
    import socket

    host = world.args[0]
    actions = {
        "getfqdn": lambda: socket.getfqdn(host),
        "getnameinfo": lambda: socket.getnameinfo((host, 80), 0),
        "numeric": lambda: socket.getaddrinfo(host, 80, flags=socket.AI_NUMERICHOST),
    }
    return world.under([], actions)


def by_hand(world):
    """Send a handmade question to the known resolver."""
    import socket

    packet = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04evil\x07example\x03net\x00\x00\x01\x00\x01"

    def datagram():
        with socket.socket(type=socket.SOCK_DGRAM) as made:
            made.sendto(packet, ("127.0.0.1", 53))

    def connected():
        with socket.socket(type=socket.SOCK_DGRAM) as made:
            made.connect(("127.0.0.1", 53))
            made.send(packet)

    actions = {"sendto": datagram, "connect": connected, "tcp": lambda: socket.create_connection(("127.0.0.1", 53))}
    return world.under([rule("api.example.com", "connect")], actions)


def pinning(world):
    """Return what a looked-up name allows, step by step, in one guard and in the next."""
    import socket

    def dial(host, port):
        with socket.create_connection((host, port), timeout=5) as made:
            return made.getpeername()[0]

    steps = {
        "address, before": lambda: dial("203.0.113.5", 80),
        "name": lambda: dial("api.example.com", 80),
        "address, after": lambda: dial("203.0.113.5", 80),
        "other port": lambda: dial("203.0.113.5", 8080),
        "other port by name": lambda: dial("api.example.com", 8080),
        "other address": lambda: dial("203.0.113.6", 80),
    }
    first = world.under([rule("api.example.com:80", "connect")], steps)["seen"]
    stranger = world.under([rule("evil.example.net", "connect")], {"address": steps["address, after"]})["seen"]
    by_url = world.under(
        [rule("http://api.example.com/allowed", "receive")],
        {
            "name": lambda: socket.gethostbyname("api.example.com"),
            "dial": steps["name"],
            "address": steps["address, after"],
        },
    )["seen"]
    return {"first": first, "stranger": stranger, "by url": by_url}


def lifetime(world):
    """Connect to an address soon, a little later and much later after its lookup, and after another lookup."""
    import os
    import socket

    def dial(host):
        with socket.create_connection((host, 80), timeout=5) as made:
            return made.getpeername()[0]

    def after(seconds, host):
        os.environ["LATER"] = str(seconds)
        return outcome(dial, host)

    steps = {
        "name": lambda: after(0, "api.example.com"),
        "soon": lambda: after(60, "203.0.113.5"),
        "much later": lambda: after(24 * 3600, "203.0.113.5"),
        "name again": lambda: after(24 * 3600, "api.example.com"),
        "address again": lambda: after(24 * 3600, "203.0.113.5"),
    }
    return world.under([rule("api.example.com:80", "connect")], steps)["seen"]


def fall_back(world):
    """Use each client with a port on which only one of a name's addresses responds."""
    rules = [rule("http://dual.example.com:81/allowed", "receive")]
    told = {}
    for client, forms in world.load(CLIENT_FILE)["CLIENTS"].items():
        form, recipe = next(reversed(forms.items()))
        fetch = recipe(world.places["ca"])
        url = "http://dual.example.com:81/allowed"
        told[f"{client} {form}"] = world.guard(*rules).run(status, fetch, url)
    return told


def status(fetch, url):
    """Return the status, or the denial behind the client's error."""
    try:
        answer = fetch("GET", url)
        return (run_async(answer) if hasattr(answer, "__await__") else answer)[0]
    except Exception as error:
        return tell(denial_behind(error))


def answers(world):
    """Return the remaining answers for some names."""
    names, rules = world.args
    resolve = world.load(RESOLVING)["LOOKUPS"]["getaddrinfo"]
    return world.under([rule(*one) for one in rules], {name: lambda name=name: resolve(name) for name in names})["seen"]


def several(world):
    """Connect to each address of a name; an unreachable one fails as usual."""
    import socket

    def dial(host):
        with socket.create_connection((host, 80), timeout=5) as made:
            return made.getpeername()[0]

    names = ("two.example.com", "dual.example.com", "broken.example.com")
    steps = {name: lambda name=name: dial(name) for name in names}
    there = ("203.0.113.5", "203.0.113.6", "2001:db8::5", "198.51.100.1", "203.0.113.7")
    steps |= {address: lambda address=address: dial(address) for address in there}
    return world.under([rule(name, "connect") for name in names], steps)["seen"]


def approved(world):
    """Let a decider approve one name on one port."""
    import socket

    from democrai_sandbox import configure_guard

    asked = []

    class Approver:
        def decide(self, question):
            asked.append([question.operation, question.target, question.register_request])
            return question.target in {"evil.example.net:80", "203.0.113.66:80"}

    configure_guard(decider=Approver())

    def dial(port):
        with socket.create_connection(("evil.example.net", port), timeout=5) as made:
            return made.getpeername()[0]

    told = world.under([], {"approved": lambda: dial(80), "other port": lambda: dial(8080)})
    return told["seen"], asked


@pytest.fixture(scope="module")
def always(tmp_path_factory, namespace):
    """Names that need no rule, looked up once for the tests below."""
    from tests.guard.network.harness import TownCase

    names = ["localhost", "LocalHost", "workbench"]
    return TownCase(tmp_path_factory.mktemp("always"), namespace).run(lookups, "lookups", names, [], zone=ZONE)


class TestAsking:
    @pytest.mark.parametrize("kind", ["lookups", "dials"])
    def test_a_name_without_a_rule_is_not_looked_up(self, town, kind):
        """No function sends a question, whether or not the name exists."""
        names = ["evil.example.net", "c2vjcmv0.evil.example.net", "listed.example.com"]
        rules = [["api.example.com", "connect"], ["http://api.example.com/x", "receive", "send"]]
        for name, told in town.run(lookups, kind, names, rules, zone=ZONE).items():
            wrong = {
                way: verdict
                for way, verdict in told["seen"].items()
                if not str(verdict).startswith(f"denied connect {name}")
            }
            assert wrong == {}, name
            assert told["arrived"] == [], name

    @pytest.mark.parametrize(
        "target",
        ["api.example.com", "api.example.com:443", "API.example.com.", "https://api.example.com/v1", "*.example.com"],
    )
    @pytest.mark.parametrize("operation", ["connect", "receive"])
    def test_a_name_that_a_rule_names_is_looked_up(self, town, target, operation):
        """Form, port, path and operation of the rule do not matter."""
        told = town.run(lookups, "lookups", ["api.example.com"], [[target, operation]], zone=ZONE)["api.example.com"]
        wrong = {way: found for way, found in told["seen"].items() if found != ["203.0.113.5"]}
        assert wrong == {}
        assert {entry["name"] for entry in told["arrived"]} == {"api.example.com", "5.113.0.203.in-addr.arpa"}

    def test_a_wildcard_names_what_is_below_it(self, town):
        """One or more labels below, not the name itself, and no name with merely the same ending."""
        names = ["deep.sub.example.com", "example.com", "evilexample.com"]
        seen = town.run(answers, names, [["*.example.com", "receive"]], zone=ZONE)
        assert seen["deep.sub.example.com"] == ["203.0.113.8"]
        assert seen["example.com"] == "denied connect example.com:80"
        assert seen["evilexample.com"] == "denied connect evilexample.com:80"

    def test_localhost_and_the_machines_own_name_always_resolve(self, always):
        """Without any rule, in any case, and without asking a server."""
        for name in ("localhost", "LocalHost", "workbench"):
            for way, found in always[name]["seen"].items():
                assert set(found) <= {"127.0.0.1", "::1", "127.0.1.1"}, (name, way, found)
            assert always[name]["arrived"] == []

    def test_an_address_is_not_a_name(self, town):
        """An address needs no rule for the lookup; connecting to it is checked."""
        seen = town.run(answers, ["203.0.113.5", "127.0.0.1", "2001:db8::5", "::1"], [], zone=ZONE)
        assert seen == {address: [address] for address in seen}
        assert town.arrived == []

    def test_questions_that_swallow_errors_do_not_leave_either(self, town):
        """getfqdn returns the name, as if it did not exist."""
        told = town.run(quiet, "evil.example.net", zone=ZONE)
        assert told["seen"]["getfqdn"] == "evil.example.net"
        assert told["arrived"] == []

    def test_a_question_made_by_hand_needs_a_rule_for_the_resolver(self, town):
        """Port 53 is a port like any other."""
        told = town.run(by_hand, zone=ZONE)
        assert set(told["seen"].values()) == {"denied connect 127.0.0.1:53"}
        assert told["arrived"] == []

    def test_an_approval_permits_the_lookup_and_the_connection(self, town):
        """The decider is asked for host and port; its approval covers exactly these."""
        seen, asked = town.run(approved, zone=ZONE)
        assert seen == {"approved": "203.0.113.66", "other port": "denied connect evil.example.net:8080"}
        assert asked[0] == ["connect", "evil.example.net:80", True]

    def test_without_a_guard_every_way_asks(self, town):
        """The functions themselves work."""
        told = town.run(lookups, "lookups", ["api.example.com"], [], zone=ZONE, guarded=False)["api.example.com"]
        assert {tuple(found) for found in told["seen"].values()} == {("203.0.113.5",)}
        assert len(told["arrived"]) >= len(told["seen"])


class TestPinning:
    def test_what_a_name_resolved_to_may_be_dialled(self, town):
        """Not before its lookup, only on the rule's port, and no other address. The denial contains the name."""
        seen = town.run(pinning, zone=ZONE)["first"]
        assert seen == {
            "address, before": "denied connect 203.0.113.5:80",
            "name": "203.0.113.5",
            "address, after": "203.0.113.5",
            "other port": "denied connect api.example.com:8080",
            "other port by name": "denied connect api.example.com:8080",
            "other address": "denied connect 203.0.113.6:80",
        }

    def test_the_answer_permits_nothing_to_a_subject_without_the_rule(self, town):
        """An address that another subject looked up stays closed."""
        assert town.run(pinning, zone=ZONE)["stranger"] == {"address": "denied connect 203.0.113.5:80"}

    def test_a_url_rule_resolves_and_does_not_dial(self, town):
        """The name may be looked up, but a raw socket may not be opened."""
        assert town.run(pinning, zone=ZONE)["by url"] == {
            "name": "203.0.113.5",
            "dial": "denied connect api.example.com:80",
            "address": "denied connect api.example.com:80",
        }

    def test_every_address_of_a_name_may_be_dialled(self, town):
        """Both families; an unreachable address fails as usual, and the next one is tried."""
        seen = town.run(several, zone=ZONE)
        assert seen["two.example.com"] in {"203.0.113.5", "203.0.113.6"}
        assert seen["dual.example.com"] in {"203.0.113.5", "2001:db8::5"}
        assert seen["broken.example.com"] == "203.0.113.5"
        assert [seen[address] for address in ("203.0.113.5", "203.0.113.6", "2001:db8::5")] == [
            *("203.0.113.5", "203.0.113.6", "2001:db8::5")
        ]
        assert seen["198.51.100.1"] == "OSError:EHOSTUNREACH"
        assert seen["203.0.113.7"] == "denied connect 203.0.113.7:80"

    def test_an_answer_does_not_last_for_ever(self, town, clock):
        """After a while the name must be looked up again."""
        assert town.run(lifetime, zone=ZONE, **clock) == {
            "name": "203.0.113.5",
            "soon": "203.0.113.5",
            "much later": "denied connect 203.0.113.5:80",
            "name again": "203.0.113.5",
            "address again": "203.0.113.5",
        }

    def test_the_next_address_is_tried_within_the_same_request(self, town):
        """A name of both families whose IPv6 address does not respond: every client tries the other."""
        for name, told in town.run(fall_back, zone=ZONE).items():
            assert told == 200, name

    def test_an_alias_is_followed(self, town):
        """The allowed name may be an alias of an undeclared one: its addresses count."""
        seen = town.run(
            answers, ["alias.example.com", "target.example.net"], [["alias.example.com", "connect"]], zone=ZONE
        )
        assert seen == {
            "alias.example.com": ["203.0.113.7"],
            "target.example.net": "denied connect target.example.net:80",
        }


class TestForbiddenAnswers:
    NAMES = {f"a{number}.example.com": address for number, address in enumerate(FORBIDDEN)}
    ZONE = {name: {"AAAA" if ":" in address else "A": [address]} for name, address in NAMES.items()}

    def test_a_name_never_leads_inside(self, town):
        """Loopback, link-local, metadata, multicast, unspecified, also as IPv6: the denial names the address."""
        seen = town.run(answers, list(self.NAMES), [["*.example.com", "connect", "receive", "send"]], zone=self.ZONE)
        wrong = {}
        for name, address in self.NAMES.items():
            mapped = getattr(ipaddress.ip_address(address), "ipv4_mapped", None)
            shown = {f"denied connect {one}{port}" for one in (address, mapped) for port in ("", ":80")}
            shown |= {f"denied connect [{address}]:80"}
            if seen[name] not in shown:
                wrong[address] = seen[name]
        assert wrong == {}

    @pytest.mark.parametrize(
        ("rules", "opens"),
        [
            (["127.0.0.1", "169.254.169.254", "fe80::1", "64:ff9b::7f00:1"], True),
            (["127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10", "64:ff9b::/96"], True),
            (["0.0.0.0/0", "::/0"], False),
        ],
        ids=["literally", "by a range", "everything"],
    )
    def test_unless_a_rule_names_the_address(self, town, rules, opens):
        """Any operation counts. A range of everything names no address."""
        named = {"127.0.0.1", "169.254.169.254", "::1", "fe80::1", "64:ff9b::7f00:1"}
        names = [name for name, address in self.NAMES.items() if address in named]
        declared = [["*.example.com", "connect"], *([one, "receive"] for one in rules)]
        seen = town.run(answers, names, declared, zone=self.ZONE)
        assert {name: found == [self.NAMES[name]] for name, found in seen.items()} == dict.fromkeys(names, opens)

    def test_private_networks_are_ordinary(self, town):
        """Names inside a company resolve to them."""
        zone = {
            "a.example.com": {"A": ["10.0.0.5"]},
            "b.example.com": {"A": ["192.168.1.5"]},
            "c.example.com": {"AAAA": ["fd12::5"]},
        }
        seen = town.run(answers, list(zone), [["*.example.com", "receive"]], zone=zone)
        assert seen == {"a.example.com": ["10.0.0.5"], "b.example.com": ["192.168.1.5"], "c.example.com": ["fd12::5"]}

    def test_of_several_answers_only_the_bad_ones_are_dropped(self, town):
        """The remaining addresses may be used."""
        seen = town.run(answers, ["mixed.example.com", "sly.example.com"], [["*.example.com", "connect"]], zone=ZONE)
        assert seen["mixed.example.com"] == ["203.0.113.5"]
        assert seen["sly.example.com"].startswith("denied connect 169.254.169.254")
