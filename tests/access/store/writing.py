"""Writes to a store: what a test does here and in other processes at the same time."""

from __future__ import annotations

import sys

from democrai_sandbox.access.store import open_store
from tests.access.store.samples import NOW, approval, request


def write(url, name, count):
    """Ask for what others ask for too, and decide about what is one's own."""
    store = open_store(url)
    for number in range(count):
        store.register(request(f"/{number}"), now=NOW)
        store.decide(approval(f"/{name}/{number}"), now=NOW)
    store.close()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
