"""In the worker process of a module: its tools, agents and pipelines run there, the models stay with the host.

Needs nothing but the standard library, as all that a worker imports.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from democrai_sandbox.manifests import Coverage, ModuleManifest, Section, Source
from democrai_sandbox.policy import InvalidInputError, rules_for_paths, rules_from_json
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.runtime import doors
from democrai_sandbox.runtime.activation import Activation
from democrai_sandbox.runtime.noticing import DECLARED

from .calling import caller
from .errors import ModelFailed
from .interface import KINDS, Message, ToolCall, ToolOffer
from .linking import called, own_places
from .running import AiRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FunctionType

    from democrai_sandbox.guard import Entrance
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.loading import Surface

    from .assets import Asset
    from .calling import Body


class Whose(NamedTuple):
    """The module of a worker, as its specification has it."""

    name: str
    folder: str
    access: str
    """The rules of its manifest, as JSON."""
    allowed_imports: tuple[str, ...]
    own_read: tuple[str, ...]
    own_write: tuple[str, ...]
    recorded: bool = False
    """Whether a manifest is to be proposed for it: then what is declared inside may go beyond the present one."""


class Opened(NamedTuple):
    """What a module declared, usable in this process."""

    surfaces: tuple[Surface, ...]
    """As the host may call them."""
    assets: tuple[Asset, ...]
    own: tuple[AccessRule, ...]
    """The rules for the places that the runtime gives to the module."""

    def required(self) -> Iterator[list[Any]]:
        """Yield what the manifest has to declare because tools, agents or pipelines do: as something noticed."""
        covered = Coverage(self.own)
        for asset in self.assets:
            for rule in asset.declaration.access or ():
                if not covered.covers(rule):
                    yield [
                        rule.resource_type.value,
                        rule.operation.value,
                        rule.normalized_target,
                        DECLARED,
                        asset.label,
                    ]
            yield from ([IMPORT, "use", root, DECLARED, asset.label] for root in asset.declaration.allowed_imports)


def open_apart(whose: Whose, surfaces: Iterable[Surface]) -> Opened:
    """Make what a module declared usable in this process.

    Done outside every guard, after the module was imported. A declaration that is wrong is refused as the host would.
    """
    taken = tuple(surfaces)
    wanted = {surface.options.get("model") for surface in taken if surface.kind == "agent"}
    runtime = AiRuntime({name: RemoteModel(name) for name in wanted if type(name) is str})
    manifest = ModuleManifest(
        name=whose.name,
        access=rules_from_json(whose.access),
        allowed_imports=whose.allowed_imports,
        source=Source(folder=whose.folder),
    )
    read = (rule for rule in rules_for_paths(whose.own_read) if rule.operation == "read")
    own = (*read, *rules_for_paths(whose.own_write))
    runtime.declare(manifest, taken, own, bound=not whose.recorded)
    problems = runtime.link().get(whose.name, ())
    if problems:
        raise InvalidInputError(problems)
    doors.install({"ai.entrance": runtime.entrance})
    found = (_callable(surface, whose.name, runtime) if surface.kind in KINDS else surface for surface in taken)
    return Opened(tuple(found), runtime.assets, own)


def hold_against_nothing(assets: Iterable[Asset]) -> None:
    """Have what the declarations of assets allow compared with no rules at all, so that each use of them is told."""
    for asset in assets:
        if asset.declaration.access is not None:
            nothing = Section(allowed_imports=asset.declaration.allowed_imports)
            Activation(asset.declaration.subject, nothing, own_read=own_places(asset)).held_against(nothing)


def open_tool(name: str, surfaces: Iterable[Surface]) -> tuple[Surface, ...]:
    """Return the one surface of the worker of a tool, to be called with plain arguments; it answers with outcomes."""
    short = name.rpartition(".")[2]
    for surface in surfaces:
        if (surface.kind, surface.name) == ("tool", short):
            return (surface._replace(function=cast("FunctionType", _plainly(caller(called(surface.function))))),)
    raise InvalidInputError.of(f"the module declares no tool {short!r}")


def _plainly(body: Body) -> Callable[..., Any]:
    async def run(**arguments: Any) -> Any:
        return await body(arguments)

    return run


def _callable(surface: Surface, module: str, runtime: AiRuntime) -> Surface:
    """Return a surface that leads through the entrance: called as the module, it becomes the subject it is."""
    entrance = runtime.entrance(None, surface.kind, f"{module}.{surface.name}")
    return surface._replace(function=cast("FunctionType", _through(entrance)))


def _through(entrance: Entrance) -> Callable[..., Any]:
    async def run(**arguments: Any) -> Any:
        return await entrance(arguments)

    return run


class RemoteModel:
    """A model of the host's. The host asks it as the agent that is asking here, and under what that may use."""

    def __init__(self, name: str) -> None:
        """Take the name by which the host has it."""
        self._name = name

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Have the host ask for the next message."""
        said = [[role, text, [list(call) for call in calls], to] for role, text, calls, to in messages]
        offers = [[name, about, dict(parameters)] for name, about, parameters in tools]
        given = doors.call("ai.complete", self._name, said, offers)
        answer = await given if asyncio.isfuture(given) else given  # a stand-in of a test answers at once
        if answer[0] != "said":
            raise ModelFailed(answer[1])
        _, text, calls = answer
        return Message("assistant", text, tuple(ToolCall(*call) for call in calls))
