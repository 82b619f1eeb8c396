"""One of several nodes that share a store and a stream, each under a separate egress allowlist.

    python node.py <folder> <database> <redis url>

Orders come by line: ``approve host:port``, ``revoke``, ``tcp host port``, ``until host port outcome seconds``, ``keep
host port``, ``send``, ``stop``.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time

from democrai_sandbox.access import Access, AccessSettings, Caller
from democrai_sandbox.kernel import os_settings
from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel
from democrai_sandbox.kernel.egress import AllowlistBuilder, SourceEntry
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime import Runtime, RuntimeSettings
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

FOLDER, DATABASE, REDIS = sys.argv[1:]


class Stream:
    """Stream by which a node learns of decisions; a node needs it before anything else."""

    name = "config"

    def endpoints(self):
        return [SourceEntry(REDIS, "config.network.redis")]


def connect(host, port):
    try:
        with socket.create_connection((host, int(port)), timeout=5) as link:
            link.sendall(b"x")
            return "ok" if link.recv(1) == b"x" else "closed"
    except OSError as error:
        return type(error).__name__


def until(host, port, outcome, seconds):
    """Retry until the expected outcome; return the elapsed time."""
    start = time.monotonic()
    while (told := connect(host, port)) != outcome:
        if time.monotonic() - start > float(seconds):
            return f"still {told}"
        time.sleep(0.02)
    return f"{time.monotonic() - start:.3f}"


class Node:
    def __init__(self, access):
        self.access = access
        self.decided = self.kept = None

    def approve(self, target):
        wanted = {"resource_type": "network", "operation": "connect", "target": target}
        with serving(Caller(user_id="ada", role="super")):
            self.decided = self.access.administration.decide_unasked(
                Subject.parse("module:demo"), effect="approval", **wanted
            )
        return "ok"

    def revoke(self):
        with serving(Caller(user_id="ada", role="super")):
            self.access.administration.revoke(self.decided.decision.id)
        return "ok"

    def tcp(self, host, port):
        return connect(host, port)

    def until(self, *words):
        return until(*words)

    def keep(self, host, port):
        self.kept = socket.create_connection((host, int(port)), timeout=5)
        return self.send()

    def send(self):
        try:
            self.kept.sendall(b"x")
            return "ok" if self.kept.recv(1) else "closed"
        except OSError as error:
            return type(error).__name__


async def serve(access, kernel):
    settings = RuntimeSettings(data_dir=f"{FOLDER}/runtime", capture_output=False)
    node = Node(access)
    async with Runtime(settings, access, kernel=kernel, endpoints={"network.redis": REDIS}):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order, *words = line.split()
            if order == "stop":
                return
            print(await asyncio.to_thread(getattr(node, order), *words), flush=True)


def main():
    builder = AllowlistBuilder()
    builder.add(Stream())
    places = ApplicationPlaces(f"{FOLDER}/data", f"{FOLDER}/state")
    with Kernel(os_settings({"enabled": True}), places, endpoints=builder) as kernel:
        given = AccessSettings(
            database=DATABASE,
            key_file=f"{FOLDER}/keys",
            stream_type="redis",
            stream={"url": REDIS},
            poll_seconds=60.0,  # so that only the stream can notify it
        )
        with Access(given, GuardSurroundings()) as access:
            asyncio.run(serve(access, kernel))


main()
