"""Sockets in the folders that the runtime gives to a subject, below a protected folder."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter


def given_folders(world):
    """Connect to own and other sockets below a protected folder, without rules and with rules for all of it."""
    import os
    import socket

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import configure_guard
    from democrai_sandbox.guard.contexts import make_guard

    data = os.path.join(world.outside, "data")
    own, other = os.path.join(data, "one"), os.path.join(data, "two", "socket")
    os.makedirs(own)
    os.makedirs(os.path.dirname(other))
    configure_guard(protected_paths=[data])
    kept = socket.socket(socket.AF_UNIX)
    kept.bind(other)
    kept.listen()

    def serve(name):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.join(own, name))
            server.listen()
            return dial(os.path.join(own, name))

    def dial(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        return "connected"

    def outcome(guard, act, path):
        try:
            return guard.run(act, path)
        except SandboxDenied as denial:
            return denial.code

    files = [("filesystem", operation, data) for operation in ("create", "modify", "read")]
    rules = [
        {"resource_type": kind, "operation": operation, "target": target}
        for kind, operation, target in (*files, ("network", "connect", f"unix:{other}"))
    ]
    told = {}
    for name, access in (("bare", []), ("wide", rules)):
        guard = make_guard(subject="one", subject_kind="module", own_read=(own,), own_write=(own,), access=access)
        told[name] = [outcome(guard, serve, name), outcome(guard, dial, other)]
    kept.close()
    return told


def test_a_subject_connects_to_sockets_in_its_own_folder(case):
    """No declaration opens a socket in the protected folder around it."""
    told = case.run(given_folders)
    assert told == {"bare": ["connected", "sandbox_network_denied"], "wide": ["connected", "sandbox_network_denied"]}
