"""Boundaries that the subject chooses: a guard opened by guarded code can only narrow."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, MODULE, PROCESS, SANDBOX, Ground, attack, attacks_of


def wider(ground: Ground, **more: object):
    from democrai_sandbox import process_guard_context

    return process_guard_context(**({"subject": "core", "subject_kind": "core", "allowed_paths": ["/"]} | more))


def read(ground: Ground) -> object:
    return open(ground.outside).read()


def by_with(ground: Ground) -> object:
    with wider(ground):
        return read(ground)


def by_run(ground: Ground) -> object:
    return wider(ground).run(read, ground)


def by_hand(ground: Ground) -> object:
    guard = wider(ground)
    guard.__enter__()
    try:
        return read(ground)
    finally:
        guard.__exit__(None, None, None)


def by_rule(ground: Ground) -> object:
    rule = {"resource_type": "filesystem", "operation": ["read"], "target": ground.outside_dir}
    with wider(ground, allowed_paths=[], access=[rule]):
        return read(ground)


def same_subject(ground: Ground) -> object:
    with wider(ground, subject="attacker", subject_kind="module"):
        return read(ground)


def twice(ground: Ground) -> object:
    with wider(ground), wider(ground, subject="other"):
        return read(ground)


def in_thread(ground: Ground) -> object:
    import threading

    thread = threading.Thread(target=lambda: ground.attempt(lambda: by_with(ground)))
    thread.start()
    thread.join()
    return None


def in_empty_context(ground: Ground) -> object:
    import contextvars

    return contextvars.Context().run(by_with, ground)


def in_exec(ground: Ground) -> object:
    """The code that opens the guard claims to come from the library."""
    source = (
        "from democrai_sandbox import process_guard_context\n"
        "with process_guard_context(subject='core', allowed_paths=['/']):\n"
        "    result = open(path).read()\n"
    )
    space = {"path": ground.outside, "__name__": "democrai_sandbox.guard"}
    exec(compile(source, os.__file__, "exec"), space)
    return space["result"]


def from_environment(ground: Ground) -> object:
    import json

    from democrai_sandbox import process_guard_context_from_env

    rule = {"resource_type": "filesystem", "operation": "read", "target": ground.outside_dir}
    values = {"DEMOCRAI_NETWORK_SUBJECT": "core", "DEMOCRAI_NETWORK_SUBJECT_KIND": "core"}
    with process_guard_context_from_env(values | {"DEMOCRAI_ACCESS": json.dumps([rule])}):
        return read(ground)


attacks_of(
    {
        "with": by_with,
        "run": by_run,
        "by_hand": by_hand,
        "rule": by_rule,
        "same_subject": same_subject,
        "twice": twice,
        "in_thread": in_thread,
        "in_empty_context": in_empty_context,
        "in_exec": in_exec,
        "from_environment": from_environment,
    },
    "a wider guard is opened by the subject: {}",
    expect=SANDBOX,
)


@attack("a wider guard is opened by the subject in a coroutine", expect=SANDBOX)
async def by_async_with(ground: Ground) -> object:
    async with wider(ground):
        return read(ground)


@attack("a wider guard runs a coroutine of the subject", expect=SANDBOX)
async def by_async_run(ground: Ground) -> object:
    async def work() -> object:
        return read(ground)

    return await wider(ground).run(work)


@attack("a guard opened by the subject allows processes", expect=PROCESS)
def nested_processes(ground: Ground) -> bool:
    with wider(ground, allow_subprocess=True):
        return os.system("exit 0") == 0


@attack("a guard opened by the subject allows ctypes", expect=MODULE)
def nested_imports(ground: Ground) -> bool:
    with wider(ground, allowed_imports=["ctypes", "_ctypes"]):
        import ctypes

        return ctypes.CDLL(None).getpid() == os.getpid()


@attack("a guard opened by the subject allows descriptors of folders", expect=SANDBOX)
def nested_dir_fd(ground: Ground) -> object:
    with wider(ground, allow_subprocess=True):
        return os.read(os.open("../outside/secret.txt", 0, dir_fd=os.open(ground.inside, 0)), 99)


@attack("a guard opened by the subject uncovers what the host protects", expect=FILES)
def nested_protected(ground: Ground) -> object:
    with wider(ground, allowed_paths=[ground.vault]):
        return open(ground.protected).read()


def hold_guard(ground: Ground) -> None:
    try:
        ground.held.guard = wider(ground)
    except ImportError:
        ground.held.guard = None


@attack("a wider guard that the host made and left lying about is entered", expect=SANDBOX, prepare=hold_guard)
def guard_of_the_host(ground: Ground) -> object:
    with ground.held.guard:
        return read(ground)


@attack("a wider guard that the host made runs the subject's code", expect=SANDBOX, prepare=hold_guard)
def guard_of_the_host_runs(ground: Ground) -> object:
    return ground.held.guard.run(read, ground)


def forged(ground: Ground) -> object:
    from democrai_sandbox import configure_guard

    class Yes:
        def decide(self, question: object) -> bool:
            return True

    try:
        configure_guard(decider=Yes())
    finally:
        ground.attempt(lambda: read(ground))
    return None


@attack("the subject installs a decider that says yes", expect=SANDBOX)
def own_decider(ground: Ground) -> object:
    return forged(ground)


@attack("the subject registers its own code as code of the runtime", expect=SANDBOX)
def own_runtime_code(ground: Ground) -> object:
    from democrai_sandbox import configure_guard

    try:
        configure_guard(runtime_code=[by_with.__code__, by_with])
    finally:
        ground.attempt(lambda: by_with(ground))
    return None


@attack("the subject lifts the host's protection", expect=SANDBOX)
def own_protection(ground: Ground) -> object:
    from democrai_sandbox import configure_guard

    try:
        configure_guard(protected_paths=[], sensitive_imports=[])
    finally:
        ground.attempt(lambda: open(ground.protected).read())
    return None


@attack("what other subjects were denied is read by the subject", expect=SANDBOX, prepare=lambda ground: None)
def others_denials(ground: Ground) -> bool:
    from democrai_sandbox import recent_denials

    return recent_denials() is not None


@attack("the view of the current guard is changed", expect=SANDBOX)
def view_changed(ground: Ground) -> object:
    from democrai_sandbox import current_guard

    view = current_guard()
    for name in ("allow_subprocess", "allowed_imports", "subject", "subject_chain"):
        try:
            object.__setattr__(view, name, True)
        except Exception:  # noqa: S110 - a refusal is fine
            pass
    ground.attempt(lambda: os.system("exit 0") == 0)
    return read(ground)
