"""First file of a worker process: ``bootstrap.py <packages> <environment> <lane> <control> <memory>``.

Also of the template process, which is forked for workers: ``bootstrap.py <packages> template <environment> <package>...
<link>``, with the environment of most workers and the packages to import in advance.

It runs before a guard exists, so it reads nothing that a subject can have written. The interpreter starts without
``site``: an environment's start-up files (``*.pth``, ``sitecustomize``) run later, inside the guard. Of the host's
packages only our own can be imported; all others come from the environment, in its versions.
"""

from __future__ import annotations

import os
import sys
from importlib import reload
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
        """Return the spec of one of the packages; submodules are found through the package's own path."""
        return PathFinder.find_spec(name, [self._place], target) if path is None and name in self._names else None


TEMPLATE = "template"
_SUBJECT = b"DEMOCRAI_NETWORK_SUBJECT"


def find_packages(packages: str) -> None:
    """Make our packages importable, before those of an environment, which cannot replace them; idna comes last."""
    sys.meta_path.insert(0, _Ours(("democrai_sandbox",), packages))
    sys.meta_path.append(_Ours(("idna",), packages))


_BASE = sys.prefix, sys.exec_prefix, sys.executable
_used = ""


def use_environment(environment: str) -> None:
    """Configure this interpreter for the environment like ``site``, but without running code from it.

    Empty for none. The template has used another one, which is left.
    """
    global _used  # noqa: PLW0603 - one for the process
    if environment == _used:
        return
    for folder in _packages(_used):
        sys.path.remove(folder)
    _used = environment
    sys.prefix, sys.exec_prefix, sys.executable = _BASE
    if environment not in ("", sys.prefix):
        sys.prefix = sys.exec_prefix = environment
        sys.executable = f"{environment}/bin/python"
    for name in ("site", "sysconfig"):  # imported by the template
        if name in sys.modules:
            reload(sys.modules[name])
    sys.path += _packages(environment)


def _packages(environment: str) -> list[str]:
    """Return the folders of packages. An interpreter without a virtual environment can have several."""
    if environment == _BASE[0]:
        import site  # noqa: PLC0415 - does nothing by itself with -S

        return site.getsitepackages(_BASE[:2])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [f"{environment}/lib/{version}/site-packages"] if environment else []


def show_name() -> None:
    """Show the subject of this process in ps and top; the kernel keeps 15 bytes."""
    name = b"dsb:" + os.environb.get(_SUBJECT, b"")
    try:
        with open("/proc/self/comm", "wb", buffering=0) as file:  # noqa: PTH123 - avoids importing pathlib
            file.write(name)
    except OSError:  # a confined process may not write there
        from democrai_sandbox.kernel import _native  # noqa: PLC0415 - slow import, which the template has done

        _native.set_name(name)


def main() -> None:
    """Set the interpreter up and serve."""
    packages, *words = sys.argv[1:]
    del sys.argv[1:]
    find_packages(packages)
    if words[0] == TEMPLATE:
        use_environment(words[1])
        from democrai_sandbox.runtime.worker.template import serve as serve_template  # noqa: PLC0415 - importable now

        words = serve_template(int(words[-1]), words[2:-1])  # returns in each worker
    environment, lane, control, memory = words[-4:]
    use_environment(environment)
    show_name()
    if int(lane) < 0:  # a script is run, not called
        from democrai_sandbox.runtime.worker.script import settle_script  # noqa: PLC0415 - importable now

        run, doors = settle_script(int(control), environment)
        sys.exit(run(*doors))
    from democrai_sandbox.runtime.worker.main import settle  # noqa: PLC0415 - importable now

    serve, doors = settle(int(lane), int(control), int(memory), environment)
    serve(*doors)


if __name__ == "__main__":
    main()
