"""Worker side of a module's tools, agents and pipelines: they run here, the models stay with the host.

Needs only the standard library, like everything that a worker imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.manifests import Coverage, ModuleManifest, Section, Source
from democrai_sandbox.policy import AccessRule, InvalidInputError, rules_for_paths, rules_from_json
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.runtime import sdk_services
from democrai_sandbox.runtime.calls.access_recorder import DECLARED
from democrai_sandbox.runtime.calls.invocation import GuardFactory

from .asset_calls import Called, caller
from .model import KINDS, Message, ToolCall, ToolOffer
from .runtime import AiRuntime, own_places

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from types import FunctionType

    from democrai_sandbox.runtime.extensions.importer import Surface
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    from .assets import Asset


class Opened(NamedTuple):
    """Declared functions of a module, usable in this process."""

    surfaces: tuple[Surface, ...]
    """Surfaces that the host may call."""
    assets: tuple[Asset, ...]
    own: tuple[AccessRule, ...]
    """Rules for the folders that the runtime gives to the module."""

    def required(self) -> Iterator[list[Any]]:
        """Yield accesses that the manifest has to declare because tools, agents or pipelines declare them."""
        covered = Coverage(self.own)
        for asset in self.assets:
            for rule in asset.declaration.access or ():
                if not covered.covers(rule):
                    what = (rule.resource_type.value, rule.operation.value, rule.normalized_target)
                    yield [*what, DECLARED, asset.label]
            yield from ([IMPORT, "use", root, DECLARED, asset.label] for root in asset.declaration.allowed_imports)


def open_in_worker(whose: WorkerSpec, surfaces: Iterable[Surface]) -> Opened:
    """Make the declared functions of a module usable in this process.

    Call it outside every guard, after the module was imported. Invalid declarations are refused as in the host. The
    assets of a module that is recorded for a proposal may declare more than its manifest.
    """
    taken = tuple(surfaces)
    wanted = {surface.options.get("model") for surface in taken if surface.kind == "agent"}
    has_host = sdk_services.is_served("ai.run")
    models = {name: RemoteModel(name) for name in wanted if type(name) is str}
    runtime = AiRuntime(models, elsewhere=lambda _name: has_host)
    manifest = ModuleManifest(
        name=whose.name,
        access=rules_from_json(whose.access),
        allowed_imports=whose.allowed_imports,
        source=Source(folder=whose.folder),
    )
    read = (rule for rule in rules_for_paths(whose.own_read) if rule.operation == "read")
    own = (*read, *rules_for_paths(whose.own_write))
    runtime.declare(manifest, taken, own, bound=not whose.tells_accesses)
    problems = runtime.link().get(whose.name, ())
    if problems:
        raise InvalidInputError(problems)
    sdk_services.install({"ai.entrance": runtime.entrance})
    found = (_callable(surface, whose.name, runtime) if surface.kind in KINDS else surface for surface in taken)
    return Opened(tuple(found), runtime.assets, own)


def hold_against_nothing(assets: Iterable[Asset]) -> None:
    """Compare the checks of assets with empty rules, so that each use of their declarations is reported."""
    for asset in assets:
        if asset.declaration.access is not None:
            nothing = Section(allowed_imports=asset.declaration.allowed_imports)
            GuardFactory(asset.declaration.subject, nothing, own_read=own_places(asset)).held_against(nothing)


def open_tool(name: str, surfaces: Iterable[Surface]) -> tuple[Surface, ...]:
    """Return the only surface in the worker of a tool; it takes plain arguments and returns outcomes."""
    short = name.rpartition(".")[2]
    for surface in surfaces:
        if (surface.kind, surface.name) == ("tool", short):
            return (surface._replace(function=cast("FunctionType", _by_name(caller(Called(surface.function))))),)
    raise InvalidInputError.of(f"the module declares no tool {short!r}")


def _callable(surface: Surface, module: str, runtime: AiRuntime) -> Surface:
    """Return a surface that enters the asset's own guard when the module calls it."""
    entrance = runtime.entrance(None, surface.kind, f"{module}.{surface.name}")
    return surface._replace(function=cast("FunctionType", _by_name(entrance)))


def _by_name(body: Callable[[dict[str, Any]], Awaitable[Any]]) -> Callable[..., Any]:
    async def run(**arguments: Any) -> Any:
        return await body(arguments)

    return run


class RemoteModel:
    """A model of the host. The host asks it as the agent that asks here, with the rights of that agent."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Ask the host for the next message."""
        said = [[role, text, [list(call) for call in calls], to] for role, text, calls, to in messages]
        offers = [[name, about, dict(parameters)] for name, about, parameters in tools]
        answer = await sdk_services.later(sdk_services.call("ai.complete", self._name, said, offers))
        if answer[0] != "said":
            raise ModelFailed(answer[1])
        _, text, calls = answer
        return Message("assistant", text, tuple(ToolCall(*call) for call in calls))
