"""Objects that guarded code can reach from a running bus: not the node."""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref

from tests.access.events.nodes import Heard, eventually


def reachable(*roots):
    """Return the objects that attributes and containers lead to, without the garbage collector."""
    seen, waiting = {}, list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (str, bytes, int, float, types.ModuleType)):
            continue
        seen[id(thing)] = thing
        waiting += parts(thing)
    return seen


def parts(thing):
    if isinstance(thing, dict):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, set, frozenset, weakref.WeakSet)):
        return list(thing)
    if isinstance(thing, weakref.ref):
        return [thing()]
    if isinstance(thing, types.MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, types.FunctionType):
        return [*(cell.cell_contents for cell in thing.__closure__ or ()), thing.__defaults__, thing.__dict__]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*(attribute(thing, name) for name in slots), *(attribute(thing, "__dict__") or {}).values()]


def attribute(thing, name):
    try:
        return object.__getattribute__(thing, name)
    except (AttributeError, TypeError):
        return None


def test_no_attribute_leads_from_threads_and_modules_to_the_node(buses):
    """Guarded code can list threads and read modules; neither leads to the receiver of events."""
    bus, heard = buses.open(), Heard()
    bus.start(heard)
    assert eventually(lambda: bus.connected)
    modules = [
        dict(vars(module)) for name, module in sys.modules.items() if name.startswith("democrai_sandbox.access.events")
    ]
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    assert any(thread.name.startswith("events") for thread in threads)
    assert id(heard) not in reachable(modules, threads)
    assert id(heard) not in reachable(bus)
    assert id(bus) not in reachable(modules, threads)
