"""Process that imports the modules of a node once, and runs each test program in a fork of itself.

tests.access.forked_programs starts it. Its commands are those of tests.services.commanding.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import socket
import sys
import warnings

from tests.services.commanding import orders, settle

MODULES = (
    "democrai_sandbox",
    "democrai_sandbox.access.administration",
    "democrai_sandbox.access.events",
    "democrai_sandbox.access.events.ipc",
    "democrai_sandbox.access.events.redis_stream",
    "democrai_sandbox.access.keyring",
    "democrai_sandbox.access.resumptions",
    "democrai_sandbox.access.encryption",
    "democrai_sandbox.access.checks",
    "democrai_sandbox.access.store",
    "democrai_sandbox.guard",
    "democrai_sandbox.runtime.access_environment",
    "http.client",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "tempfile",
    "tests.access.store.samples",
)


def main(number):
    """Import, wait for commands, and run the requested program."""
    for name in MODULES:
        importlib.import_module(name)
    sys.path.remove(os.getcwd())  # guarded code may read the folders that it could import from
    gc.collect()
    gc.freeze()
    order, streams = orders(socket.socket(fileno=int(number)))
    settle(order, streams)
    program, *sys.argv[1:] = order["arguments"]
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
