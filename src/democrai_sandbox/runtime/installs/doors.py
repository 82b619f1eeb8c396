"""Engine and extractor services for guarded code: plain data in, futures of plain data out."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.guard import served
from democrai_sandbox.policy import InvalidInputError, nearest
from democrai_sandbox.runtime.worker.interface import Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.runtime.engines import InstalledRuntime

_MOST_STREAMS = 64


class _Lent:
    """A stream, the only caller that may read it, and whether a read is in progress."""

    def __init__(self, runtime: InstalledRuntime, owner: tuple[Any, ...], items: AsyncIterator[Any]) -> None:
        self.runtime = runtime
        self.owner = owner
        self.items = items
        self.busy = False


class EngineDoors:
    """The functions behind the service names of ``services``."""

    def __init__(self, engines: InstalledRuntime, extractors: InstalledRuntime) -> None:
        """Serve guarded code from these runtimes."""
        self._runtimes: Mapping[str, InstalledRuntime] = {"engine": engines, "extractor": extractors}
        self._lent: dict[str, _Lent] = {}

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the service functions by name."""
        return {
            "engines.call": self.call,
            "engines.open": self.open,
            "engines.next": self.next,
            "engines.close": self.close,
            "engines.settings": self.settings,
        }

    def call(self, view: RawView | None, address: Any, params: Any, seconds: Any) -> Any:
        """Return a future of a method's result; its address is the kind, the name, and the method."""
        runtime, chain, caller = self._checked(view, address, params, seconds)
        _, name, method = address
        return runtime.promises.promise(runtime.call(name, method, params, caller, ancestors=chain, timeout=seconds))

    def open(self, view: RawView | None, address: Any, params: Any, seconds: Any) -> str:
        """Return the token for reading the items of a generator method. Nothing runs until the first read."""
        runtime, chain, caller = self._checked(view, address, params, seconds)
        _, name, method = address
        owner = _owner(view)
        if sum(lent.owner == owner for lent in self._lent.values()) >= _MOST_STREAMS:
            raise InvalidInputError.of(f"more than {_MOST_STREAMS} streams are open: close those you no longer read")
        token = secrets.token_urlsafe(16)
        items = runtime.stream(name, method, params, caller, ancestors=chain, timeout=seconds)
        self._lent[token] = _Lent(runtime, owner, items)
        return token

    def next(self, view: RawView | None, token: Any) -> Any:
        """Return a future of a list with the next item; the list is empty at the end."""
        lent = self._lent.get(token) if type(token) is str else None
        # The guard identifies the owner, so a token is useless to another subject.
        if lent is None or lent.owner != _owner(view) or lent.busy:
            raise InvalidInputError.of("unknown stream, or another read is in progress", pointer="/stream")
        lent.busy = True
        return lent.runtime.promises.promise(self._next(token, lent))

    async def _next(self, token: str, lent: _Lent) -> list[Any]:
        try:
            return [await anext(lent.items)]
        except StopAsyncIteration:
            self._lent.pop(token, None)
            return []
        except BaseException:
            self._lent.pop(token, None)
            raise
        finally:
            lent.busy = False

    def close(self, view: RawView | None, token: Any) -> None:
        """End a stream; ignore one that has ended already."""
        lent = self._lent.get(token) if type(token) is str else None
        if lent is not None and lent.owner == _owner(view):
            del self._lent[token]
            lent.runtime.promises.promise(_close(lent.items))

    def settings(self, view: RawView | None) -> dict[str, Any]:
        """Return the stored configuration of the calling engine or extractor."""
        for label in reversed(view.labels if view else ()):
            kind, _, name = label.partition(":")
            if kind in self._runtimes:
                return dict(self._runtimes[kind].configuration(name))
        raise InvalidInputError.of("only an engine or an extractor has a stored configuration")

    def _checked(
        self, view: RawView | None, address: Any, params: Any, seconds: Any
    ) -> tuple[InstalledRuntime, tuple[str, ...], Identity | Caller]:
        if view is None:
            raise InvalidInputError.of("this code is not guarded: call the runtime of the host directly")
        if type(address) not in (list, tuple) or [type(part) for part in address] != [str, str, str]:
            raise InvalidInputError.of("expected the name of an engine, and of one of its methods", pointer="/name")
        kind, name, _ = address
        if kind not in self._runtimes:
            suggestion = nearest(kind, self._runtimes)
            raise InvalidInputError.of("expected engine or extractor", pointer="/kind", suggestion=suggestion)
        if type(params) is not dict:
            raise InvalidInputError.of(f"expected an object, got {type(params).__name__}", pointer="/params")
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < float("inf")):
            raise InvalidInputError.of("expected a positive number of seconds", pointer="/timeout")
        if f"{kind}:{name}" in view.labels:
            # It would wait for itself: its worker may have no free thread for the call.
            raise InvalidInputError.of(f"{kind} {name} is already in the call chain", pointer="/name")
        return self._runtimes[kind], tuple(view.labels), _caller(view)


def _owner(view: RawView | None) -> tuple[Any, ...]:
    return () if view is None else (view.labels, view.user_id, view.organization_id, view.session_key)


def _caller(view: RawView) -> Identity | Caller:
    """Return the caller: the served request, if its identity is that of the guard; otherwise the guard's identity."""
    parts = (view.user_id, view.organization_id, view.session_key)
    identity = Identity(*("" if part is None else str(part) for part in parts))
    request = served()
    same = type(request) is Caller and request[:3] == identity[:3]
    return request if same else identity


async def _close(items: Any) -> None:
    await items.aclose()
