"""Runtime of tools, agents and pipelines in the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.errors.ai import AssetUnknown, NestingTooDeep
from democrai_sandbox.guard import Entrance, plain, serve
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.policy import nearest
from democrai_sandbox.runtime.calls import bounded
from democrai_sandbox.runtime.loading import Surface

from .assets import Asset, Assets
from .calling import as_run
from .declaring import host_asset, module_assets
from .elsewhere import Elsewhere
from .interface import KINDS, AssetKind, Limits, Run
from .linking import Linked
from .naming import KnownModels
from .schema import signature_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FunctionType

    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import Guard
    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.manifests import ModuleManifest
    from democrai_sandbox.policy import AccessRule, Problem

    from .interface import Model
    from .linking import Apart

    Activate = Callable[[str, Caller], Guard]

DEEPEST_NESTING = 24
"""Maximum depth of nested subjects."""


class AiRuntime:
    """Registers the assets of modules and of the host, and runs each as its own subject, inside its caller."""

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        activate: Activate | None = None,
        limits: Limits | None = None,
        apart: Apart = lambda _asset: None,
    ) -> None:
        """Take the models by name, the factory of module guards, and the maximum limits of agents."""
        self.models = KnownModels(models)
        self._activate = activate
        self._apart = apart
        self._limits = limits or Limits()
        self._assets = Assets()
        self._linked = Linked(self._assets, self.models, self._limits, self._apart)
        self._known: dict[tuple[str, str, str], Entrance] = {}
        self.elsewhere = Elsewhere(self.models)
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

    def forget(self, module: str) -> None:
        """Remove the assets of a module; ``link`` ends their use."""
        self._assets.forget(module)

    def link(self) -> Mapping[str, tuple[Problem, ...]]:
        """Resolve all names, and return the problems by module ("" stands for the host).

        Modules with a problem are removed, and so are modules that use their shared assets; everything else runs.
        Running calls keep the assets they started with.
        """
        found: dict[str, tuple[Problem, ...]] = {}
        while True:
            self._linked, self._known = Linked(self._assets, self.models, self._limits, self._apart), {}
            broken: dict[str, tuple[Problem, ...]] = {}
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
        """All registered assets."""
        return tuple(self._assets)

    @property
    def agents_by_model(self) -> Mapping[str, tuple[str, ...]]:
        """Agents by the model that they name, here and in workers, including models that the host lacks."""
        here = ((asset.name, asset.model) for asset in self._assets if asset.kind is AssetKind.AGENT)
        found: dict[str, set[str]] = {}
        for agent, model in (*here, *self.elsewhere.agents()):
            found.setdefault(model, set()).add(agent)
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
    ) -> Run:
        """Run an asset by its full name on behalf of ``caller``, inside the guard of its module.

        Without ``seconds`` the time limit of agents applies. Code that does not stop when canceled is abandoned.
        """
        limit = self._limits.seconds if seconds is None else seconds
        far = self.elsewhere.get(f"{_checked_kind(kind).value}:{_checked_name(name)}")
        if far is not None:
            return await far.run(plain(dict(params)), caller, limit)
        asset = self._any(kind, name)
        entrance, given = self._entrance(asset), plain(dict(params))
        surface = Surface(asset.kind, asset.name, {}, cast("FunctionType", asset.function))
        with serve(caller):
            work = self._guard(asset, caller).run(entrance, given).isolated()
            outcome = await bounded(work, limit, surface)
        return as_run(asset.kind, plain(outcome))

    def _any(self, kind: AssetKind | str, name: str) -> Asset:
        """Return an asset by its full name, for the host."""
        asset = self._assets.get(_checked_kind(kind), _checked_name(name))
        if asset is None:
            close = nearest(name, [other.name for other in self._assets if other.kind == kind])
            raise AssetUnknown(f"unknown {kind} {name!r}" + (f"; did you mean {close!r}?" if close else ""))
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
    close = nearest(kind, AssetKind) if type(kind) is str else None
    raise InvalidInputError.of(f"expected one of {', '.join(AssetKind)}", pointer="/kind", suggestion=close)


def _checked_name(name: object) -> str:
    if type(name) is str and name:
        return name
    raise InvalidInputError.of("expected the name of a tool, an agent or a pipeline", pointer="/name")
