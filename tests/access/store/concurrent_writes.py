"""Writes to a store that a test makes here and in other processes at the same time."""

from __future__ import annotations

import sys

from democrai_sandbox.access.store import open_store
from tests.access.store.samples import NOW, approval, request


def write(url, name, count):
    """Request shared accesses, and decide about separate ones."""
    store = open_store(url)
    for number in range(count):
        store.register(request(f"/{number}"), now=NOW)
        store.decide(approval(f"/{name}/{number}"), now=NOW)
    store.close()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
