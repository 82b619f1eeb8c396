"""Listening: loopback and client ports need no rule, everything else does."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def listening(world):
    """Bind and listen, on loopback and beyond."""
    import asyncio
    import socket

    import uvloop

    port, rules = world.args

    def bound(host, number, kind=socket.SOCK_STREAM, listen=False):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, kind) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, number))
            if listen:
                made.listen()

    async def served(host, number):
        server = await asyncio.start_server(lambda reader, writer: None, host, number)
        server.close()

    def served_by_uvloop(host, number):
        run_async(served(host, number), uvloop.new_event_loop)

    def unbound():
        with socket.socket() as made:
            made.listen()

    def copied():
        with socket.socket() as made:
            made.bind(("0.0.0.0", 0))
            with made.dup() as copy:
                copy.listen()

    actions = {
        "loopback": lambda: bound("127.0.0.1", 0, listen=True),
        "loopback port": lambda: bound("127.0.0.1", port, listen=True),
        "other loopback": lambda: bound("127.0.0.2", port, listen=True),
        "localhost": lambda: bound("localhost", port, listen=True),
        "ipv6 loopback": lambda: bound("::1", port, listen=True),
        "udp loopback": lambda: bound("127.0.0.1", port, socket.SOCK_DGRAM),
        "create_server": lambda: socket.create_server(("127.0.0.1", port)).close(),
        "start_server": lambda: served("127.0.0.1", port),
        "uvloop server": lambda: served_by_uvloop("127.0.0.1", port),
        "client port": lambda: bound("0.0.0.0", 0),
        "client port, empty": lambda: bound("", 0),
        "client port, udp": lambda: bound("", 0, socket.SOCK_DGRAM),
        "beyond": lambda: bound("0.0.0.0", port),
        "beyond, empty": lambda: bound("", port),
        "beyond, udp": lambda: bound("0.0.0.0", port, socket.SOCK_DGRAM),
        "beyond, ipv6": lambda: bound("::", port),
        "beyond, mapped": lambda: bound("::ffff:0.0.0.0", port),
        "beyond, create_server": lambda: socket.create_server(("0.0.0.0", port)).close(),
        "beyond, start_server": lambda: served("0.0.0.0", port),
        "beyond, uvloop": lambda: served_by_uvloop("0.0.0.0", port),
        "listen on a client port": lambda: bound("0.0.0.0", 0, listen=True),
        "listen on a client port, ipv6": lambda: bound("::", 0, listen=True),
        "listen on a copy": copied,
        "listen on a client port, create_server": lambda: socket.create_server(("0.0.0.0", 0)).close(),
        "listen on a client port, start_server": lambda: served("0.0.0.0", 0),
        "listen without bind": unbound,
    }
    return world.under([rule(*one) for one in rules], actions)["seen"]


def unlike(seen, expected, names=None):
    """Return the unexpected results."""
    return {name: seen[name] for name in names or seen if seen[name] != expected}


class TestListening:
    LOCAL = (
        *("loopback", "loopback port", "other loopback", "localhost", "ipv6 loopback", "udp loopback"),
        *("create_server", "start_server", "uvloop server", "client port", "client port, empty", "client port, udp"),
    )
    BEYOND = ("beyond", "beyond, empty", "beyond, udp", "beyond, mapped", "beyond, start_server", "beyond, uvloop")
    # The standard library raises a different error with the same number.
    REWORDED = ("beyond, create_server",)

    def test_loopback_and_client_ports_are_ordinary(self, net, free_port):
        """They need no rule."""
        seen = net.run(listening, free_port, [])
        assert unlike(seen, "ok", self.LOCAL) == {}

    def test_beyond_loopback_it_needs_a_rule(self, net, free_port):
        """The denial names the entry to declare: receive on that address and port."""
        seen = net.run(listening, free_port, [])
        assert unlike(seen, f"denied receive 0.0.0.0:{free_port}", self.BEYOND) == {}
        assert unlike(seen, "PermissionError:EACCES", self.REWORDED) == {}
        assert seen["beyond, ipv6"] == f"denied receive [::]:{free_port}"

    def test_a_client_port_is_not_listened_on(self, net, free_port):
        """A system-assigned port is allowed for a client, but not for a server beyond loopback."""
        seen = net.run(listening, free_port, [])
        assert seen["listen on a client port"].startswith("denied receive 0.0.0.0")
        assert seen["listen without bind"].startswith("denied receive 0.0.0.0")

    def test_the_denial_names_no_port_of_the_systems_choice(self, net, free_port):
        """The port differs in the next run, so the entry to declare is the address without a port."""
        seen = net.run(listening, free_port, [])
        assert seen["listen on a client port"] == "denied receive 0.0.0.0"
        assert seen["listen on a copy"] == "denied receive 0.0.0.0"
        assert seen["listen on a client port, ipv6"] == "denied receive ::"
        assert seen["listen without bind"] == "denied receive 0.0.0.0"

    def test_with_the_rule_that_the_denial_names_it_listens(self, net, free_port):
        """The rule applies to any port, also a system-assigned one."""
        seen = net.run(listening, free_port, [["0.0.0.0", "receive"], ["::", "receive"]])
        assert unlike(seen, "ok", [name for name in seen if name.startswith("listen on a")]) == {}

    @pytest.mark.parametrize("target", ["0.0.0.0:{}", "0.0.0.0"])
    def test_with_a_rule_it_listens(self, net, free_port, target):
        """The rule that the denial names allows it."""
        seen = net.run(listening, free_port, [[target.format(free_port), "receive"]])
        assert unlike(seen, "ok", (*self.BEYOND, *self.REWORDED)) == {}

    def test_connect_is_no_permission_to_listen(self, net, free_port):
        """Neither does a URL rule."""
        rules = [[f"0.0.0.0:{free_port}", "connect", "send"], [f"http://0.0.0.0:{free_port}", "receive"]]
        seen = net.run(listening, free_port, rules)
        assert unlike(seen, f"denied receive 0.0.0.0:{free_port}", self.BEYOND) == {}
