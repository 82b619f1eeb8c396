"""A program in Python that takes its guard from its environment, and is stopped where the module is."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox import current_guard, process_guard_context_from_env

if TYPE_CHECKING:
    from collections.abc import Callable


def work() -> dict[str, object]:
    """Do something useful, then try what the module must not do either."""
    view = current_guard()
    return {
        "who": [str(subject) for subject in view.subject_chain] if view else [],
        "words": len(sys.stdin.read().split()),
        "read a file of the host": _try(lambda: Path("/etc/passwd").read_text()),
        "reach another host": _try(lambda: urllib.request.urlopen("http://203.0.113.7/", timeout=1)),
        "start a program": _try(lambda: subprocess.run(["/bin/true"], check=True)),
    }


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"


print(json.dumps(process_guard_context_from_env().run(work)))
