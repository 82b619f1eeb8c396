"""Search of all reachable objects (attributes, items, closures, frames, coroutines), run as a guarded module."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import sys
import threading
import time
import types
from collections import deque

PLAIN = (str, bytes, int, float, complex, type(None), types.CodeType, types.BuiltinFunctionType)
OF_COROUTINES = ("cr_frame", "cr_await", "gi_frame", "gi_yieldfrom", "ag_frame", "ag_await")
SECONDS = 90


def everywhere():
    """Starting points: modules, the loop, its tasks, threads, variables, the own frame."""
    return [
        ("modules", dict(sys.modules)),
        ("loop", asyncio.get_running_loop()),
        ("tasks", list(asyncio.tasks._all_tasks)),
        ("threads", threading.enumerate()),
        ("variables", {repr(name): value for name, value in contextvars.copy_context().items()}),
        ("frame", sys._getframe()),
    ]


def search(roots, wanted):
    """Return a way to an object of each class that is wanted, and to texts; those are given backwards, without dots."""
    end = time.monotonic() + SECONDS
    marks = [one[::-1] for one in wanted if "." not in one]
    queue, seen, alive, found = deque(roots), set(), [], {}
    while queue:
        if time.monotonic() > end:
            raise TimeoutError("the search did not end")
        way, thing = queue.popleft()
        if isinstance(thing, PLAIN):
            if type(thing) in (str, bytes):
                found.update({mark: way for mark in marks if mark in str(thing)})
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        alive.append(thing)
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        if kind in wanted:
            found.setdefault(kind, way)
        if len(way) < 400:
            queue.extend((way + step, inner) for step, inner in inside(thing))
    return {"found": found, "seen": len(seen)}


def inside(thing):
    """Return the objects that a value leads to."""
    pairs = []
    for look in (items, attributes, special):
        try:
            pairs.extend(look(thing))
        except Exception:
            pass  # what refuses to be looked at is passed by
    return pairs


def items(thing):
    if isinstance(thing, (dict, types.MappingProxyType)):
        for key, value in list(thing.items()):
            yield f"[{key!r:.40}]", value
            yield f".key {key!r:.40}", key
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        for place, value in enumerate(list(thing)):
            yield f"[{place}]", value
    elif hasattr(thing, "valuerefs") or type(thing).__name__ in ("WeakSet", "WeakKeyDictionary"):
        for place, value in enumerate(list(thing.values() if hasattr(thing, "values") else thing)):
            yield f"<{place}>", value


DESCRIBED = {}


def described(kind):
    """The described names of a class and its bases, cached per class."""
    if kind not in DESCRIBED:
        descriptors = (types.MemberDescriptorType, types.GetSetDescriptorType)
        found = (name for one in kind.__mro__ for name, value in vars(one).items() if isinstance(value, descriptors))
        DESCRIBED[kind] = frozenset(found) - {"__weakref__"}
    return DESCRIBED[kind]


def attributes(thing):
    names = set(vars(thing)) if hasattr(thing, "__dict__") else set()
    if not isinstance(thing, type):
        names |= described(type(thing))
    for name in names - {"__weakref__"}:
        try:
            yield f".{name}", vars(thing)[name] if isinstance(thing, type) else getattr(thing, name)
        except Exception:
            continue


def special(thing):
    if isinstance(thing, types.CellType):
        yield ".cell", thing.cell_contents
    if isinstance(thing, types.FunctionType):
        yield ".closure", thing.__closure__
        yield ".defaults", (thing.__defaults__, thing.__kwdefaults__)
        if thing.__module__ not in sys.modules:
            yield ".globals", thing.__globals__
    if isinstance(thing, types.MethodType):
        yield ".__self__", thing.__self__
        yield ".__func__", thing.__func__
    if isinstance(thing, types.FrameType):
        yield ".f_back", thing.f_back
        yield ".f_locals", dict(thing.f_locals)
    if isinstance(thing, (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)):
        for name in OF_COROUTINES:
            yield f".{name}", getattr(thing, name, None)
    if isinstance(thing, asyncio.Task):
        yield ".get_coro()", thing.get_coro()
    if isinstance(thing, selectors.BaseSelector):
        yield ".get_map()", dict(thing.get_map())
