"""Every callable of the native modules that guarded code can load, under a stable name.

Functions of the modules, their types, the methods and attributes of the types, and the types that only instances lead
to. A name has its module, its type if it has one, and its own name: ``posix.open``, ``_socket.socket.bind``.
"""

from __future__ import annotations

import importlib
import sys
import types

DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
)
ATTRIBUTES = (types.GetSetDescriptorType, types.MemberDescriptorType)
# What the type machinery adds to each class.
EVERYWHERE = {"__dict__", "__weakref__", "__doc__"}


class Target:
    """One callable: its name, the object, the type it belongs to, and whether it is an attribute to read and set."""

    def __init__(self, name, value, owner=None, *, attribute=False):
        self.name = name
        self.value = value
        self.owner = owner
        self.attribute = attribute

    @property
    def module(self):
        return self.name.partition(".")[0]


def load(names, run):
    """Return the modules among these names that load, and for each other one the reason."""
    loaded, absent = {}, {}
    for name in sorted(names):
        try:
            loaded[name] = run(importlib.import_module, name)
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"
    return loaded, absent


def is_native(kind):
    """Return whether a type is written in C: it has entries that only C makes, and none that Python makes."""
    entries = vars(kind)
    if any(isinstance(value, (types.FunctionType, property)) for value in entries.values()):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if file.endswith(".py") and ("__weakref__" in entries or "__slots__" in entries):
        return False
    return any(isinstance(value, DESCRIPTORS) for name, value in entries.items() if name not in EVERYWHERE)


def all_types():
    """Return every type of the process that is written in C."""
    seen, waiting = {object}, [object]
    while waiting:
        kind = waiting.pop()
        for further in type.__subclasses__(kind):
            if further not in seen:
                seen.add(further)
                waiting.append(further)
    return [kind for kind in seen if is_native(kind)]


def type_name(kind, known):
    """Return the name of a type: where a module has it, otherwise its own words for itself."""
    return known.get(kind) or f"{kind.__module__}.{kind.__qualname__}"


def targets(modules):
    """Return every target of these modules, by name."""
    found, known = {}, {}
    for module_name, module in modules.items():
        for name, value in sorted(vars(module).items()):
            if isinstance(value, type) and is_native(value):
                ours = value.__module__.partition(".")[0] == module_name
                if ours or value not in known:
                    known[value] = f"{module_name}.{name}"
            elif callable(value) and not isinstance(value, (type, types.ModuleType, types.FunctionType)):
                found[f"{module_name}.{name}"] = Target(f"{module_name}.{name}", value)
    outside = {kind for kind in all_types() if kind.__module__.partition(".")[0] == "democrai_sandbox"}
    for kind in sorted(set(all_types()) - outside, key=lambda kind: type_name(kind, known)):
        _add_type(found, kind, type_name(kind, known))
    return dict(sorted(found.items()))


def _add_type(found, kind, name):
    found[name] = Target(name, kind)
    for entry, value in sorted(vars(kind).items()):
        if entry in EVERYWHERE:
            continue
        if isinstance(value, ATTRIBUTES):
            found[f"{name}.{entry}"] = Target(f"{name}.{entry}", value, kind, attribute=True)
        elif isinstance(value, (staticmethod, classmethod)) or callable(value):
            found[f"{name}.{entry}"] = Target(f"{name}.{entry}", value, kind)
