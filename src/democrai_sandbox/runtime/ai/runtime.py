"""Runtime of tools, agents and pipelines in the host, and the host side of those that run in worker processes.

Each name that an asset uses is resolved before anything runs.
"""

from __future__ import annotations

import re
from collections import Counter
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from democrai_sandbox import policy
from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.errors.services import AssetUnknown, ModelFailed, NestingTooDeep
from democrai_sandbox.guard import Entrance, Guard, door, entrance, plain, serve
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.runtime.access_environment import caller_of
from democrai_sandbox.runtime.calls.invocation import bounded
from democrai_sandbox.runtime.extensions.importer import Surface
from democrai_sandbox.runtime.sdk_services import SdkFutures

from . import asset_calls
from .assets import Asset, Assets, host_asset, module_assets, worker_declarations
from .model import KINDS, AgentLimits, AssetKind, AssetRun, KnownModels, Message, Model, NamedModel, ToolCall, ToolOffer
from .schema import signature_shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from democrai_sandbox.access import Caller
    from democrai_sandbox.manifests import ModuleManifest
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    from .asset_calls import Body
    from .assets import Declared

    Activate = Callable[[str, Caller], Guard]
    Apart = Callable[[Asset], Body | None]


class WorkerAsset(NamedTuple):
    """An asset in a worker."""

    kind: str
    short: str
    """Name without the module's name."""
    module: str
    model: str
    worker: WorkerHandle
    declaration: Declared
    places: tuple[str, ...]
    """Folders that the runtime gave to the module."""

    @property
    def label(self) -> str:
        """Subject that it runs as."""
        return str(self.declaration.subject)


async def run_in_worker(
    worker: WorkerHandle, kind: str, name: str, params: dict[str, Any], *, caller: Caller, seconds: float
) -> AssetRun:
    """Run an asset in its worker by its short name, and return its result; raise its denial or error."""
    return asset_calls.as_run(kind, plain(await worker.call(kind, name, params, caller=caller, timeout=seconds)))


class WorkerAssets:
    """Assets declared in workers, by label, and the model service for their agents."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._found: dict[str, WorkerAsset] = {}
        self.promises = SdkFutures("ai.complete", patience=300.0)

    def declare(
        self, manifest: ModuleManifest, surfaces: Iterable[SurfaceInfo], own: Sequence[AccessRule], worker: WorkerHandle
    ) -> None:
        """Register the assets that a module declared in its worker; ``own`` are the rules for the module's folders."""
        places = tuple(dict.fromkeys(rule.normalized_target for rule in own))
        for surface, declared in worker_declarations(manifest, surfaces, own):
            model = surface.options.get("model", "") if surface.kind == "agent" else ""
            found = WorkerAsset(surface.kind, surface.name, manifest.name, model, worker, declared, places)
            self._found[found.label] = found

    def __iter__(self) -> Iterator[WorkerAsset]:
        """Yield all assets."""
        return iter(tuple(self._found.values()))

    def get(self, label: str) -> WorkerAsset | None:
        """Return an asset by its label."""
        return self._found.get(label)

    def complete(self, view: RawView | None, name: str, messages: list[Any], tools: list[Any]) -> Any:
        """Ask a model for an agent in a worker: the service ``ai.complete``. Return a future."""
        agent = None if view is None else self._found.get(view.labels[-1])
        if view is None or agent is None or agent.kind != "agent" or agent.model != name:
            raise policy.InvalidInputError.of("an agent can only use the model that it declared", pointer="/model")
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


_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_OFFER = 64


class ResolvedAssets:
    """Assets with their entrances. An asset that uses an unknown name has problems instead."""

    def __init__(
        self, assets: Assets, models: Mapping[str, Model], limits: AgentLimits, apart: Apart = lambda _asset: None
    ) -> None:
        """Create an entrance for each asset. Called by the host, outside every guard.

        ``apart`` returns the replacement for the function of a tool that runs in a separate process.
        """
        self._apart = apart
        self._assets, self._models, self._limits = assets, models, limits
        self._made: dict[str, Entrance | None] = {}
        self._open: list[str] = []
        self.problems: dict[str, list[policy.Problem]] = {}
        """By the label of the asset."""
        for asset in assets:
            self._link(asset)
        self.entrances: Mapping[str, Entrance] = MappingProxyType(
            {label: made for label, made in self._made.items() if made is not None}
        )
        """By the label of the asset."""

    def _link(self, asset: Asset) -> Entrance | None:
        if asset.label in self._made:
            return self._made[asset.label]
        if asset.label in self._open:
            self._refuse(asset, "steps", f"{asset.label} contains itself: {' -> '.join((*self._open, asset.label))}")
            return None
        self._open.append(asset.label)
        body = self._body(asset)
        self._open.remove(asset.label)
        made = None if body is None or asset.label in self.problems else _entrance(asset, body)
        self._made[asset.label] = made
        return made

    def _refuse(self, asset: Asset, option: str, message: str) -> None:
        pointer = policy.pointer_to(f"/{asset.kind}/{asset.short}", option)
        self.problems.setdefault(asset.label, []).append(policy.Problem(pointer, message))

    def _body(self, asset: Asset) -> Body | None:
        if asset.kind is AssetKind.TOOL:
            return self._apart(asset) or asset_calls.caller(asset_calls.Called(asset.function))
        return self._agent(asset) if asset.kind is AssetKind.AGENT else self._pipeline(asset)

    def _agent(self, asset: Asset) -> Body | None:
        tools, made = self._tools(asset)
        names = offer_names(tools)
        if len(set(names.values())) < len(names):
            self._refuse(asset, "tools", "two tools have the same name for the model")
        if asset.label in self.problems:
            return None
        return asset_calls.agent_body(
            asset_calls.AgentPlan(
                asset.name,
                asset_calls.Called(asset.function),
                asset.instructions,
                NamedModel(asset.model, self._models),
                tuple(
                    ToolOffer(
                        names[tool.label],
                        str(tool.declaration.description or tool.schema.get("description", "")),
                        tool.schema,
                    )
                    for tool in tools
                ),
                MappingProxyType({names[label]: asset_calls.ToolLink(label, way) for label, way in made.items()}),
                asset.limits.lowered(self._limits),
            )
        )

    def _tools(self, asset: Asset) -> tuple[list[Asset], dict[str, Entrance]]:
        """Return the tools that an agent names, and their entrances by label."""
        found = [self._used(asset, AssetKind.TOOL, name, "tools") for name in asset.tools]
        tools = {tool.label: tool for tool in found if tool is not None}
        made = {label: self._link(tool) for label, tool in tools.items()}
        return list(tools.values()), {label: way for label, way in made.items() if way is not None}

    def _pipeline(self, asset: Asset) -> Body | None:
        steps = [self._step(asset, step) for step in asset.steps]
        ready = tuple(step for step in steps if step is not None)
        if len(ready) < len(steps):
            return None
        return asset_calls.pipeline_body(asset.name, asset_calls.Called(asset.function), ready, asset.seconds)

    def _step(self, asset: Asset, step: str | Callable[..., Any]) -> asset_calls.PipelineStep | None:
        if not isinstance(step, str):
            run = asset_calls.caller(asset_calls.Called(step, typed=False))
            return asset_calls.PipelineStep(f"function:{asset_calls.name_of(step)}", run)
        kind, colon, name = step.partition(":")
        if colon and kind in tuple(AssetKind):
            used = self._used(asset, AssetKind(kind), name, "steps")
        else:
            used = self._any(asset, step)
        made = None if used is None else self._link(used)
        if used is None or made is None:
            if used is not None:
                self._refuse(asset, "steps", f"{used.label} cannot be used because it is broken")
            return None
        run = asset_calls.entered(used.label, made, _only(used.schema))
        return asset_calls.PipelineStep(used.label, run, used.kind is not AssetKind.TOOL)

    def _used(self, asset: Asset, kind: AssetKind, name: str, option: str) -> Asset | None:
        try:
            return self._assets.resolve(kind, name, asset.module)
        except AssetUnknown as error:
            self._refuse(asset, option, str(error))
            return None

    def _any(self, asset: Asset, name: str) -> Asset | None:
        """Return the only asset with a name that was given without its kind."""
        found = []
        for kind in AssetKind:
            try:
                found.append(self._assets.resolve(kind, name, asset.module))
            except AssetUnknown:
                continue
        if len(found) == 1:
            return found[0]
        several = ", ".join(one.label for one in found)
        message = (
            f"{name!r} is ambiguous: use one of {several}" if found else f"unknown step {name!r}{self._assets.absent}"
        )
        self._refuse(asset, "steps", message)
        return None


def offer_names(tools: Iterable[Asset]) -> dict[str, str]:
    """Return the names of tools for models, by label: without dots, and without the module if they stay unique."""
    listed = list(tools)
    short = Counter(_offered(tool.short) for tool in listed)
    return {
        tool.label: _offered(tool.short) if short[_offered(tool.short)] == 1 else _offered(tool.name) for tool in listed
    }


def _offered(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)[-_LONGEST_OFFER:]


def _only(schema: Mapping[str, Any]) -> str:
    """Return the parameter for a value that is not an object: the only one, or the only required one."""
    names, required = list(schema.get("properties", ())), schema.get("required", [])
    only = names if len(names) == 1 else required
    return str(only[0]) if len(only) == 1 else ""


def _entrance(asset: Asset, body: Body) -> Entrance:
    """Return the entrance of an asset: with ``access`` it has exactly those rights, without it those of its caller."""
    return entrance(
        asset_calls.entry(asset.schema, body),
        exact=asset.declaration.access is not None,
        whose=asset.function,
        subject=asset.name,
        subject_kind=asset.kind.value,
        access=asset.declaration.access or (),
        allowed_imports=asset.declaration.allowed_imports,
        own_read=own_places(asset),
    )


def own_places(asset: Asset | WorkerAsset) -> tuple[str, ...]:
    """Return the folders of the module that the declaration of an asset lets it read.

    These folders are protected, so they have to be named as the asset's own.
    """
    return tuple(
        rule.normalized_target
        for rule in asset.declaration.access or ()
        if rule.resource_type is policy.ResourceType.FILESYSTEM
        and rule.operation is policy.Operation.READ
        and any(place in asset.places for place in policy.prefixes_of(rule.normalized_target))
    )


DEEPEST_NESTING = 24
"""Maximum depth of nested subjects."""


class AiRuntime:
    """Registers the assets of modules and of the host, and runs each as its own subject, inside its caller."""

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        activate: Activate | None = None,
        limits: AgentLimits | None = None,
        apart: Apart = lambda _asset: None,
        *,
        started: Callable[[str], Awaitable[None]] | None = None,
        absent: str = "",
    ) -> None:
        """Take the models by name, the factory of module guards, and the maximum limits of agents.

        ``started`` waits until a module is loaded; ``absent`` is added to errors for unknown names.
        """
        self._started = started
        self.models = KnownModels(models)
        self._activate = activate
        self._apart = apart
        self._limits = limits or AgentLimits()
        self._assets = Assets(absent)
        self._linked = ResolvedAssets(self._assets, self.models, self._limits, self._apart)
        self._known: dict[tuple[str, str, str], Entrance] = {}
        self.elsewhere = WorkerAssets(self.models)
        """Assets of modules in worker processes."""

    # ---- declaring ---------------------------------------------------------------------------------------------------

    def declare(
        self,
        manifest: ModuleManifest,
        surfaces: Iterable[Surface],
        own: Iterable[AccessRule] = (),
        *,
        bound: bool = True,
    ) -> None:
        """Register the assets of a module, or raise all problems and register none. ``link`` makes them usable.

        Without ``bound``, declarations may exceed the manifest, for a module that is recorded for a proposal.
        """
        self._assets.add(module_assets(manifest, surfaces, own, bound=bound))

    def register(self, kind: AssetKind | str, function: Callable[..., Any], *, name: str, **options: Any) -> None:
        """Register a tool, agent or pipeline of the host, with the options of the SDK's decorators."""
        given = {"schema": signature_shape(function).schema, **options}
        self._assets.add([host_asset(_checked_kind(kind), name, function, given)])

    def link(self) -> Mapping[str, tuple[policy.Problem, ...]]:
        """Resolve all names, and return the problems by module ("" stands for the host).

        Modules with a problem are removed, and so are modules that use their shared assets; everything else runs.
        Running calls keep the assets they started with.
        """
        found: dict[str, tuple[policy.Problem, ...]] = {}
        while True:
            self._linked, self._known = ResolvedAssets(self._assets, self.models, self._limits, self._apart), {}
            broken: dict[str, tuple[policy.Problem, ...]] = {}
            for asset in self._assets:
                problems = self._linked.problems.get(asset.label, ())
                if problems:
                    broken[asset.module or ""] = (*broken.get(asset.module or "", ()), *problems)
            found.update(broken)
            # A module is broken as a whole; other modules may use its shared assets.
            for module in filter(None, broken):
                self._assets.forget(module)
            if not any(broken):
                return found

    @property
    def assets(self) -> tuple[Asset, ...]:
        """All assets registered here."""
        return tuple(self._assets)

    @property
    def declared(self) -> tuple[Asset | WorkerAsset, ...]:
        """All assets, here and in workers."""
        return (*self._assets, *self.elsewhere)

    @property
    def agents_by_model(self) -> Mapping[str, tuple[str, ...]]:
        """Agents by the model that they name, here and in workers, including models that the host lacks."""
        found: dict[str, set[str]] = {}
        for asset in self.declared:
            if asset.kind == AssetKind.AGENT:
                found.setdefault(asset.model, set()).add(asset.declaration.name)
        return {model: tuple(sorted(agents)) for model, agents in sorted(found.items())}

    # ---- running -----------------------------------------------------------------------------------------------------

    def entrance(self, view: RawView | None, kind: str, name: str) -> Entrance:
        """Return the entrance of an asset for the calling code: the service behind the SDK's ``run_...``.

        The guard is entered when the entrance is called, on top of the guard of that caller.
        """
        if view is None:
            return self._entrance(self._any(kind, name))
        if len(view.links) >= DEEPEST_NESTING:
            raise NestingTooDeep(f"{' -> '.join(view.labels[-3:])} is nested more than {DEEPEST_NESTING} deep")
        asking, asked = view.links[-1], f"{_checked_kind(kind).value}:{_checked_name(name)}"
        found = self._known.get((asking[0], asking[1], asked))
        if found is None:
            asset = self._assets.resolve(_checked_kind(kind), name, self._module_of(asking[0], asking[1]))
            found = self._known[asking[0], asking[1], asked] = self._entrance(asset)
        return found

    async def run(
        self,
        kind: AssetKind | str,
        name: str,
        params: Mapping[str, Any],
        caller: Caller,
        *,
        seconds: float | None = None,
    ) -> AssetRun:
        """Run an asset by its full name on behalf of ``caller``, inside the guard of its module.

        Without ``seconds`` the time limit of agents applies. Code that does not stop when canceled is abandoned.
        """
        limit = self._limits.seconds if seconds is None else seconds
        if self._started is not None:
            await self._started(_checked_name(name).rpartition(".")[0])
        far = self.elsewhere.get(f"{_checked_kind(kind).value}:{_checked_name(name)}")
        if far is not None:
            return await run_in_worker(
                far.worker, far.kind, far.short, plain(dict(params)), caller=caller, seconds=limit
            )
        asset = self._any(kind, name)
        entrance, given = self._entrance(asset), plain(dict(params))
        surface = Surface(asset.kind, asset.name, {}, cast("FunctionType", asset.function))
        with serve(caller):
            work = self._guard(asset, caller).run(entrance, given).isolated()
            outcome = await bounded(work, limit, surface)
        return asset_calls.as_run(asset.kind, plain(outcome))

    def _any(self, kind: AssetKind | str, name: str) -> Asset:
        """Return an asset by its full name, for the host."""
        asset = self._assets.get(_checked_kind(kind), _checked_name(name))
        if asset is None:
            hint = policy.hint_for(name, [other.name for other in self._assets if other.kind == kind])
            raise AssetUnknown(f"unknown {kind} {name!r}{hint}")
        return asset

    def _entrance(self, asset: Asset) -> Entrance:
        found = self._linked.entrances.get(asset.label)
        if found is None:
            problems = self._linked.problems.get(asset.label, ())
            raise AssetUnknown(f"{asset.label} cannot run: {'; '.join(map(str, problems)) or 'it is not linked yet'}")
        return found

    def _module_of(self, kind: str, name: str) -> str | None:
        """Return the module that a subject belongs to."""
        if kind in KINDS:
            asset = self._assets.get(KINDS[kind], name)
            return None if asset is None else asset.module
        return name if kind == "module" else None

    def _guard(self, asset: Asset, caller: Caller) -> Guard:
        if asset.module is not None:
            if self._activate is None:
                raise AssetUnknown(f"{asset.label} belongs to a module, and this runtime has no modules")
            return self._activate(asset.module, caller)
        # The same subject as behind its entrance, to set the identity; the call chain contains it once.
        return make_guard(
            subject=asset.name,
            subject_kind=asset.kind.value,
            access=asset.declaration.access or (),
            allowed_imports=asset.declaration.allowed_imports,
            user_id=caller.user_id or None,
            organization_id=caller.organization_id or None,
            session_key=caller.session_key or None,
        )


def _checked_kind(kind: object) -> AssetKind:
    if type(kind) is AssetKind:
        return kind
    if type(kind) is str and kind in KINDS:
        return KINDS[kind]
    close = policy.nearest(kind, AssetKind) if type(kind) is str else None
    raise policy.InvalidInputError.of(f"expected one of {', '.join(AssetKind)}", pointer="/kind", suggestion=close)


def _checked_name(name: object) -> str:
    if type(name) is str and name:
        return name
    raise policy.InvalidInputError.of("expected the name of a tool, an agent or a pipeline", pointer="/name")
