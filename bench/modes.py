"""States in which an interpreter is measured. Everything here runs in a worker."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any, Protocol

from bench.clients import ask_reference, ask_service, open_service, take_apart
from bench.decisions import SUBJECT, Database, find_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bench.clients import Ask
    from bench.registry import Access
    from bench.workspace import Workspace

OPERATIONS = ("read", "create", "modify", "delete")
NATIVE_PACKAGES = ("numpy", "scipy", "threadpoolctl", "torch")
"""Packages that a host lists so that extensions may use them in its process."""


class Mode(Protocol):
    """Way in which a worker gets a guard, if any."""

    guarded: bool

    def guard(self, paths: list[str], access: Access = ()) -> AbstractContextManager[Any]:
        """Create the context that allows these paths and network targets."""

    def run(self, paths: list[str], function: Callable[..., Any], *args: object) -> Any:
        """Call the function under such a guard, without a with block."""

    def asker(self, ground: Workspace, database: Database, *, guarded: bool) -> Ask:
        """Return a function for access checks with the service that has these decisions."""


def _network_rules(access: Access) -> list[dict[str, str]]:
    """Return the rules as manifest entries, which both products read."""
    return [{"resource_type": "network", "operation": operation, "target": target} for operation, target in access]


class Plain:
    """Nothing installed."""

    guarded = False

    def guard(self, paths: list[str], access: Access = ()) -> AbstractContextManager[Any]:
        """Return a stand-in for a guard."""
        del paths, access
        return contextlib.nullcontext()

    def run(self, paths: list[str], function: Callable[..., Any], *args: object) -> Any:
        """Call the function."""
        del paths
        return function(*args)

    def asker(self, ground: Workspace, database: Database, *, guarded: bool) -> Ask:
        """Return a stand-in for a service."""
        del ground, database, guarded
        return take_apart


class Product:
    """Our package, with the caller inside its guard."""

    guarded = True

    def __init__(self) -> None:
        self._package = importlib.import_module("democrai_sandbox")
        self._package.configure_guard(native_packages=NATIVE_PACKAGES)
        # Installations by the first guard belong to the installed state.
        with self.guard([os.getcwd()]):
            pass

    def guard(self, paths: list[str], access: Access = ()) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._package.process_guard_context(
            subject=SUBJECT, allowed_paths=paths, access=_network_rules(access)
        )
        return context

    def run(self, paths: list[str], function: Callable[..., Any], *args: object) -> Any:
        context: Any = self.guard(paths)
        return context.run(function, *args)

    def asker(self, ground: Workspace, database: Database, *, guarded: bool) -> Ask:
        raise NotImplementedError("its guard has no decider")


class Service(Product):
    """Our package, whose guard asks the access-policy service about undeclared access."""

    def __init__(self) -> None:
        self._surroundings = importlib.import_module("democrai_sandbox.runtime.access_environment").GuardSurroundings()
        self._services: dict[Database, Any] = {}
        self._asked: Any = None
        # Before the first guard, which seals the configuration.
        importlib.import_module("democrai_sandbox").configure_guard(decider=self)
        super().__init__()

    def decide(self, question: Any) -> Any:
        """Answer for the guard of the last case with the service."""
        return self._asked is not None and self._asked.decide(question)

    def asker(self, ground: Workspace, database: Database, *, guarded: bool) -> Ask:
        if database not in self._services:
            self._services[database] = open_service(find_database(database, ground), self._surroundings)
        service = self._services[database]
        if guarded:
            self._asked = service
        return ask_service(service, guarded=guarded)


class Idle(Plain):
    """Our package, imported and used once; the caller is not guarded."""

    def __init__(self) -> None:
        Product()


class Reference:
    """The reference product, with the caller inside its guard."""

    guarded = True
    is_reference = True

    def __init__(self) -> None:
        manifest = importlib.import_module("democrai.core.application.access_policy.manifest")
        process_guard = importlib.import_module("democrai.core.infrastructure.sandbox.process_guard")
        self._parse = manifest.parse_access_manifest_rules
        self._context = process_guard.process_guard_context

    def guard(self, paths: list[str], access: Access = ()) -> AbstractContextManager[Any]:
        declared = [
            {"resource_type": "filesystem", "operation": operation, "target": path}
            for path in paths
            for operation in OPERATIONS
        ]
        declared += _network_rules(access)
        # This product needs connect in addition to receive, and treats a client that looks for ~/.netrc as a violation.
        declared += _network_rules(tuple(("connect", target) for operation, target in access if operation == "receive"))
        if access:
            home = os.path.expanduser("~")
            declared.append({"resource_type": "filesystem", "operation": "read", "target": home})
        rules = self._parse({"access": declared}, subject_type="module", subject_name=SUBJECT)
        context: AbstractContextManager[Any] = self._context(subject=SUBJECT, access=rules)
        return context

    def run(self, paths: list[str], function: Callable[..., Any], *args: object) -> Any:
        raise NotImplementedError("it supports with blocks only")

    def asker(self, ground: Workspace, database: Database, *, guarded: bool) -> Ask:
        del guarded
        return ask_reference(ground, database.decisions)


MODES: dict[str, Callable[[], Mode]] = {
    "plain": Plain,
    "control": Plain,
    "idle": Idle,
    "guarded": Product,
    "service": Service,
    "reference-plain": Plain,
    "reference-guarded": Reference,
}
