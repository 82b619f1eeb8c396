"""``urllib.request``: checked in ``http.client``; here a denial is raised instead of the ``URLError`` around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checks import raise_denial
from .patching import adapter, replace

if TYPE_CHECKING:
    from types import ModuleType

    from .patching import Method


def _open(original: Method) -> Method:
    def open(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - its name
        try:
            return original(self, *args, **kwargs)
        except OSError as error:
            raise_denial(error)
            raise

    return open


_install = adapter(("OpenerDirector", "open", _open))


def install(module: ModuleType) -> bool:
    """Adapt the openers; new versions do not have the oldest one."""
    if not _install(module):
        return False
    if hasattr(module, "URLopener"):
        replace(module, "URLopener", "open", _open)
    return True
