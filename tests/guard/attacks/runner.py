"""Play one attack in a process of its own and print its verdict as one line of JSON.

    python -P runner.py <attack family> <attack name> --guard on|off|loaded --base <empty directory>
    python -P runner.py --serve [network] [open | armed]

The process is the host: it builds the ground, prepares what the attack wants the host to have prepared, enters the
guard (or not), lets the attack run, leaves the guard, and then looks at what the attack carried away or changed.

`--serve` reads such orders from its input, one line of JSON each, and plays each in a fork of itself. The guard is not
installed in the serving process, only what it imports anyway is there already: that makes a thousand attacks bearable.
With `armed` it is installed there, for attacks to which it makes no difference what was loaded before the guard, and
with `open` no attack will have a guard: then more is there. An order with `template` is played in a fork of a process
that loaded the attack's file, then the guard, and then what the template is named after and what the file lists as
`LOADED`, in that order, as a host would.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACKAGE = "tests.guard.attacks"
FAMILIES = f"{PACKAGE}.families"


def load(file: str, name: str):
    """Find the attack. The repository is on the path only for this moment: it is no code root of the guard."""
    sys.path.insert(0, ROOT)
    kit = import_module(f"{PACKAGE}.kit")
    import_module(f"{FAMILIES}.{file}")
    sys.path.remove(ROOT)
    return kit, kit.REGISTRY.attacks[file][name]


def make_guard(attack, ground):
    """Install the guard, let the host configure it, and make the context the attack runs in."""
    import democrai_sandbox

    more = attack.configure(ground) if attack.configure is not None else {}
    democrai_sandbox.configure_guard(protected_paths=[ground.vault], **more)
    arguments = {
        "subject": "attacker",
        "allowed_paths": [ground.inside],
        "access": [{"resource_type": "filesystem", "operation": "read", "target": ground.readonly}],
    }
    if attack.policy is not None:
        arguments |= attack.policy(ground)
    if attack.network_only:
        del arguments["allowed_paths"]
        return lambda **other: democrai_sandbox.network_policy_context(**(arguments | other))
    return lambda **other: democrai_sandbox.process_guard_context(**(arguments | other))


def own(attack, guard):
    """Do as a loader does: the code of the attack is the subject's, wherever it runs."""
    import dataclasses
    import marshal
    from types import FunctionType

    from democrai_sandbox.guard import own_code

    module = compile("", "module.py", "exec")
    guard().run(own_code, module)
    # what a subject unmarshals belongs to it, once there are subjects that have code of their own
    code = guard().run(marshal.loads, marshal.dumps(attack.act.__code__))
    own.kept = module
    return dataclasses.replace(attack, act=FunctionType(code, attack.act.__globals__))


def begin(attack, ground):
    """The attack itself; an attack that never began was not stopped, the guard just could not be entered."""
    ground.held.begun = True
    return attack.act(ground)


def play(attack, ground, guard):
    """Run the attack in the form it asks for; returns what it brought home."""
    if guard is None:
        return begin(attack, ground)
    if attack.form == "run":
        return guard().run(begin, attack, ground)
    with guard():
        return begin(attack, ground)


def play_sync(attack, ground, guard):
    """One synchronous attack from the host's preparation to the host's aftermath."""
    if attack.prepare is not None:
        attack.prepare(ground)
    before = ground.snapshot()
    ground.attempt(lambda: ground.held.__setattr__("result", play(attack, ground, guard)))
    ground.loot[:] = [item for item in ground.loot if item is not None]
    if attack.after is not None:
        ground.attempt(lambda: attack.after(ground))
    return before


async def play_async(attack, ground, guard):
    """The same on an event loop that belongs to the host."""
    import inspect

    async def companion(function):
        if function is not None:
            result = function(ground)
            return await result if inspect.isawaitable(result) else result
        return None

    await companion(attack.prepare)
    before = ground.snapshot()
    try:
        if guard is None:
            ground.held.result = await begin(attack, ground)
        elif attack.form == "run":
            ground.held.result = await guard().run(begin, attack, ground)
        else:
            async with guard():
                ground.held.result = await begin(attack, ground)
    except BaseException as error:
        ground.errors.append(error)
    try:
        ground.loot.append(await companion(attack.after))
    except BaseException as error:
        ground.errors.append(error)
    return before


def carried_away(attack, ground, before) -> str:
    """What proves that the attack succeeded, or nothing."""
    for item in (getattr(ground.held, "result", None), *ground.loot):
        if item is True:
            return "the attack says so"
        text = item.decode("latin-1") if isinstance(item, (bytes, bytearray)) else item
        if isinstance(text, str) and ground.SECRET in text:
            return "the secret"
    if attack.host_writes:
        return ""
    changed = [path for path, seen in ground.snapshot().items() if before.get(path) != seen]
    changed += [path for path in before if not os.path.lexists(path)]
    return f"changed {sorted(changed)}" if changed else ""


def stopped_by(errors):
    """The guard's own error among the errors and what they were raised from, else the first error."""
    pending, seen = list(errors), []
    while pending:
        error = pending.pop(0)
        if error in seen:
            continue
        seen.append(error)
        if type(error).__module__.startswith("democrai_sandbox"):
            return "denied", error
        pending += [other for other in (error.__cause__, error.__context__) if other is not None]
        pending += getattr(error, "exceptions", ())
    return "failed", errors[0] if errors else None


def report(out: int, verdict: str, proof: str, error) -> None:
    """Print the one line the parent reads."""
    import json

    line = {
        "verdict": verdict,
        "proof": proof,
        "error_type": type(error).__name__ if error is not None else None,
        "error_text": str(error)[:400] if error is not None else None,
        "code": str(error)[:400] if verdict == "denied" else None,
    }
    os.write(out, json.dumps(line).encode("ascii", "backslashreplace") + b"\n")


def run(file: str, name: str, *, guarded: str, base: str) -> None:
    """Play one attack; ends the process unless the attack is about its end."""
    kit, attack = load(file, name)
    out = os.dup(1)
    sys.setswitchinterval(getattr(sys.modules[f"{FAMILIES}.{file}"], "SWITCH_INTERVAL", 0.005))
    ground = kit.Ground(base)
    ground.build()
    os.chdir(ground.neutral)
    sys.path.append(ground.site)
    if attack.early is not None:
        attack.early(ground)
    guard = make_guard(attack, ground) if guarded != "off" else None
    if guarded == "loaded":
        attack = own(attack, guard)
    ground.held.make = guard or kit.NoGuard
    sys.dont_write_bytecode, sys.pycache_prefix = True, None
    if attack.act.__code__.co_flags & 0x80:  # a coroutine function
        import asyncio

        before = asyncio.run(play_async(attack, ground, guard))
    else:
        before = play_sync(attack, ground, guard)
    proof = carried_away(attack, ground, before)
    verdict, error = ("escaped", None) if proof else stopped_by(ground.errors)
    if not hasattr(ground.held, "begun"):
        verdict = "not begun"
    report(out, verdict, proof, error)
    if not attack.at_exit:
        os._exit(0)


TIME_LIMIT = 100
PRELOADED = (
    *("contextvars", "dataclasses", "enum", "functools", "glob", "json", "locale", "logging", "pathlib", "queue", "re"),
    *("selectors", "signal", "site", "struct", "sysconfig", "tempfile", "threading", "typing", "weakref"),
    *("democrai_sandbox.errors", f"{PACKAGE}.kit"),
)
PRELOADED_FOR_NETWORK = (
    *("base64", "email.message", "email.parser", "encodings.idna", "hashlib", "http", "inspect", "ipaddress", "random"),
    *("socket", "urllib.parse", f"{PACKAGE}.namespaces", f"{PACKAGE}.network", f"{PACKAGE}.peer_names"),
)
"""What the library's clients are made of, but nothing that the guard adapts: the attacked process loads that."""
PRELOADED_FREELY = ("asyncio", "subprocess", "urllib.request")
"""What many attacks load, for those to which it makes no difference."""


def play_in_fork(order: dict[str, str]) -> int | None:
    """Play an order in a fork; returns its exit status, or None when it had to be killed."""
    import select

    base = order["base"]
    pid = os.fork()
    if pid == 0:
        for number, name in ((1, f"{base}.out"), (2, f"{base}.err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ |= {"TMPDIR": f"{base}/tmp", "HOME": f"{base}/outside"}
        sys.modules["tempfile"].tempdir = None
        run(order["file"], order["name"], guarded=order["guard"], base=base)
        sys.exit(0)
    handle = os.pidfd_open(pid)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    in_time = waiting.poll(TIME_LIMIT * 1000)
    if not in_time:
        os.kill(pid, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    return status if in_time else None


def preload(names) -> None:
    """Import what every attack needs."""
    sys.path.insert(0, ROOT)
    for name in names:
        import_module(name)
    sys.path.remove(ROOT)


class Template:
    """A process that loaded one attack file, the guard and what its host uses; plays attacks in forks of itself."""

    def __init__(self, file: str, used: tuple[str, ...]) -> None:
        import socket
        from importlib.util import find_spec

        self._link, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._link.close()
            preload([f"{FAMILIES}.{file}", "democrai_sandbox.guard"])
            preload([*used, *filter(find_spec, getattr(sys.modules[f"{FAMILIES}.{file}"], "LOADED", ()))])
            os.dup2(theirs.fileno(), 0)
            os.dup2(theirs.fileno(), 1)
            theirs.close()
            sys.stdin = open(0)
            play_orders(load_first=False)
            os._exit(0)
        theirs.close()
        self._answers = self._link.makefile("rb")

    def play(self, line: str) -> bytes:
        """Have an order played; the answer is the line for it."""
        self._link.sendall(line.encode())
        return self._answers.readline()

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        self._link.close()
        os.waitpid(self._pid, 0)


def close_all(templates: dict[tuple[str, ...], Template]) -> None:
    """End the processes of a file; the newest first, because it has its elders' ends of their sockets."""
    for template in reversed(templates.values()):
        template.close()


def play_orders(*, load_first: bool) -> None:
    """Play orders until the input ends, each in a fork of this process, or of a template for its file if it says so."""
    import json

    file, templates = "", {}
    while line := sys.stdin.readline():
        order = json.loads(line)
        used = order.pop("template", None)
        if used is not None:
            if order["file"] != file:
                close_all(templates)
                file, templates = order["file"], {}
            if tuple(used) not in templates:
                templates[tuple(used)] = Template(file, tuple(used))
            os.write(1, templates[tuple(used)].play(json.dumps(order) + "\n"))
            continue
        if load_first:
            load(order["file"], order["name"])
        os.write(1, json.dumps(play_in_fork(order)).encode() + b"\n")


def serve(*kind: str) -> None:
    """Play orders until the input ends."""
    preload(PRELOADED + PRELOADED_FOR_NETWORK if "network" in kind else PRELOADED)
    freely = not {"open", "armed"}.isdisjoint(kind)
    if "armed" in kind:
        preload(["democrai_sandbox.guard"])
    if freely:
        preload(PRELOADED_FREELY)
    play_orders(load_first=freely)


if sys.argv[1] == "--serve":
    serve(*sys.argv[2:])
else:
    run(sys.argv[1], sys.argv[2], guarded=sys.argv[4], base=sys.argv[6])
