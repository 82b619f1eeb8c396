"""First file of every Python process of an installation: ``runner.py <facts> <command> ...`` runs pip.

It runs before a guard exists, so it reads nothing that a package can have written: the interpreter is the host's,
started without ``site``. Processes that pip starts on the environment's own interpreter come here through a start file
in that environment, which calls ``start``. Needs only the standard library until it has found our own package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

PACKAGE = "package: "
"""Prefix of a line about an installed package."""


class HostPackageFinder:
    """Finds the named packages of the host, and no others."""

    def __init__(self, packages: dict[str, str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of one of the packages; submodules are found through the package's own path."""
        del path, target
        folder = self._packages.get(name)
        if folder is None:
            return None
        return importlib.util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def start(facts: dict[str, Any]) -> None:
    """Enter the guard for the rest of this process."""
    sys.meta_path.append(HostPackageFinder(facts["packages"]))
    # A temporary folder for this subject only. Without the variable, a child would use that of the host.
    os.environ["TMPDIR"] = facts["temporary"]
    from democrai_sandbox.runtime.installs.guard import arm  # noqa: PLC0415 - importable only now

    arm(facts)  # type: ignore[arg-type] # as it was written


def enter(environment: str) -> None:
    """Configure this interpreter for the environment like ``site``, but without running code from it."""
    sys.prefix = sys.exec_prefix = environment
    sys.executable = f"{environment}/bin/python"
    sys.path.append(f"{environment}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")


def run(command: str, arguments: list[str]) -> int:
    """Run pip; ``verify`` checks that the packages are compatible, and lists them."""
    from pip._internal.cli.main import main  # noqa: PLC0415 - only in the guard

    if command != "verify":
        return int(main([command, *arguments]))
    from importlib.metadata import distributions  # noqa: PLC0415 - likewise

    result = int(main(["check"]))
    for name in sorted({f"{item.metadata['Name']}=={item.version}" for item in distributions()}):
        sys.stdout.write(f"{PACKAGE}{name}\n")
    return result


if __name__ == "__main__":
    known = json.loads(sys.argv[1])
    enter(known["environment"])
    start(known)
    sys.exit(run(sys.argv[2], sys.argv[3:]))
