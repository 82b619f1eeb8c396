"""``urllib.request``: checked in ``http.client``; here a denial is raised instead of the ``URLError`` around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .patching import adapter, raises_denials, replace

if TYPE_CHECKING:
    from types import ModuleType

_install = adapter(("OpenerDirector", "open", raises_denials))


def install(module: ModuleType) -> bool:
    """Adapt the openers; new versions do not have the oldest one."""
    if not _install(module):
        return False
    if hasattr(module, "URLopener"):
        replace(module, "URLopener", "open", raises_denials)
    return True
