"""Unix sockets are part of the network: connecting needs a rule or a root, binding creates a file."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def unix_sockets(world):
    """Use Unix sockets by path and by abstract name, streams and datagrams, under the given rules."""
    import os
    import socket

    def address(place):
        path = world.places[place]
        return "\0" + path[1:] if path.startswith("@") else path

    def exchange(where):
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(5)
            made.connect(where)
            made.sendall(b"ping")
            return made.recv(16).decode()

    def exchange_ex(where):
        with socket.socket(socket.AF_UNIX) as made:
            made.connect_ex(where)
            made.sendall(b"ping")
            return made.recv(16).decode()

    def sent(where, send):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            send(made, where)

    async def opened(where):
        import asyncio

        reader, writer = await asyncio.open_unix_connection(where)
        writer.write(b"ping")
        answer = await reader.read(16)
        writer.close()
        return answer.decode()

    def with_uvloop(where):
        import uvloop

        return run_async(opened(where), uvloop.new_event_loop)

    def connected(made, where):
        made.connect(where)
        made.send(b"ping")

    os.symlink(world.places["unix"], world.inside("link.sock"))
    datagrams = world.places["unix datagram"]
    actions = {
        "stream": lambda: exchange(address("unix")),
        "stream, bytes": lambda: exchange(os.fsencode(address("unix"))),
        "stream, connect_ex": lambda: exchange_ex(address("unix")),
        "stream, dots": lambda: exchange(os.path.join(world.root, "..", os.path.relpath(address("unix"), world.base))),
        "stream, link": lambda: exchange(world.inside("link.sock")),
        "stream, asyncio": lambda: opened(address("unix")),
        "stream, uvloop": lambda: with_uvloop(address("unix")),
        "abstract": lambda: exchange(address("abstract")),
        "abstract, bytes": lambda: exchange(address("abstract").encode()),
        "sendto": lambda: sent(datagrams, lambda made, where: made.sendto(b"ping", where)),
        "sendmsg": lambda: sent(datagrams, lambda made, where: made.sendmsg([b"ping"], [], 0, where)),
        "connected": lambda: sent(datagrams, connected),
    }
    return world.under([rule(*one) for one in world.args[0]], actions)


def own_unix_sockets(world):
    """Bind Unix sockets as a subject: below its root, in its temporary folder, outside, and abstract."""
    import os
    import socket

    def serve_and_dial(path):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            server.listen()
            client.connect(path)
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"x")
                return accepted.recv(1).decode()

    def bind(path):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
            return "anonymous" if path == "" else None

    name = f"own-{os.getpid()}"
    actions = {
        "below the root": lambda: serve_and_dial(world.inside("own.sock")),
        "temporary": lambda: serve_and_dial(os.path.join(world.tmp, "own.sock")),
        "outside": lambda: bind(world.out("own.sock")),
        "through a link": lambda: bind(world.inside("door", "own.sock")),
        "abstract": lambda: bind(f"\0{name}"),
        "autobind": lambda: bind(""),
    }
    os.symlink(world.outside, world.inside("door"))
    seen = world.under([], actions)["seen"]
    permitted = world.under([rule(f"unix:@{name}", "receive")], {"abstract": actions["abstract"]})["seen"]
    return {**seen, "permitted": permitted["abstract"], "made": os.path.exists(world.out("own.sock")), "name": name}


def unlike(seen, expected, names=None):
    """Return the unexpected results."""
    return {name: seen[name] for name in names or seen if seen[name] != expected}


class TestUnixSockets:
    BY_PATH = (
        *("stream", "stream, bytes", "stream, connect_ex", "stream, dots", "stream, link"),
        *("stream, asyncio", "stream, uvloop"),
    )
    ABSTRACT = ("abstract", "abstract, bytes")
    DATAGRAMS = ("sendto", "sendmsg", "connected")

    def test_undeclared_it_is_denied(self, net):
        """By path, through a link or dots, abstract, as datagram: the target is the resolved path."""
        told = net.run(unix_sockets, [])
        seen = told["seen"]
        assert unlike(seen, f"denied connect unix:{net.places['unix']}", self.BY_PATH) == {}
        assert unlike(seen, f"denied connect unix:{net.places['abstract']}", self.ABSTRACT) == {}
        assert unlike(seen, f"denied connect unix:{net.places['unix datagram']}", self.DATAGRAMS) == {}
        assert told["arrived"] == []

    def test_declared_it_opens(self, net):
        """The rule names the socket; every spelling of its path works."""
        names = ("unix", "abstract", "unix datagram")
        told = net.run(unix_sockets, [[f"unix:{net.places[name]}", "connect"] for name in names])
        assert unlike(told["seen"], "ping", (*self.BY_PATH, *self.ABSTRACT)) == {}
        assert unlike(told["seen"], "ok", self.DATAGRAMS) == {}
        assert len([entry for entry in told["arrived"] if entry["event"] == "datagram"]) == len(self.DATAGRAMS)

    def test_a_rule_opens_its_own_socket_only(self, net):
        """Neither the folder nor another socket in it."""
        told = net.run(unix_sockets, [[f"unix:{net.places['unix']}", "connect"]])
        assert unlike(told["seen"], "ping", self.BY_PATH) == {}
        denied = {told["seen"][name].partition(" unix:")[0] for name in (*self.ABSTRACT, *self.DATAGRAMS)}
        assert denied == {"denied connect"}

    def test_binding_is_making_a_file(self, net):
        """Below a root it works and accepts connections; outside it is a filesystem denial and creates nothing."""
        seen = net.run(own_unix_sockets)
        assert seen["below the root"] == "x"
        assert seen["outside"] == seen["through a link"] == "FilesystemDenied"
        assert seen["made"] is False

    def test_the_temporary_folder_is_everybodys(self, net):
        """A socket there does not belong to the subject: the runtime provides the folder, and it is not declared."""
        seen = net.run(own_unix_sockets)
        assert seen["temporary"] == f"denied connect unix:{net.base}/tmp/own.sock"

    def test_an_abstract_name_is_listened_on_by_rule(self, net):
        """All processes share the namespace; a system-assigned name is harmless."""
        seen = net.run(own_unix_sockets)
        assert seen["abstract"] == f"denied receive unix:@{seen['name']}"
        assert seen["permitted"] == "ok"
        assert seen["autobind"] == "anonymous"
