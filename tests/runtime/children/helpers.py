"""Helpers of the child tests: loaded in child processes, usable inside a guard."""

from __future__ import annotations

import asyncio
import os
import time


def serve(world, *, decider=None, owned=None, protected=(), **settings):
    """Return the service of children, with its services installed and the guard configured."""
    from democrai_sandbox.guard import configure_guard
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.children.launch_request import ChildrenSettings, LaunchRequests
    from democrai_sandbox.runtime.children.path_rights import PathRights
    from democrai_sandbox.runtime.children.service import ChildService

    configure_guard(decider=decider, protected_paths=protected)
    limits = ChildrenSettings(**{"grace": 0.5, **settings})
    children = ChildService(LaunchRequests(PathRights(decider, owned), limits, home_of=lambda _: world.root))
    sdk_services.install(children.services())
    return children


def guarded(world, children, body, **declarations):
    """Run a coroutine function inside a guard, on a loop of the host."""
    from democrai_sandbox import process_guard_context

    async def host():
        children.open()
        named = {"subject": "demo", "allowed_paths": [world.root], "user_id": "uma", "session_key": "s1"}
        return await process_guard_context(**{**named, **declarations}).run(body)

    return asyncio.run(host())


async def told(awaitable):
    """Return the outcome of an operation in one word."""
    try:
        return await awaitable
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def script(world, name, text, mode=0o755):
    path = world.inside(name)
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def alive(mark):
    """Return the processes whose command line has a mark."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    line = file.read()
                with open(f"/proc/{entry}/stat") as file:
                    dead = file.read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if mark.encode() in line and not dead:
                found.append(int(entry))
    return found


def gone(mark, patience=30.0):
    """Return whether all processes with a mark end soon."""
    deadline = time.monotonic() + patience
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left


def settled(children, patience=30.0):
    """Return the number of children of the service, after waiting for it to become zero."""
    deadline = time.monotonic() + patience
    while children._running and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(children._running)
