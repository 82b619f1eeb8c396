"""Application under load for the soak test: it swaps its allowlist on command, and reports which connections succeeded.

    python soak_application.py <data_dir> <state_dir> <host> <always> <sometimes> <never>

Orders are lines on its input: ``swap``, ``helper`` (returns the helper's pid), ``load N`` (waits until each port was
tried N times), ``stop``.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel import OsSettings
from democrai_sandbox.kernel.egress import AllowlistBuilder, EgressControl, SourceEntry

DATA, STATE, HOST, *PORTS = sys.argv[1:]
ALWAYS, SOMETIMES, NEVER = map(int, PORTS)
FILLING = 40
PATIENCE = 30.0


class Swapping:
    """Permits one port always, one in every other round, one never, and others that change with each round."""

    name = "soak"

    def __init__(self):
        self.round = 0

    def endpoints(self):
        wanted = [f"{HOST}:{ALWAYS}", *(f"10.99.{self.round % 250}.{n}:443" for n in range(1, FILLING))]
        if self.round % 2:
            wanted.append(f"{HOST}:{SOMETIMES}")
        return [SourceEntry(target, "config.soak") for target in wanted]


def outcome(port):
    try:
        with socket.create_connection((HOST, port), timeout=10) as link:
            link.sendall(b"x")
            return "ok" if link.recv(1) == b"x" else "closed"
    except OSError as error:
        return type(error).__name__


def load(counts, ending):
    while not ending.is_set():
        for port in (ALWAYS, NEVER):
            counts[port, outcome(port)] += 1
        time.sleep(0.01)


def was_tried(counts, number):
    end = time.monotonic() + PATIENCE
    while min(sum(n for (port, _), n in list(counts.items()) if port == wanted) for wanted in (ALWAYS, NEVER)) < number:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def swap(control, source):
    """Apply the next round; wait for a helper that was killed."""
    source.round += 1
    end = time.monotonic() + PATIENCE
    while True:
        try:
            control.refresh("soak", wait=True, timeout=PATIENCE)
        except KernelLayerError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return outcome(SOMETIMES)


def main():
    builder, source = AllowlistBuilder(), Swapping()
    builder.add(source)
    control = EgressControl(
        builder, settings=OsSettings(enabled=True, refresh_seconds=1), data_dir=DATA, state_dir=STATE
    )
    control.start()
    control.follow()
    counts, ending = Counter(), threading.Event()
    loader = threading.Thread(target=load, args=(counts, ending))
    loader.start()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        order = line.strip()
        if order == "swap":
            told = swap(control, source)
            print("ok" if (told == "ok") == bool(source.round % 2) else f"round {source.round}: {told}", flush=True)
        elif order == "helper":
            print(control.helper_status().details.get("pid"), flush=True)
        elif order.startswith("load "):
            print("ok" if was_tried(counts, int(order.split()[1])) else counts, flush=True)
        elif order == "stop":
            break
    ending.set()
    loader.join()
    control.stop()
    print({f"{'always' if port == ALWAYS else 'never'} {told}": n for (port, told), n in counts.items()}, flush=True)


main()
