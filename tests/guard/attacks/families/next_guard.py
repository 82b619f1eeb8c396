"""Replaced functions that would make the next guard of the host wider than declared."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import SANDBOX, Ground, attack


def modules_of_the_guard() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "democrai_sandbox"]


def next_guard(ground: Ground) -> object:
    """What another guard, which the host makes afterwards, lets its subject read."""
    guard = ground.held.make(subject="next", allowed_paths=[ground.inside, ground.neutral])
    return guard.run(lambda: open(ground.outside).read())


@attack(
    "the functions that a guard is made with are replaced, so that the host's next guard is wide",
    expect=SANDBOX,
    after=next_guard,
)
def next_guard_helpers(ground: Ground) -> None:
    os.path.realpath = lambda *_, **__: "/"
    os.fsencode = lambda *_, **__: b"/"
    os.path.abspath = os.path.normpath = lambda *_, **__: "/"


def wide_rules() -> dict[str, object]:
    """What the functions that read a declaration would have to be for everything to be allowed."""
    contexts = sys.modules.get("democrai_sandbox.guard.contexts")
    original = getattr(contexts, "rules_for_paths", None)
    return {"rules_for_paths": lambda *_: original(["/"]), "rules_for_targets": lambda *_: ()}


def guard_modules() -> list[object]:
    return [module for module in modules_of_the_guard() if "rules_for_paths" in vars(module)]


@attack("functions of the guard are replaced, so that the host's next guard is wide", expect=SANDBOX, after=next_guard)
def next_guard_functions(ground: Ground) -> None:
    for name, function in wide_rules().items():
        for module in guard_modules():
            setattr(module, name, function)


@attack("functions of the guard are replaced in the dictionary of their module", expect=SANDBOX, after=next_guard)
def next_guard_dictionary(ground: Ground) -> None:
    wide = wide_rules()
    for module in guard_modules():
        vars(module).update(wide)


@attack(
    "functions of the guard are replaced from a file that claims to be the import system",
    expect=SANDBOX,
    after=next_guard,
)
def next_guard_as_importlib(ground: Ground) -> None:
    space = {"modules": guard_modules(), "wide": wide_rules()}
    source = "for module in modules:\n    for name, value in wide.items():\n        setattr(module, name, value)\n"
    exec(compile(source, "<frozen importlib._bootstrap>", "exec"), space)


class Leak:
    """Compared with the proxy of a class's dictionary, it is handed the dictionary itself."""

    def __eq__(self, other: object) -> bool:
        self.found = other
        return True

    __hash__ = None


@attack(
    "methods of the guard's classes are replaced in the dictionary behind their proxy", expect=SANDBOX, after=next_guard
)
def next_guard_classes(ground: Ground) -> None:
    from types import FunctionType

    kinds = {thing for module in modules_of_the_guard() for thing in vars(module).values() if isinstance(thing, type)}
    for kind in [kind for kind in kinds if kind.__module__.startswith("democrai_sandbox")]:
        leak = Leak()
        if vars(kind) == leak and isinstance(leak.found, dict):
            for name in ("file_entries", "target", "path"):
                if isinstance(leak.found.get(name), (FunctionType, property)):
                    leak.found[name] = property(lambda self: (("/", 31),))


def same_guard_again(ground: Ground) -> object:
    return ground.held.make().run(lambda: open(ground.outside).read())


@attack(
    "a wide policy is put in the place of the compiled one, which the host finds again",
    expect=SANDBOX,
    after=same_guard_again,
)
def cached_policy(ground: Ground) -> None:
    contexts = sys.modules.get("democrai_sandbox.guard.contexts")
    if contexts is None:
        return
    keys: list[object] = []
    original, space = contexts._key, vars(contexts)
    wide = contexts._compile(subject="attacker", allowed_paths=["/"])
    space["_key"] = lambda declarations: keys.append(original(declarations)) or keys[-1]
    ground.held.make()
    space["_key"] = original
    for key in keys:
        contexts._core.remember(key, wide)
    ground.held.keys = len(keys)


@attack(
    "the default values of the guard's functions are changed",
    expect=SANDBOX,
    after=lambda ground: next_bare_guard(ground),
)
def next_guard_defaults(ground: Ground) -> None:
    for module in guard_modules():
        for thing in list(vars(module).values()):
            defaults = getattr(thing, "__kwdefaults__", None)
            if isinstance(defaults, dict) and "allowed_paths" in defaults:
                defaults["allowed_paths"] = ("/",)


def next_bare_guard(ground: Ground) -> object:
    """What a guard without any declaration lets its subject read."""
    if type(ground.held.make).__name__ == "type":
        return open(ground.outside).read()
    from democrai_sandbox import process_guard_context

    return process_guard_context(subject="bare").run(lambda: open(ground.outside).read())
