"""Servers of a separate network namespace: every address and every name leads to them.

Run as a script inside the namespace, it reads commands as lines of JSON: a zone for the name server and a command to
run, or a fork of a process of tests.services.forks. It replies with the result and all arrivals.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
HOST_NAME = "workbench"
FILES = {
    "resolv.conf": "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n",
    "nsswitch.conf": "hosts: files dns\n",
    "hosts": f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {HOST_NAME}\n203.0.113.9 listed.example.com\n",
}
SET_UP = (
    "link set lo up",
    "route add local default dev lo",
    "-6 route add local default dev lo",
    # One unreachable network, for names with partly unreachable addresses.
    "route add unreachable 198.51.100.0/24",
)


def set_up(directory: Path) -> None:
    """Set up this namespace. Fails where namespaces do not work."""
    for arguments in SET_UP:
        subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
    for name, text in FILES.items():
        (directory / name).write_text(text)
        subprocess.run(["mount", "--bind", str(directory / name), f"/etc/{name}"], check=True, capture_output=True)
    socket.sethostname(HOST_NAME)


def make_town(directory: Path):
    """Return the servers, not yet running."""
    from tests.guard.network.servers.all_servers import Bed
    from tests.guard.network.servers.names import NameServer
    from tests.guard.network.servers.plain import Datagrams, Stream

    class Town(Bed):
        async def start(self, certificates):
            anywhere = ("0.0.0.0", "::")
            self.places |= {"ca": str(certificates.bundle), "ipv6": True, "name": HOST_NAME}
            tls = certificates.server_context("http/1.1")
            await self.web("http", anywhere, 80)
            await self.web("other", anywhere, 8080)
            await self.web("ipv4 only", ("0.0.0.0",), 81)
            await self.web("https", anywhere, 443, tls)
            await self.listen("tcp", self.tracked(partial(Stream, "tcp", self.journal)), anywhere, 7)
            await self.control()
            await self.datagrams("udp", Datagrams, ("0.0.0.0", 7))
            self.names = await self.datagrams("dns", NameServer, ("127.0.0.1", 53))

        async def datagrams(self, name, protocol, address):
            made = partial(protocol, name, self.journal)
            transport, server = await self._loop.create_datagram_endpoint(made, local_addr=address)
            self.places[name] = list(address)
            self._accepted.add(server)
            return server

    return Town(directory)


def follow(order: dict, town) -> dict:
    """Run one command or fork in this world and report the result."""
    town.call(town.names.script, order["zone"])
    town.journal.drain()
    if "fork" in order:
        from tests.services.forks import forks

        status = forks(order["child"], tuple(order["modules"])).run(order["fork"])
        return {"code": status, "journal": town.journal.drain()}
    try:
        done = subprocess.run(
            order["command"],
            cwd=order["cwd"],
            env=order["env"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=order["timeout"],
        )
    except subprocess.TimeoutExpired as error:
        told = {"code": "timeout", "out": str(error.stdout), "err": str(error.stderr)}
    else:
        told = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
    return told | {"journal": town.journal.drain()}


def main() -> None:
    """Serve commands until the input ends."""
    directory = Path(sys.argv[1])
    set_up(directory)
    sys.path.insert(0, str(ROOT))
    with make_town(directory) as town:
        os.write(1, json.dumps(town.places).encode() + b"\n")
        while line := sys.stdin.readline():
            os.write(1, json.dumps(follow(json.loads(line), town)).encode() + b"\n")


if __name__ == "__main__":
    main()
