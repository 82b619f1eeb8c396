"""The runtimes put together: what a host makes once, before its first guard, and starts when its store is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.guard import access_changed, configure_guard, served

from . import doors
from .extensions import discover
from .loading import Declarations, preload
from .managing import Managing
from .modules import ModuleRuntime
from .output import Output, divert_output

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from democrai_sandbox.access import Access
    from democrai_sandbox.guard import DenialRecorder, EndpointObserver
    from democrai_sandbox.guard.views import RawView

    from .settings import RuntimeSettings

NOBODY = Caller()


class Runtime:
    """Everything that runs extensions in this process. One per process; make it before the first guard."""

    def __init__(
        self,
        settings: RuntimeSettings,
        access: Access,
        *,
        protected_paths: Iterable[str] = (),
        recorder: DenialRecorder | None = None,
        observer: EndpointObserver | None = None,
    ) -> None:
        """Read the manifests, settle the guard, and open the doors. Nothing of an extension runs yet.

        ``protected_paths`` are the host's own files, such as its configuration and the database of the access service.
        """
        preload()
        self.settings = settings
        self.access = access
        self.registry = discover(settings)
        self._registered = {
            "module": self.registry.modules,
            "engine": self.registry.engines,
            "extractor": self.registry.extractors,
        }
        self.output = Output()
        self.declarations = Declarations()
        self.modules = ModuleRuntime(settings, self.registry, self.declarations)
        configure_guard(
            decider=access.service,
            recorder=recorder,
            observer=observer,
            protected_paths=[*settings.protected, *protected_paths],
        )
        access.node.on_change(access_changed)
        doors.install(
            {
                "declare": self.declarations.declare,
                "request": _request,
                "places": self._places,
                "output.write": self.output.write,
                "access.manage": Managing(access, access.settings.managers).manage,
            }
        )

    def start(self) -> None:
        """Import the modules, each under its guard. A broken one is listed, the others run."""
        if self.settings.capture_output:
            divert_output()
        self.modules.load_all(NOBODY)

    def stop(self) -> None:
        """End what runs."""
        self.modules.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _places(self, view: RawView | None) -> tuple[str, str]:
        """Return the data folder and the own folder of the extension that asks."""
        for label in reversed(view.labels if view else ()):
            kind, _, name = label.partition(":")
            found = self._registered.get(kind, {}).get(name)
            if found is not None:
                return self.settings.data_of(found.subject), found.folder
        return "", ""


def _request(view: RawView | None) -> tuple[Any, ...]:
    del view
    caller = served()
    return tuple(caller) if type(caller) is Caller else ("",) * len(Caller._fields)
