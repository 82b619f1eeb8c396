"""Host side of tools, agents and pipelines that run in worker processes, and of the models of their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.guard import door, plain
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.access_environment import caller_of
from democrai_sandbox.runtime.sdk_services import SdkFutures

from .asset_calls import as_run
from .model import KINDS, AssetRun, Message, Model, NamedModel, ToolCall, ToolOffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.runtime.extensions.importer import Surface
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    from .asset_calls import Body
    from .assets import Asset


class WorkerAsset(NamedTuple):
    """An asset in a worker."""

    kind: str
    name: str
    """Name without the module's name."""
    model: str
    worker: WorkerHandle

    async def run(self, params: dict[str, Any], caller: Caller, seconds: float) -> AssetRun:
        """Run it there, and return its result; raise its denial or error."""
        outcome = await self.worker.call(self.kind, self.name, params, caller=caller, timeout=seconds)
        return as_run(self.kind, plain(outcome))


class WorkerAssets:
    """Assets declared in workers, by label, and the model service for their agents."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        """Take the models by name."""
        self._models = models
        self._found: dict[str, WorkerAsset] = {}
        self.promises = SdkFutures("ai.complete", patience=300.0)

    def declare(self, module: str, surfaces: Iterable[Surface | SurfaceInfo], worker: WorkerHandle) -> None:
        """Register the assets that a module declared and validated in its worker."""
        for surface in surfaces:
            if surface.kind in KINDS:
                model = surface.options.get("model", "") if surface.kind == "agent" else ""
                label = f"{surface.kind}:{module}.{surface.name}"
                self._found[label] = WorkerAsset(surface.kind, surface.name, model, worker)

    def agents(self) -> Iterator[tuple[str, str]]:
        """Yield the full name and the model name of each agent."""
        for label, far in tuple(self._found.items()):
            if far.kind == "agent":
                yield label.partition(":")[2], far.model

    def get(self, label: str) -> WorkerAsset | None:
        """Return an asset by its label."""
        return self._found.get(label)

    def complete(self, view: RawView | None, name: str, messages: list[Any], tools: list[Any]) -> Any:
        """Ask a model for an agent in a worker: the service ``ai.complete``. Return a future."""
        agent = None if view is None else self._found.get(view.labels[-1])
        if view is None or agent is None or agent.kind != "agent" or agent.model != name:
            raise InvalidInputError.of("an agent can only use the model that it declared", pointer="/model")
        said = tuple(
            Message(role, text, tuple(ToolCall(*call) for call in calls), to) for role, text, calls, to in messages
        )
        offers = tuple(ToolOffer(*offer) for offer in tools)
        return self.promises.promise(_completed(_guard_of(view), NamedModel(name, self._models), said, offers))


async def _completed(guard: Guard, model: Model, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Any:
    """Return the reply of a model as plain data, or its failure; raise a denial."""
    try:
        steps: Any = guard.run(model.complete, messages, tools)
        reply: Message = await steps.isolated()
    except ModelFailed as error:
        return ["failed", str(error)]
    return ["said", reply.text, [list(call) for call in reply.tool_calls]]


def _guard_of(view: RawView) -> Guard:
    """Return a guard with the rights of an agent in a worker. The view was verified by the host."""
    *outer, agent = view.chain
    return make_guard(
        subject=agent.name,
        subject_kind=agent.kind.value,
        access=tuple(rule for link in view.allow_chain for rule in link.rules),
        ancestors=tuple(outer),
        user_id=view.user_id,
        organization_id=view.organization_id,
        session_key=view.session_key,
        exact=True,
    )


class IsolatedTools:
    """Creates the replacement for a tool's function, which asks the worker through the host."""

    def __init__(self) -> None:
        """Create the service; it works after ``promises`` is open."""
        self.promises = SdkFutures("the tool", patience=300.0)

    def body(self, asset: Asset, worker: WorkerHandle) -> Body:
        """Return a body for the entrance of a tool. Called by the host, outside every guard."""

        def ask(view: tuple[Any, ...] | None, given: dict[str, Any]) -> Any:
            raw = None if view is None else RawView(*view)
            if raw is None or raw.labels[-1] != asset.label or raw.narrowed:
                raise TamperDenied(asset.label)
            return self.promises.promise(
                worker.call("tool", asset.short, given, caller=caller_of(raw), ancestors=raw.labels[:-1])
            )

        knock = door(ask)

        async def run(given: Any) -> Any:
            return await knock(given)

        return run
