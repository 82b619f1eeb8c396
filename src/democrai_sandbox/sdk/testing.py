"""Test support for extensions: run one under its real guard, and check exactly which accesses it makes.

The extension runs in a separate process, so any number of them can be tested in one run of pytest::

    with testing.module("modules/reports") as module:
        assert module.action("total", month=5) == 12
        module.assert_accesses([("network", "receive", "https://api.example.com/v1/reports")])

The test process itself stays unguarded. Access that the manifest declares or ``approve`` names is allowed and recorded;
all other access is denied, as in a host without decisions. With ``observe=True`` everything is allowed and recorded,
and ``proposal()`` returns the smallest sufficient manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.manifests.proposal import ObservedUse as Access
from democrai_sandbox.runtime.extension_run import ExtensionRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

__all__ = ["Access", "Extension", "engine", "extractor", "module"]


def module(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return a module for a test, as a context manager; see ``Extension`` for the options."""
    return Extension(ManifestKind.MODULE, folder, **options)


def engine(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an engine in its runtime phase, with the packages of this interpreter."""
    return Extension(ManifestKind.ENGINE, folder, **options)


def extractor(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an extractor in its runtime phase, with the packages of this interpreter."""
    return Extension(ManifestKind.EXTRACTOR, folder, **options)


class Extension(ExtensionRun):
    """An extension in a separate process. Its calls wait for their results, and raise the same errors as in a host."""

    def render(self, **params: Any) -> Any:
        """Return the rendered output of a module."""
        return self.call("render", "render", **params)

    def action(self, action: str, /, **params: Any) -> Any:
        """Call an action of a module."""
        return self.call("action", action, **params)

    def command(self, command: str, /, **params: Any) -> Any:
        """Call a command of a module."""
        return self.call("command", command, **params)

    def task(self, task: str, /, **params: Any) -> Any:
        """Run a task of a module to its end."""
        return self.call("task", task, **params)

    def tool(self, tool: str, /, **params: Any) -> Any:
        """Call a tool of a module: under its own ``access``, or with the rights of its module if it declares none."""
        return self.call("tool", tool, **params)

    def assert_accesses(self, expected: Iterable[Sequence[str]]) -> None:
        """Fail unless it accessed exactly these, each as (resource type, operation, target)."""
        wanted = {Access(*entry) for entry in expected}
        more, less = sorted(self.accesses - wanted), sorted(wanted - self.accesses)
        lines = [f"  used, but not expected: {' '.join(access)}" for access in more]
        lines += [f"  expected, but not used: {' '.join(access)}" for access in less]
        if lines:
            raise AssertionError("\n".join([f"{self.manifest.subject} used other accesses than expected:", *lines]))
