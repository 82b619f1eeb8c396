"""Folders of an application, and the path lists that Landlock uses."""

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
    """Folders of the application. Only folders that exist when Landlock is applied stay accessible."""

    data_dir: str
    """Read-write; contains the policy file of the egress allowlist."""
    state_dir: str
    """Read-write; contains the helper's socket."""
    write: tuple[str, ...] = ()
    """Additional writable folders: configuration, cache, logs, modules, engines, extractors, media."""
    read: tuple[str, ...] = ()
    """Additional readable folders."""

    def __post_init__(self) -> None:
        """Reject relative paths, which depend on the working directory."""
        for path in (self.data_dir, self.state_dir, *self.write, *self.read):
            if not os.path.isabs(path) or "\0" in path:  # noqa: PTH117 - the same
                raise KernelLayerError(
                    f"{path!r} is not an absolute path", fix="pass the application's folders as absolute paths"
                )

    def check(self) -> None:
        """Raise when a folder that the kernel layer writes to is missing."""
        for name, path in (("data", self.data_dir), ("state", self.state_dir)):
            if not os.path.isdir(path):  # noqa: PTH112 - a str path
                raise KernelLayerError(
                    f"the {name} directory {path!r} does not exist", fix="create it before you call prepare()"
                )


def plain_plan(plan: RulesetPlan, abi: int) -> LandlockPlan:
    """Return the plan in the format of the spawn server."""
    plain = numbers(plan, abi)
    return LandlockPlan(plain.fs, plain.net, plain.scoped, tuple(plain.paths), tuple(plain.ports))


def writable(paths: ApplicationPaths | None) -> tuple[str, ...]:
    """Return all writable paths."""
    return () if paths is None else (*paths.write, *paths.scratch, *paths.devices)


def readable(paths: ApplicationPaths | None) -> tuple[str, ...]:
    """Return all readable paths."""
    return () if paths is None else (*paths.read, *writable(paths))
