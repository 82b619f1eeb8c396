"""``urllib.request``: checked in ``http.client``; here a denial is taken out of the ``URLError`` it is put into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .checks import Permitted
from .patching import adapter, replace

if TYPE_CHECKING:
    from types import ModuleType

    from .patching import Method


def _open(original: Method) -> Method:
    def open(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - its name
        if not _core.subject_key():
            return original(self, *args, **kwargs)
        with Permitted():
            return original(self, *args, **kwargs)

    return open


_install = adapter(("OpenerDirector", "open", _open))


def install(module: ModuleType) -> bool:
    """Adapt the openers; the oldest one is gone in new versions."""
    if not _install(module):
        return False
    if hasattr(module, "URLopener"):
        replace(module, "URLopener", "open", _open)
    return True
