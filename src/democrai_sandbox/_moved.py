"""Old import paths: each works until version 0.3, with one warning that names the new path."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

REMOVAL = "0.3"
MODULES = {
    f"democrai_sandbox.{old}": f"democrai_sandbox.{new}"
    for old, new in {
        "access.sealing": "access.encryption",
        "runtime.ai.interface": "runtime.ai.model",
        "runtime.assembly": "runtime.runtime",
        "runtime.settings": "runtime.extensions.settings",
        "runtime.surroundings": "runtime.access_environment",
    }.items()
}


def warn_moved(old: str, new: str) -> None:
    """Warn the importer, whose frame follows those of the import system."""
    import warnings  # noqa: PLC0415 - not needed for --help

    message = f"{old} is now {new}; the old name will be removed in version {REMOVAL}"
    warnings.warn(message, FutureWarning, stacklevel=3)


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module in which names have changed."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_moved(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return get


class MovedModules:
    """Finder of modules at old paths, after all other finders."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the specification of a module at an old path, or None for other names."""
        if name not in MODULES:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415 - as above

        warn_moved(name, MODULES[name])
        return ModuleSpec(name, ForwardingLoader())  # type: ignore[arg-type] # the two methods that imports call


class ForwardingLoader:
    """Loader of modules at old paths."""

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """Let the import system create the module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Copy the names of the module at the new path."""
        from importlib import import_module  # noqa: PLC0415 - as above

        found = vars(import_module(MODULES[module.__name__]))
        vars(module).update({name: value for name, value in found.items() if not name.startswith("__")})


sys.meta_path.append(MovedModules)
