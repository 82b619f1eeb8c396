"""Registry of tools, agents and pipelines, and their conversion from declarations of a module or the host."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from democrai_sandbox.errors.services import AssetUnknown
from democrai_sandbox.manifests import Coverage, make_manifest
from democrai_sandbox.policy import AccessRule, InvalidInputError, Problem, hint_for, nearest, pointer_to
from democrai_sandbox.policy.text import shown
from democrai_sandbox.runtime.extensions.importer import Surface

from .asset_calls import flags_of
from .model import AgentLimits, AssetKind
from .schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.manifests import AgentDeclaration, ModuleManifest, PipelineDeclaration, ToolDeclaration
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    Declared = ToolDeclaration | AgentDeclaration | PipelineDeclaration


class Asset(NamedTuple):
    """A declared tool, agent or pipeline."""

    kind: AssetKind
    name: str
    """``<module>.<name>`` if a module declares it; the given name if the host does."""
    module: str | None
    function: Callable[..., Any]
    """Function of the module; called only inside the asset's guard."""
    schema: Mapping[str, Any]
    declaration: Declared
    shared: bool = False
    """Whether other modules may use it as well. Assets of the host are available to all."""
    tools: tuple[str, ...] = ()
    model: str = ""
    instructions: str = ""
    limits: AgentLimits = AgentLimits()
    steps: tuple[str | Callable[..., Any], ...] = ()
    seconds: float | None = None
    """Timeout of a pipeline."""
    places: tuple[str, ...] = ()
    """Folders that the runtime gave to the module; no declaration of another subject opens them."""
    worker: WorkerHandle | None = None
    """Worker that has the function, if it is not in this process."""

    @property
    def label(self) -> str:
        """Subject that it runs as: ``tool:demo.collect``."""
        return f"{self.kind.value}:{self.name}"

    @property
    def short(self) -> str:
        """Name without the module's name."""
        return self.name if self.module is None else self.name.removeprefix(f"{self.module}.")

    def is_open_to(self, module: str | None) -> bool:
        """Return whether a module may use it."""
        return self.shared or self.module is None or self.module == module


class Assets:
    """Registered assets. Names are unique within a kind."""

    def __init__(self) -> None:
        self._found: Mapping[str, Asset] = MappingProxyType({})

    def __iter__(self) -> Iterator[Asset]:
        """Yield all assets in the order of their registration."""
        return iter(self._found.values())

    def add(self, assets: Iterable[Asset]) -> None:
        """Add all assets, or none if a name is taken."""
        added = dict(self._found)
        problems = []
        for asset in assets:
            other = added.setdefault(asset.label, asset)
            if other is not asset:
                by = "the host" if other.module is None else f"module {other.module}"
                message = f"the name {asset.name!r} is taken: {by} has a {asset.kind} of that name"
                problems.append(Problem(f"/{asset.kind}/{asset.short}", message))
        if problems:
            raise InvalidInputError(problems)
        self._found = MappingProxyType(added)

    def forget(self, module: str) -> None:
        """Remove the assets of a module."""
        kept = {key: asset for key, asset in self._found.items() if asset.module != module}
        self._found = MappingProxyType(kept)

    def get(self, kind: AssetKind, name: str) -> Asset | None:
        """Return the asset with exactly this name."""
        return self._found.get(f"{kind.value}:{name}")

    def resolve(self, kind: AssetKind, name: str, module: str | None) -> Asset:
        """Return the asset that a module names: its own assets take precedence over shared ones.

        An asset that the module may not use gives the same error as an unknown one.
        """
        own = None if module is None else self.get(kind, f"{module}.{name}")
        found = own or self.get(kind, name)
        if found is not None and found.is_open_to(module):
            return found
        names = {asset.name for asset in self if asset.kind is kind and asset.is_open_to(module)}
        names |= {asset.short for asset in self if asset.kind is kind and asset.module == module}
        raise AssetUnknown(f"unknown {kind} {name!r}{hint_for(name, sorted(names))}")

    def named(self, kind: str, name: str, module: str | None) -> Asset:
        """Return the asset that a module names; without a kind, the only one with that name."""
        if kind:
            return self.resolve(AssetKind(kind), name, module)
        found = []
        for each in AssetKind:
            with suppress(AssetUnknown):
                found.append(self.resolve(each, name, module))
        if len(found) == 1:
            return found[0]
        several = ", ".join(one.label for one in found)
        raise AssetUnknown(f"{name!r} is ambiguous: use one of {several}" if found else f"unknown step {name!r}")


STEP = "step"
"""Kind under which a pipeline's own functions are declared; their name is ``<pipeline>/<index>``."""
_OWN_STEP = re.compile(r"step:[0-9]{1,3}")
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_MOST_ITEMS = 100
_LONGEST_TEXT = 50_000


def module_assets(
    manifest: ModuleManifest, surfaces: Iterable[Surface], own: Iterable[AccessRule] = (), *, bound: bool = True
) -> tuple[Asset, ...]:
    """Return the assets among the surfaces of a module, or refuse the module.

    ``own`` are the rules for the folders that the runtime gives to the module: its code and its data. Without
    ``bound``, declarations of assets may exceed both.
    """
    taken = list(surfaces)
    functions = {surface.name: surface.function for surface in taken if surface.kind == STEP}
    given = tuple(own)
    places = tuple(dict.fromkeys(rule.normalized_target for rule in given))
    covered = Coverage((*manifest.access, *given))
    assets, problems = [], []
    for surface in taken:
        if surface.kind not in tuple(AssetKind):
            continue
        reading = _DeclarationReader(surface, manifest, functions)
        asset = reading.asset()
        problems += reading.problems
        if asset is not None:
            problems += _beyond(asset.declaration, manifest, covered, f"/{asset.kind}/{asset.short}") if bound else ()
            assets.append(asset._replace(places=places))
    if problems:
        raise InvalidInputError(problems)
    return tuple(assets)


def host_asset(kind: AssetKind, name: str, function: Callable[..., Any], options: dict[str, Any]) -> Asset:
    """Return an asset of the host, which may declare anything. Its steps may be functions."""
    functions, steps = {}, []
    for index, step in enumerate(options.get("steps", ())):
        if isinstance(step, FunctionType):
            functions[f"{name}/{index}"] = step
        steps.append(f"{STEP}:{index}" if isinstance(step, FunctionType) else step)
    given = {**options, "steps": steps} if "steps" in options else options
    reading = _DeclarationReader(Surface(kind, name, given, cast("FunctionType", function)), None, functions)
    asset = reading.asset()
    if reading.problems or asset is None:
        raise InvalidInputError(reading.problems)
    return asset


def _beyond(declared: Declared, manifest: ModuleManifest, covered: Coverage, pointer: str) -> list[Problem]:
    """Return a problem for each declaration of an asset that exceeds the manifest of its module."""
    who = f"{declared.kind} {declared.name}"
    beyond = f"which manifest.json of module {manifest.name} does not allow"
    found = [
        Problem(f"{pointer}/access", f"{who} declares {rule.resource_type} {rule.operation} {rule.target}, {beyond}")
        for rule in declared.access or ()
        if not covered.covers(rule)
    ]
    extra = [root for root in declared.allowed_imports if root not in manifest.allowed_imports]
    found += [Problem(f"{pointer}/allowed_imports", f"{who} declares the import of {root}, {beyond}") for root in extra]
    return found


def _declaration(surface: Surface, module: ModuleManifest | None) -> Declared:
    """Return the access and the imports that a tool, agent or pipeline declares."""
    name = surface.name if module is None else f"{module.name}.{surface.name}"
    given = {key: surface.options[key] for key in _DECLARED if key in surface.options}
    folder = None if module is None else module.source.folder
    declared: Any = make_manifest({"name": name, **given}, surface.kind, folder=folder)
    return cast("Declared", declared)


def worker_assets(
    manifest: ModuleManifest, surfaces: Iterable[SurfaceInfo], own: Iterable[AccessRule], worker: WorkerHandle
) -> tuple[Asset, ...]:
    """Return the assets that a module declared in its worker; refuse what the worker should have refused."""
    taken = (Surface(one.kind, one.name, one.options, cast("FunctionType", _in_its_worker)) for one in surfaces)
    return tuple(asset._replace(worker=worker) for asset in module_assets(manifest, taken, own))


def _in_its_worker() -> None:
    """Stand in for a function in a worker."""


class _DeclarationReader:
    """Reads one declaration, and collects its problems."""

    def __init__(
        self, surface: Surface, manifest: ModuleManifest | None, functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.problems: list[Problem] = []
        self._surface = surface
        self._manifest = manifest
        self._functions = functions
        self._kind = AssetKind(surface.kind)
        self._pointer = f"/{surface.kind}/{surface.name}"
        self._options = surface.options

    def asset(self) -> Asset | None:
        self._check_names()
        self._check_function(self._surface.function, self._pointer)
        declaration = self._declaration()
        schema = self._schema()
        read: dict[str, Any] = {
            name: take(self, self._options[name], pointer_to(self._pointer, name))
            for name, take in _OPTIONS[self._kind].items()
            if name in self._options
        }
        if self.problems or declaration is None:
            return None
        own = {name: value for name, value in read.items() if name in Asset._fields}
        limits = AgentLimits(**{name: read[key] for key, name in _LIMITS.items() if key in read})
        return Asset(
            self._kind,
            declaration.name,
            None if self._manifest is None else self._manifest.name,
            self._surface.function,
            schema,
            declaration,
            limits=limits,
            seconds=read.get("timeout"),
            **own,
        )

    def refuse(self, pointer: str, message: str, suggestion: str | None = None) -> None:
        self.problems.append(Problem(pointer, message, suggestion))

    def _check_names(self) -> None:
        if self._manifest is not None and "." in self._surface.name:
            # tool:a.b.c could be b.c of module a or c of module a.b; one could then use approvals of the other.
            self.refuse(self._pointer, "the name must not contain a dot")
        known = (*_DECLARED, "schema", *_OPTIONS[self._kind])
        for name in self._options:
            if name not in known:
                self.refuse(pointer_to(self._pointer, name), f"unknown option {shown(name)}", nearest(name, known))
        if self._kind is AssetKind.AGENT and not self._options.get("model"):
            self.refuse(self._pointer, "an agent needs a model")
        if self._kind is AssetKind.PIPELINE and not self._options.get("steps"):
            self.refuse(self._pointer, "a pipeline needs steps")

    def _check_function(self, function: Callable[..., Any], pointer: str) -> None:
        if flags_of(function) & _GENERATOR:
            self.refuse(pointer, "a generator has no result; return a list")

    def _declaration(self) -> Declared | None:
        try:
            return _declaration(self._surface, self._manifest)
        except InvalidInputError as error:
            self.problems += [problem.moved(self._pointer) for problem in error.problems]
            return None

    def _schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self._options.get("schema", {})
        pointer = pointer_to(self._pointer, "schema")
        try:
            check_schema(schema, pointer)
            if schema.get("type") != "object":
                self.refuse(pointer, "the schema of the arguments must have the type object")
        except InvalidInputError as error:
            self.problems += error.problems
        return schema

    def flag(self, value: Any, pointer: str) -> bool:
        if type(value) is not bool:
            self.refuse(pointer, f"expected true or false, got {shown(value)}")
        return value is True

    def text(self, value: Any, pointer: str) -> str:
        if type(value) is str and len(value) <= _LONGEST_TEXT:
            return value
        self.refuse(pointer, f"expected a text of at most {_LONGEST_TEXT} characters")
        return ""

    def count(self, value: Any, pointer: str) -> int:
        if type(value) is int and value > 0:
            return value
        self.refuse(pointer, f"expected a positive whole number, got {value if type(value) is int else shown(value)}")
        return 1

    def seconds(self, value: Any, pointer: str) -> float:
        if type(value) in (int, float) and 0 < value < float("inf"):
            return float(value)
        self.refuse(pointer, "expected a positive number of seconds")
        return 1.0

    def texts(self, value: Any, pointer: str) -> tuple[str, ...]:
        if type(value) in (list, tuple) and len(value) <= _MOST_ITEMS and all(type(item) is str for item in value):
            return tuple(value)
        self.refuse(pointer, f"expected a list of at most {_MOST_ITEMS} names")
        return ()

    def steps(self, value: Any, pointer: str) -> tuple[str | Callable[..., Any], ...]:
        steps: list[str | Callable[..., Any]] = []
        for index, step in enumerate(self.texts(value, pointer)):
            own = self._functions.get(f"{self._surface.name}/{index}") if _OWN_STEP.fullmatch(step) else None
            if own is None and _OWN_STEP.fullmatch(step):
                self.refuse(pointer_to(pointer, index), "the function of this step was not declared")
            if own is not None:
                self._check_function(own, pointer_to(pointer, index))
            steps.append(own or step)
        return tuple(steps)


_DECLARED = ("description", "access", "allowed_imports")
_LIMITS = {"max_turns": "turns", "max_tool_calls": "tool_calls", "tool_timeout": "tool_seconds", "timeout": "seconds"}
_OPTIONS: dict[AssetKind, dict[str, Callable[[_DeclarationReader, Any, str], Any]]] = {
    AssetKind.TOOL: {"shared": _DeclarationReader.flag},
    AssetKind.AGENT: {
        "shared": _DeclarationReader.flag,
        "tools": _DeclarationReader.texts,
        "model": _DeclarationReader.text,
        "instructions": _DeclarationReader.text,
        "max_turns": _DeclarationReader.count,
        "max_tool_calls": _DeclarationReader.count,
        "tool_timeout": _DeclarationReader.seconds,
        "timeout": _DeclarationReader.seconds,
    },
    AssetKind.PIPELINE: {
        "shared": _DeclarationReader.flag,
        "steps": _DeclarationReader.steps,
        "timeout": _DeclarationReader.seconds,
    },
}
