"""The code for asyncio's ``Handle.__init__``, with one call to the core in it, for each handle that is given a context.

A loop runs a callback in the context of its handle. Guarded code could hand over a context of the host's, which carries
no guard; the core then binds the callback to the guard it came from. The function that is called is a constant of the
code, not a name that guarded code could replace. Nothing here imports asyncio: the core moves the code in when the
application does.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ._core import bind_foreign

if TYPE_CHECKING:
    from types import CodeType

_PLACE = "the core's bind_foreign"

# Compiled as text so that the names are asyncio.events' own, where the code will live.
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
    """Return the code to put in the place of ``Handle.__init__``'s."""
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a text is not callable; it is about to become a function
        compiled = compile(_SOURCE.replace("BIND", repr(_PLACE)), "<asyncio.events>", "exec")
    exec(compiled, scope)  # noqa: S102 - our own text, above
    code: CodeType = scope["__init__"].__code__
    return code.replace(co_consts=tuple(bind_foreign if const == _PLACE else const for const in code.co_consts))
