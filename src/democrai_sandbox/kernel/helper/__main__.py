"""The command by which the helper is started: ``python -I -S -B …/helper/__main__.py --socket … --parent-pid …``.

As an isolated script it has no package around it; one is made of this folder, so that the modules find each other, and
nothing else of the distribution is ever imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

_PACKAGE = "democrai_os_helper"


def _start() -> int:
    environment = dict(os.environ)
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} cannot be loaded")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    lifetime = importlib.import_module(f"{_PACKAGE}.lifetime")
    enforcing = importlib.import_module(f"{_PACKAGE}.enforcing")
    lifetime.alone_in_the_world()
    status: int = lifetime.run(sys.argv[1:], environment, enforcing.Enforcer)
    return status


if __name__ == "__main__":
    # Without waiting for threads that a slow name server may hold.
    os._exit(_start())
