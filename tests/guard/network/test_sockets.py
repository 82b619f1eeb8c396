"""Sockets: access by a rule in host form, forbidden kinds, and no way around the check."""

from __future__ import annotations

import pytest

DIALLING = __file__.replace("test_sockets.py", "connecting.py")


def dial(world):
    """Connect to an address in every way under the given rules: blocking calls, asyncio and uvloop."""
    transport, address, rules = world.args
    dialling = world.load(DIALLING)
    actions = dialling["ways"](dialling[transport], dialling[f"LOOP_{transport}"], tuple(address), run_async)
    return world.under([rule(*one) for one in rules], actions)


def families(world):
    """Create sockets of every odd kind and return the results."""
    import socket

    def make(numbers):
        socket.socket(*numbers).close()

    import _socket

    def make_native(numbers):
        _socket.socket(*numbers).close()

    kinds = [tuple(numbers) for numbers in world.args[0]]
    actions = {f"{numbers}": lambda numbers=numbers: make(numbers) for numbers in kinds}
    actions |= {f"native {numbers}": lambda numbers=numbers: make_native(numbers) for numbers in kinds}
    return world.under([rule("127.0.0.1", "connect", "send", "receive")], actions)["seen"]


def ordinary_kinds(world):
    """Create usual sockets under a guard without any rule."""
    import socket

    def pair():
        left, right = socket.socketpair()
        with left, right:
            left.sendall(b"x")
            return right.recv(1).decode()

    kinds = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM),
        "tcp, flags": (socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK),
        "tcp, protocol": (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM),
        "udp, protocol": (socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_UDP),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
        "unix datagram": (socket.AF_UNIX, socket.SOCK_DGRAM),
        "default": (),
    }
    actions = {name: lambda numbers=numbers: socket.socket(*numbers).close() for name, numbers in kinds.items()}
    return world.under([], {**actions, "pair": pair})["seen"]


def foreign_sockets(world):
    """Use sockets that the host connected, through the object and through its number."""
    import os
    import socket
    import ssl

    rules = [rule(*one) for one in world.args[0]]
    plain = [socket.create_connection(world.address("tcp"), timeout=5) for _ in range(2)]
    context = ssl.create_default_context(cafile=world.places["ca"])
    tls = context.wrap_socket(socket.create_connection(world.address("https"), timeout=5), server_hostname="127.0.0.1")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect(world.address("udp"))
    left, _right = socket.socketpair()
    plain[1].sendall(b"waiting")
    number = plain[0].fileno()

    def adopt():
        socket.socket(fileno=number).detach()

    def through_number():
        socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM).close()

    actions = {
        "send": lambda: plain[0].send(b"leak") and None,
        "sendall": lambda: plain[0].sendall(b"leak"),
        "sendmsg": lambda: plain[0].sendmsg([b"leak"]) and None,
        "recv": lambda: plain[1].recv(16).decode(),
        "recv_into": lambda: plain[1].recv_into(bytearray(4)) and None,
        "udp send": lambda: datagrams.send(b"leak") and None,
        "tls send": lambda: tls.sendall(b"GET /leak HTTP/1.1\r\nHost: x\r\n\r\n"),
        "pair": lambda: left.sendall(b"leak"),
        "fileno": adopt,
        "fromfd": through_number,
        "os.write": lambda: os.write(number, b"leak") and None,
    }
    world.journal()
    return world.under(rules, {name: actions[name] for name in world.args[1]})


def unlike(seen, expected, names=None):
    """Return the unexpected results."""
    return {name: seen[name] for name in names or seen if seen[name] != expected}


TCP_RULES = [
    ("the address and port", lambda port: f"127.0.0.1:{port}", "127.0.0.1"),
    ("the address", lambda port: "127.0.0.1", "127.0.0.1"),
    ("localhost", lambda port: f"localhost:{port}", "127.0.0.1"),
    ("the range", lambda port: "127.0.0.0/8", "127.0.0.2"),
    ("another loopback address", lambda port: f"127.0.0.3:{port}", "127.0.0.3"),
]


class TestConnecting:
    @pytest.mark.parametrize(("name", "target", "host"), TCP_RULES, ids=[name for name, _, _ in TCP_RULES])
    def test_a_rule_in_host_form_opens_every_way_to_its_address(self, net, name, target, host):
        """Blocking calls, asyncio and uvloop can connect to the declared address."""
        port = net.places["tcp"][1]
        seen = net.run(dial, "TCP", [host, port], [[target(port), "connect"]])["seen"]
        assert unlike(seen, "ping") == {}

    def test_another_port_is_denied_every_way(self, net):
        """The denial is raised, also by connect_ex, and no connection is opened."""
        port, other = net.places["tcp"][1], net.places["sink"][1]
        told = net.run(dial, "TCP", ["127.0.0.1", other], [[f"127.0.0.1:{port}", "connect"]])
        assert unlike(told["seen"], f"denied connect 127.0.0.1:{other}") == {}
        assert told["arrived"] == []

    def test_another_address_is_denied_every_way(self, net):
        """The loopback host is 127.0.0.1 and ::1; the other loopback addresses are separate hosts."""
        port = net.places["tcp"][1]
        told = net.run(dial, "TCP", ["127.0.0.2", port], [[f"127.0.0.1:{port}", "connect"]])
        assert unlike(told["seen"], f"denied connect 127.0.0.2:{port}") == {}
        assert told["arrived"] == []

    @pytest.mark.parametrize("operation", ["receive", "send"])
    def test_without_connect_no_raw_socket(self, net, operation):
        """A host-form rule for another operation does not allow connecting."""
        port = net.places["tcp"][1]
        told = net.run(dial, "TCP", ["127.0.0.1", port], [[f"127.0.0.1:{port}", operation]])
        assert unlike(told["seen"], f"denied connect 127.0.0.1:{port}") == {}
        assert told["arrived"] == []

    def test_a_url_rule_opens_no_raw_socket(self, net):
        """Even a rule that allows everything at that origin does not."""
        port = net.places["http"][1]
        rules = [[f"http://127.0.0.1:{port}", "connect", "receive", "send"]]
        told = net.run(dial, "TCP", ["127.0.0.1", port], rules)
        assert unlike(told["seen"], f"denied connect 127.0.0.1:{port}") == {}
        assert told["arrived"] == []

    def test_without_a_guard_every_way_leads_there(self, net):
        """The calls themselves work."""
        for transport, place in (("TCP", "tcp"), ("UDP", "udp")):
            told = net.run(dial, transport, net.places[place], [], guarded=False)
            assert unlike(told["seen"], "ping") == {}
            assert told["arrived"]


class TestIpv6:
    @pytest.fixture(autouse=True)
    def _ipv6(self, net):
        if not net.places["ipv6"]:
            pytest.skip("no IPv6 on loopback here")

    def test_the_loopback_address_is_the_loopback_host(self, net):
        """A rule for 127.0.0.1 is a rule for ::1."""
        port = net.places["tcp"][1]
        seen = net.run(dial, "TCP", ["::1", port, 0, 0], [[f"127.0.0.1:{port}", "connect"]])["seen"]
        assert unlike(seen, "ping") == {}

    def test_a_mapped_address_is_its_ipv4_address(self, net):
        """It is allowed and denied as that address."""
        port = net.places["tcp"][1]
        seen = net.run(dial, "TCP", ["::ffff:127.0.0.2", port, 0, 0], [[f"127.0.0.2:{port}", "connect"]])["seen"]
        del seen["create connection bound"]  # bound to ::1, it cannot connect to an IPv4 address
        assert unlike(seen, "ping") == {}
        told = net.run(dial, "TCP", ["::ffff:127.0.0.2", port, 0, 0], [[f"127.0.0.1:{port}", "connect"]])
        del told["seen"]["create connection bound"]
        assert unlike(told["seen"], f"denied connect 127.0.0.2:{port}") == {}
        assert told["arrived"] == []

    def test_a_denied_address_is_shown_in_brackets(self, net):
        """The target of the denial has the form of a rule."""
        told = net.run(dial, "TCP", ["2001:db8::1", 80, 0, 0], [])
        assert unlike(told["seen"], "denied connect [2001:db8::1]:80") == {}


class TestDatagrams:
    def test_a_rule_in_host_form_opens_every_way(self, net):
        """Connected or not, with sendto or sendmsg, on a loop or not."""
        port = net.places["udp"][1]
        seen = net.run(dial, "UDP", net.places["udp"], [[f"127.0.0.1:{port}", "connect"]])["seen"]
        assert unlike(seen, "ping") == {}

    def test_everything_else_is_denied(self, net):
        """No datagram is sent without a rule; an address in the call is checked like a connected one."""
        told = net.run(dial, "UDP", net.places["udp"], [["127.0.0.1:9", "connect"]])
        assert unlike(told["seen"], "denied connect 127.0.0.1:{}".format(net.places["udp"][1])) == {}
        assert told["arrived"] == []


ODD_KINDS = {
    "raw icmp": (2, 3, 1),
    "raw tcp": (2, 3, 6),
    "raw ipv6": (10, 3, 58),
    "ping": (2, 2, 1),
    "sctp": (2, 1, 132),
    "udplite": (2, 2, 136),
    "dccp": (2, 6, 33),
    "packet": (17, 3, 768),
    "old packet": (2, 10, 768),
    "netlink": (16, 3, 0),
    "vsock": (40, 1, 0),
    "bluetooth": (31, 1, 3),
    "can": (29, 3, 1),
    "alg": (38, 5, 0),
    "qipcrtr": (42, 2, 0),
    "xdp": (44, 3, 0),
    "unknown family": (99, 1, 0),
    "negative family": (-2, 1, 0),
    "unknown type": (2, 9, 0),
    "unknown protocol": (2, 1, 253),
}


class TestKinds:
    def test_only_internet_and_unix_sockets_are_made(self, net):
        """Others are denied before the kernel is called, by number, for every class."""
        seen = net.run(families, list(ODD_KINDS.values()))
        wrong = {
            name: seen[f"{way}{numbers}"]
            for name, numbers in ODD_KINDS.items()
            for way in ("", "native ")
            if not (
                seen[f"{way}{numbers}"].startswith("denied ")
                and seen[f"{way}{numbers}"].endswith(" socket:{}/{}/{}".format(*numbers))
            )
        }
        assert wrong == {}

    def test_ordinary_sockets_need_no_rule(self, net):
        """Creating one contacts no peer; a pair is connected to itself."""
        seen = net.run(ordinary_kinds)
        assert seen.pop("pair") == "x"
        assert set(seen.values()) == {"ok"}, seen


class TestForeignSockets:
    def test_a_connection_of_the_host_is_not_the_subjects(self, net):
        """Neither sending nor receiving, plain, TLS or datagrams; a number is not accepted as a socket."""
        names = ["send", "sendall", "sendmsg", "recv", "recv_into", "udp send", "tls send", "pair"]
        numbers = ["fileno", "fromfd", "os.write"]
        told = net.run(foreign_sockets, [], names + numbers)
        seen = told["seen"]
        tcp, udp, tls = (net.places[place][1] for place in ("tcp", "udp", "https"))
        assert unlike(seen, f"denied connect 127.0.0.1:{tcp}", names[:5]) == {}
        assert seen["udp send"] == f"denied connect 127.0.0.1:{udp}"
        assert seen["tls send"] == f"denied connect 127.0.0.1:{tls}"
        assert seen["pair"].startswith(("denied ", "FilesystemFdDenied"))
        assert unlike(seen, "FilesystemFdDenied", numbers) == {}
        assert told["arrived"] == []

    def test_one_to_a_permitted_peer_may_be_used(self, net):
        """A rule for its peer makes it usable like the subject's own connection; its number stays closed."""
        port = net.places["tcp"][1]
        told = net.run(foreign_sockets, [[f"127.0.0.1:{port}", "connect"]], ["sendall", "recv", "fromfd"])
        assert told["seen"] == {"sendall": "ok", "recv": "waiting", "fromfd": "FilesystemFdDenied"}
