"""Code of asyncio's ``Handle.__init__`` with a call to the core for each handle that gets a context.

A loop runs a callback in the context of its handle. Guarded code could pass a context of the host, which has no guard,
so the core binds the callback to the guard it came from. The called function is a constant of the code, not a name that
guarded code could replace. This module does not import asyncio: the core installs the code when the application imports
it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ._core import bind_foreign

if TYPE_CHECKING:
    from types import CodeType

_PLACE = "the core's bind_foreign"

# Compiled from text, so that the names are resolved in asyncio.events, where the code will run.
_SOURCE = """
def __init__(self, callback, args, loop, context=None):
    if context is None:
        context = contextvars.copy_context()
    else:
        callback = BIND(callback, context)
    self._context = context
    self._loop = loop
    self._callback = callback
    self._args = args
    self._cancelled = False
    self._repr = None
    self._source_traceback = format_helpers.extract_stack(sys._getframe(1)) if loop.get_debug() else None
"""


def handle_code() -> CodeType:
    """Return the replacement for the code of ``Handle.__init__``."""
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a text is not callable; it is replaced by a function below
        compiled = compile(_SOURCE.replace("BIND", repr(_PLACE)), "<asyncio.events>", "exec")
    exec(compiled, scope)  # noqa: S102 - our own text, above
    code: CodeType = scope["__init__"].__code__
    return code.replace(co_consts=tuple(bind_foreign if const == _PLACE else const for const in code.co_consts))
