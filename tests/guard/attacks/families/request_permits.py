"""Permits of requests that are entered again, forged, changed or taken from another subject."""

from __future__ import annotations

import contextvars
import threading

from tests.guard.attacks.families.connection_permits import STOPPED, Nothing, core, during, permit, raw_of, secret_of
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    NETWORK,
    ask,
    dial,
    guarded,
    network_attack,
    network_attacks_of,
    open_connection,
    other,
    peers,
)


def tickets_in(context: contextvars.Context) -> list[object]:
    return [value for value in context.values() if type(value).__name__ == "Ticket"]


def entered_again(ground: Ground) -> object:
    for ticket in during(ground, lambda: tickets_in(contextvars.copy_context())):
        ticket.__enter__()
    return raw_of(ground)


def variable_set_again(ground: Ground) -> object:
    pairs = during(ground, lambda: list(contextvars.copy_context().items()))
    for variable, value in pairs:
        if type(value).__name__ == "Ticket":
            variable.set(value)
    return raw_of(ground)


def left_twice(ground: Ground) -> object:
    """A permit is left before it is entered, and again, so that a count goes wrong."""
    ticket = permit(ground)
    ticket.__enter__()
    for _ in range(3):
        ticket.__exit__(None, None, None)
    return raw_of(ground)


def made_anew(ground: Ground) -> object:
    kind = type(permit(ground))
    if kind is not Nothing:
        made = kind.__new__(kind)
        made.__enter__()
    return raw_of(ground)


def kept_open(ground: Ground) -> object:
    """A permit for one path is held open, and another path is asked for."""
    with permit(ground):
        return secret_of(ground)


def held_across_threads(ground: Ground) -> object:
    ticket = permit(ground)
    thread = threading.Thread(target=ticket.__enter__)
    thread.start()
    thread.join()
    return raw_of(ground)


def for_another_port(ground: Ground) -> object:
    with permit(ground):
        return ask(dial(other(ground)))


def for_another_address(ground: Ground) -> object:
    with permit(ground):
        return ask(dial(("127.0.0.2", peers(ground).web)))


def copied(ground: Ground) -> object:
    import copy

    ticket = permit(ground)
    for make in (copy.copy, copy.deepcopy, lambda value: __import__("pickle").loads(__import__("pickle").dumps(value))):
        try:
            make(ticket).__enter__()
        except (TypeError, AttributeError, ImportError):
            continue
    return raw_of(ground)


def changed(ground: Ground) -> object:
    ticket = permit(ground)
    for name, value in {"host": "127.0.0.1", "port": peers(ground).other, "open": True, "policy": 0}.items():
        try:
            setattr(ticket, name, value)
        except (AttributeError, TypeError):
            continue
    with ticket:
        return ask(dial(other(ground)))


def origin_only(ground: Ground) -> object:
    """A permit for an origin, without a request."""
    module = core()
    ticket = module.origin("http", "127.0.0.1", peers(ground).web) if module is not None else None
    with ticket or Nothing():
        return secret_of(ground)


def origin_of_another(ground: Ground) -> object:
    module = core()
    ticket = module.origin("http", "127.0.0.1", peers(ground).other) if module is not None else None
    with ticket or Nothing():
        return ask(dial(other(ground)))


def other_scheme(ground: Ground) -> object:
    """A permit for a scheme that is not HTTP."""
    module = core()
    if module is not None:
        for scheme in ("ftp", "ws", "https", "httpsx", "x", ""):
            try:
                module.origin(scheme, "127.0.0.1", peers(ground).web).__enter__()
            except Exception as error:
                ground.errors.append(error)
    return secret_of(ground)


network_attacks_of(
    {
        "entered_again": entered_again,
        "variable_set_again": variable_set_again,
        "left_twice": left_twice,
        "made_anew": made_anew,
        "kept_open": kept_open,
        "other_thread": held_across_threads,
        "other_port": for_another_port,
        "other_address": for_another_address,
        "copied": copied,
        "changed": changed,
        "origin": origin_only,
        "origin_of_another": origin_of_another,
        "other_scheme": other_scheme,
    },
    "what permits a request is used in another way: {}",
    expect=STOPPED.or_raises("TypeError"),
    group="permit_",
)


def hold_wide(ground: Ground) -> None:
    """Another subject, whose rules are wider, has left a permit and its contexts behind."""
    target = f"http://127.0.0.1:{peers(ground).other}"
    where = {"resource_type": "network", "operation": "receive", "target": target}

    def wide():
        module = core()
        return (module.request("GET", f"{target}/") if module is not None else None) or Nothing()

    with ground.held.make(subject="wide", access=[where]):
        ground.held.ticket, ground.held.context = wide(), contextvars.copy_context()
        with wide():
            ground.held.inside = contextvars.copy_context()


network_attacks_of(
    {
        "permit": lambda ground: (ground.held.ticket.__enter__(), ask(dial(other(ground))))[1],
        "context": lambda ground: ground.held.context.run(lambda: ask(dial(other(ground)))),
        "context_of_request": lambda ground: ground.held.inside.run(lambda: ask(dial(other(ground)))),
    },
    "what permitted another subject's request is used: {}",
    expect=STOPPED,
    group="of_another_",
    prepare=hold_wide,
)


@network_attack("a connection is opened for one request and used after its permit was left", expect=STOPPED)
def connection_outlives(ground: Ground) -> bytes:
    """That is what keep-alive is; what goes over it is checked all the same."""
    return ask(open_connection(ground).sock)


@network_attack("many permits are opened and dropped without being left", expect=STOPPED)
def dropped(ground: Ground) -> object:
    import gc

    for _ in range(200):
        permit(ground).__enter__()
    gc.collect()
    return ask(dial(other(ground)))


@network_attack("a permit refers to itself, and dies in a cycle", expect=NETWORK)
def cycle(ground: Ground) -> object:
    import gc

    class Holder:
        pass

    def work() -> None:
        holder = Holder()
        holder.context = contextvars.copy_context()
        holder.ticket = permit(ground)
        holder.context.run(holder.ticket.__enter__)

    for _ in range(50):
        work()
    gc.collect()
    return raw_of(ground)


def wider_guard(name: str):
    """The subject opens a guard of its own that would allow more."""

    def act(ground: Ground) -> object:
        if not guarded(ground):
            return ask(dial(other(ground)))
        import democrai_sandbox

        with getattr(democrai_sandbox, name)(subject="mine", allowed_targets=[f"127.0.0.1:{peers(ground).other}"]):
            return ask(dial(other(ground)))

    return act


def bypassed(ground: Ground) -> object:
    if not guarded(ground):
        return ask(dial(other(ground)))
    import democrai_sandbox

    with democrai_sandbox.process_guard_bypass_context():
        return ask(dial(other(ground)))


network_attacks_of(
    {
        "network": wider_guard("network_policy_context"),
        "process": wider_guard("process_guard_context"),
        "bypass": bypassed,
    },
    "the subject opens a guard of its own that would allow more: {}",
    expect=STOPPED,
    group="own_guard_",
)
