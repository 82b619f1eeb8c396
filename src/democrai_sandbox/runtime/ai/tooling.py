"""Host side of tools that run in a separate process, independent of their module's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.guard import door, served
from democrai_sandbox.guard.views import RawView
from democrai_sandbox.runtime.promises import Promises

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .assets import Asset
    from .calling import Body


class Worker(Protocol):
    """The part of a tool's worker that is needed here."""

    async def call(
        self, kind: str, name: str, params: Mapping[str, Any], *, caller: Caller, ancestors: tuple[str, ...]
    ) -> Any:
        """Call the tool there on behalf of ``caller``, at the end of a call chain, and return its outcome."""
        ...


class Tooling:
    """Creates the replacement for a tool's function, which asks the worker through the host."""

    def __init__(self) -> None:
        """Create the service; it works after ``promises`` is open."""
        self.promises = Promises("the tool", patience=300.0)

    def body(self, asset: Asset, worker: Worker) -> Body:
        """Return a body for the entrance of a tool. Called by the host, outside every guard."""

        def ask(view: tuple[Any, ...] | None, given: dict[str, Any]) -> Any:
            raw = None if view is None else RawView(*view)
            if raw is None or raw.labels[-1] != asset.label or raw.narrowed:
                raise TamperDenied(asset.label)
            return self.promises.promise(
                worker.call("tool", asset.short, given, caller=_caller(raw), ancestors=raw.labels[:-1])
            )

        knock = door(ask)

        async def run(given: Any) -> Any:
            return await knock(given)

        return run


def _caller(view: RawView) -> Caller:
    """Return the caller for the tool: the identity from its guard, with the role of the served request."""
    who = Caller(user_id=view.user_id, organization_id=view.organization_id, session_key=view.session_key)
    present = served()
    return present if type(present) is Caller and present[:3] == who[:3] else who
