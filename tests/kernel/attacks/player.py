"""Run the guard's attacks without the guard, in a process that only the kernel confines.

    python -P player.py

Reads orders from its input, one line of JSON each: the file and the name of an attack of `tests/guard/attacks`, and an
empty directory. Two forks run each attack: the *host* creates the files and checks them afterwards; the *subject* is
confined like a worker, by the rules that the guard would have, and attacks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import select
import sys
from importlib import import_module

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACKAGE = "tests.guard.attacks"
TIME_LIMIT = 60
SHAPE = 5
"""Prefixes of descriptions that are not content."""


def load(file: str, name: str):
    kit = import_module(f"{PACKAGE}.kit")
    import_module(f"{PACKAGE}.families.{file}")
    return kit, kit.REGISTRY.attacks[file][name]


def rules_of(attack, ground):
    """Rules of the policy that the guard would have."""
    from democrai_sandbox.policy import parse_access, rules_for_paths, rules_for_targets

    arguments = {
        "allowed_paths": [ground.inside],
        "access": [{"resource_type": "filesystem", "operation": "read", "target": ground.readonly}],
    }
    if attack.policy is not None:
        arguments |= attack.policy(ground)
    return (
        *rules_for_paths(arguments.get("allowed_paths") or ()),
        *rules_for_targets(arguments.get("allowed_targets") or ()),
        *parse_access(list(arguments.get("access") or ()), base="/"),
    )


def confine(attack, ground) -> None:
    """Confine this process like a worker: Landlock with its rules, the filter, and no permission to execute."""
    from tests.kernel.attacks import worker

    rules = rules_of(attack, ground)
    worker.confine(worker.confinement(rules, protected=[ground.vault], temp=os.environ["TMPDIR"]))


def attempt(ground, act) -> None:
    try:
        ground.loot.append(act())
    except BaseException as error:
        ground.errors.append(error)


async def play_async(attack, ground) -> None:
    import inspect

    for act in (attack.act, attack.after):
        try:
            result = act(ground) if act is not None else None
            ground.loot.append(await result if inspect.isawaitable(result) else result)
        except BaseException as error:
            ground.errors.append(error)


def play(attack, ground) -> None:
    if attack.act.__code__.co_flags & 0x80:
        import asyncio

        asyncio.run(play_async(attack, ground))
        return
    attempt(ground, lambda: attack.act(ground))
    if attack.after is not None:
        attempt(ground, lambda: attack.after(ground))


def found(ground) -> str:
    """Return the result of the subject, or the error that stopped it."""
    for item in ground.loot:
        text = item.decode("latin-1") if isinstance(item, (bytes, bytearray)) else item
        if isinstance(text, str) and ground.SECRET in text:
            return "secret"
    if True in [item for item in ground.loot if isinstance(item, bool)]:
        return "claimed"
    return f"stopped: {ground.errors[0]!r}"[:300] if ground.errors else "stopped: empty-handed"


def subject(attack, ground, out: int) -> None:
    """Run the attack in the confined process."""
    import faulthandler

    faulthandler.disable()
    try:
        confine(attack, ground)
    except BaseException as error:
        os.write(out, f"unconfined: {error!r}".encode())
        os._exit(3)
    play(attack, ground)
    os.write(out, found(ground).encode("utf-8", "backslashreplace"))
    if attack.at_exit:
        sys.exit(0)
    os._exit(0)


def wait(pid: int) -> int | None:
    handle = os.pidfd_open(pid)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    in_time = waiting.poll(TIME_LIMIT * 1000)
    if not in_time:
        os.kill(pid, 9)
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if in_time else None


def contents(ground) -> dict[str, object]:
    """Return the content of the folders that no attack may change, without owners and times."""
    return {path: seen[-1] if len(seen) > SHAPE else None for path, seen in ground.snapshot().items()}


def changes(before, ground) -> str:
    after = contents(ground)
    return ", ".join(sorted(path for path in {*before, *after} if before.get(path, 0) != after.get(path, 0)))


def host(order) -> dict[str, object]:
    """Create the files, run the subject, and return the result."""
    kit, attack = load(order["file"], order["name"])
    ground = kit.Ground(order["base"])
    ground.build()
    os.chdir(ground.neutral)
    ground.held.make = type("Confined", (kit.NoGuard,), {})  # without a guard, but the attack must still fail
    ground.held.begun = True
    for companion in (attack.early, attack.prepare):
        if companion is not None:
            result = companion(ground)
            if hasattr(result, "__await__"):
                return {"verdict": "not played: prepared on a loop"}
    before = contents(ground)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        subject(attack, ground, write)
    os.close(write)
    status = wait(pid)
    told = os.read(read, 65536).decode("utf-8", "replace")
    with contextlib.suppress(FileNotFoundError):
        os.remove(f"/dev/shm/attack-{os.getpid()}")  # the subject could not remove it
    if status is None:
        return {"verdict": "hung"}
    loot = f"{ground.inside}/loot"
    if attack.at_exit and os.path.exists(loot):
        told = "secret" if ground.SECRET in open(loot).read() else told
    if not attack.host_writes and (changed := changes(before, ground)):
        told = f"changed {changed}"
    return {"verdict": told or f"stopped: ended with {status}"}


def play_in_fork(order) -> dict[str, object]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        base = order["base"]
        os.dup2(os.open(f"{base}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ |= {"TMPDIR": f"{base}/tmp", "HOME": f"{base}/outside"}
        try:
            answer = host(order)
        except BaseException as error:
            answer = {"verdict": f"not played: {error!r}"}
        os.write(write, pickle.dumps(answer))
        os._exit(0)
    os.close(write)
    data = b""
    while chunk := os.read(read, 65536):
        data += chunk
    os.close(read)
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else {"verdict": "crashed"}


def serve() -> None:
    sys.path.insert(0, ROOT)
    for name in ("tests.kernel.attacks.worker", f"{PACKAGE}.kit", "json", "tempfile", "threading", "asyncio"):
        import_module(name)
    sys.modules["tests.kernel.attacks.worker"].readable()
    # Freeze existing objects, so that forks do not copy them during garbage collection.
    gc.collect()
    gc.freeze()
    while line := sys.stdin.readline():
        order = json.loads(line)
        load(order["file"], order["name"])
        print(json.dumps(play_in_fork(order)), flush=True)


serve()
