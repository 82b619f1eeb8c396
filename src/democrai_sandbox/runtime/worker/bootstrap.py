"""The first file of a worker process: ``bootstrap.py <packages> <environment> <lane> <control>``.

It runs before there is a guard, so it touches nothing that a subject can have written. The interpreter was started
without ``site``: an environment's start-up files (``*.pth``, ``sitecustomize``) are run later, inside the guard. Of the
host's packages only our own can be imported; all others are the environment's, in its own versions.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class _Ours:
    """Finds the named packages beside this one, and nothing else there."""

    def __init__(self, names: tuple[str, ...], place: str) -> None:
        self._names = names
        self._place = place

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where one of the packages is; what is inside it is found by its own path."""
        return PathFinder.find_spec(name, [self._place], target) if path is None and name in self._names else None


def prepare(packages: str, environment: str) -> None:
    """Make this interpreter the environment's, as ``site`` would, but for running what lies in it."""
    if environment:
        sys.prefix = sys.exec_prefix = environment
        sys.executable = f"{environment}/bin/python"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        sys.path.append(f"{environment}/lib/{version}/site-packages")
    # Ours comes before all others, so that no environment has one of its own; idna is taken where there is no other.
    sys.meta_path.insert(0, _Ours(("democrai_sandbox",), packages))
    sys.meta_path.append(_Ours(("idna",), packages))


def main() -> None:
    """Set the interpreter up and serve."""
    packages, environment, lane, control = sys.argv[1:]
    del sys.argv[1:]
    prepare(packages, environment)
    if int(lane) < 0:  # nothing is called in a script, it is run
        from democrai_sandbox.runtime.scripts.main import settle_script  # noqa: PLC0415 - only now it can be found

        run, doors = settle_script(int(control), environment)
        sys.exit(run(*doors))
    from democrai_sandbox.runtime.worker.main import settle  # noqa: PLC0415 - likewise

    serve, doors = settle(int(lane), int(control), environment)
    serve(*doors)


if __name__ == "__main__":
    main()
