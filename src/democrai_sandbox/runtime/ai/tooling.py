"""In the host: tools that have a process of their own, whatever process their module runs in."""

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
    """The worker of a tool, as far as it is needed here."""

    async def call(
        self, kind: str, name: str, params: Mapping[str, Any], *, caller: Caller, ancestors: tuple[str, ...]
    ) -> Any:
        """Call the tool there for somebody, as the end of a chain, and return its outcome."""
        ...


class Tooling:
    """Makes what runs in the place of a tool's own function: a door, through which the host asks the worker."""

    def __init__(self) -> None:
        """Serve once ``promises`` is open."""
        self.promises = Promises("the tool", patience=300.0)

    def body(self, asset: Asset, worker: Worker) -> Body:
        """Return a body for the entrance of a tool. Made by the host, outside every guard."""

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
    """Return for whom the tool works: by its guard, with the role that the request has."""
    who = Caller(user_id=view.user_id, organization_id=view.organization_id, session_key=view.session_key)
    present = served()
    return present if type(present) is Caller and present[:3] == who[:3] else who
