"""Command of the helper: ``python -I -S -B …/helper/__main__.py --socket … --parent-pid …``.

An isolated script has no package, so this script creates one from its folder. Its modules can then import each other,
but nothing else from the distribution.
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
    main = importlib.import_module(f"{_PACKAGE}.main")
    enforcer = importlib.import_module(f"{_PACKAGE}.enforcer")
    main.reset_environment()
    status: int = main.run(sys.argv[1:], environment, enforcer.Enforcer)
    return status


if __name__ == "__main__":
    # Exit without waiting for threads, which a slow name server may block.
    os._exit(_start())
