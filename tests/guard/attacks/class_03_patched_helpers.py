"""Class 3, a helper the guard might lean on is replaced by the subject."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FILES, PROCESS, SANDBOX, Denied, Ground, attack

ANY_ERROR = Denied(("sandbox_", "Guard"), or_nothing=True)


def read(ground: Ground) -> object:
    return open(ground.outside).read()


@attack("the functions of os.path that resolve paths all answer with a path inside", expect=FILES)
def path_functions(ground: Ground) -> object:
    for name in ("realpath", "abspath", "normpath", "join", "commonpath", "dirname", "expanduser"):
        setattr(os.path, name, lambda *_, **__: f"{ground.inside}/own.txt")
    return read(ground)


@attack("os.fspath and os.fsdecode answer with a path inside", expect=FILES)
def fspath(ground: Ground) -> object:
    os.fspath = os.fsdecode = os.fsencode = lambda path: f"{ground.inside}/own.txt"
    return read(ground)


@attack("os.stat, os.readlink and os.getcwd are replaced", expect=FILES)
def os_functions(ground: Ground) -> object:
    os.readlink = os.getcwd = lambda *_, **__: ground.inside
    os.lstat = os.stat = lambda *_, **__: None
    return read(ground)


@attack("the builtins that checks are written with always say yes", expect=FILES)
def builtin_functions(ground: Ground) -> object:
    import builtins

    kept = dict(vars(builtins))
    builtins.isinstance = builtins.issubclass = builtins.any = builtins.all = lambda *_: True
    builtins.PermissionError = ValueError
    try:
        return read(ground)
    finally:
        vars(builtins).update(kept)


@attack("contextvars offers another ContextVar", expect=FILES)
def context_variables(ground: Ground) -> object:
    import contextvars

    class Empty:
        def get(self, *_: object) -> None:
            return None

    contextvars.ContextVar = contextvars.copy_context = lambda *_, **__: Empty()
    return contextvars.Context().run(read, ground)


def stub(*_: object, **__: object) -> bool:
    return True


def modules_of_the_guard() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "democrai_sandbox"]


@attack("every function and class of the guard's own modules is replaced by one that says yes", expect=ANY_ERROR)
def modules_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for name in list(vars(module)):
            if not name.startswith("__"):
                try:
                    setattr(module, name, stub)
                except Exception:  # noqa: S110 - a refusal is fine, the next name follows
                    pass
    return read(ground)


@attack("every method of every class of the guard's own modules is replaced by one that says yes", expect=ANY_ERROR)
def methods_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and thing.__module__.startswith("democrai_sandbox"):
                for name in list(vars(thing)):
                    if not name.startswith("__"):
                        try:
                            setattr(thing, name, stub)
                        except Exception:  # noqa: S110 - same reason
                            pass
    return read(ground)


@attack("the method that decides about access says yes in every class that has it", expect=ANY_ERROR)
def decider_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and hasattr(thing, "decide"):
                try:
                    thing.decide = stub
                except Exception:  # noqa: S110 - same reason
                    pass
    return read(ground)


@attack("the error classes of the guard stop raising", expect=ANY_ERROR)
def errors_replaced(ground: Ground) -> object:
    errors = sys.modules.get("democrai_sandbox.errors")
    for name in list(vars(errors)) if errors else []:
        thing = getattr(errors, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            for method in ("__init__", "__new__"):
                try:
                    setattr(thing, method, lambda *_, **__: None)
                except Exception:  # noqa: S110 - same reason
                    pass
    return read(ground)


@attack("the modules of the guard vanish from sys.modules and are imported again", expect=SANDBOX)
def modules_removed(ground: Ground) -> object:
    for name in [name for name in sys.modules if name.partition(".")[0] == "democrai_sandbox"]:
        del sys.modules[name]
    try:
        import democrai_sandbox

        democrai_sandbox.configure_guard(protected_paths=())
    except (ImportError, AttributeError):
        pass
    return read(ground)


@attack("Popen's announcement is switched off by replacing sys.audit", expect=PROCESS)
def audit_replaced(ground: Ground) -> object:
    import subprocess

    sys.audit = lambda *_: None
    return subprocess.run(["/bin/cat", ground.outside], stdout=subprocess.PIPE, check=True).stdout


@attack("warnings and traceback formatting, which a denial may use, are replaced by the secret's reader", expect=FILES)
def formatting_replaced(ground: Ground) -> object:
    import traceback
    import warnings

    traceback.extract_stack = traceback.format_stack = lambda *_, **__: ground.steal()
    warnings.warn = lambda *_, **__: ground.steal()
    return read(ground)


@attack("the logger that a denial may be written to belongs to the subject", expect=FILES)
def logger_replaced(ground: Ground) -> object:
    import logging

    class Thief(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ground.steal()

    for name in ("", "democrai_sandbox", "democrai_sandbox.guard"):
        logging.getLogger(name).addHandler(Thief())
        logging.getLogger(name).setLevel(1)
    return read(ground)
