"""The folders of an application, and the lists of paths that Landlock makes of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError

from .landlock.rulesets import numbers
from .spawn.wire import LandlockPlan

if TYPE_CHECKING:
    from .landlock.application import ApplicationPaths
    from .landlock.rulesets import RulesetPlan


@dataclass(frozen=True, slots=True)
class ApplicationPlaces:
    """Where the application keeps its things. Only what exists when Landlock is applied can be reached afterwards."""

    data_dir: str
    """Read-write; the policy file of the egress allowlist is made here."""
    state_dir: str
    """Read-write; the helper's socket is made here."""
    write: tuple[str, ...] = ()
    """Further folders to write to: configuration, cache, logs, modules, engines, extractors, media."""
    read: tuple[str, ...] = ()
    """Further folders to read."""

    def __post_init__(self) -> None:
        """Refuse paths that would mean another place in another working directory."""
        for path in (self.data_dir, self.state_dir, *self.write, *self.read):
            if not os.path.isabs(path) or "\0" in path:  # noqa: PTH117 - the same
                raise KernelLayerError(
                    f"{path!r} is not an absolute path", fix="give the application's folders in full"
                )

    def check(self) -> None:
        """Refuse to begin without the folders in which the layer itself keeps something."""
        for name, path in (("data", self.data_dir), ("state", self.state_dir)):
            if not os.path.isdir(path):  # noqa: PTH112 - paths are texts here
                raise KernelLayerError(
                    f"the {name} directory {path!r} is not there", fix="make it before prepare(): storage comes first"
                )


def plain_plan(plan: RulesetPlan, abi: int) -> LandlockPlan:
    """Return the plan as the spawn server takes it."""
    plain = numbers(plan, abi)
    return LandlockPlan(plain.fs, plain.net, plain.scoped, tuple(plain.paths), tuple(plain.ports))


def writable(paths: ApplicationPaths | None) -> tuple[str, ...]:
    """Return all that may be written to."""
    return () if paths is None else (*paths.write, *paths.scratch, *paths.devices)


def readable(paths: ApplicationPaths | None) -> tuple[str, ...]:
    """Return all that may be read."""
    return () if paths is None else (*paths.read, *writable(paths))
