"""Members of an application's cgroup: move processes in, and back to their previous cgroups."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .answers import Refused
from .cgroups import Cgroup
from .processes import network_of, own_network

if TYPE_CHECKING:
    from .cgroups import Tree

_ROUNDS = 3


class Members:
    """Processes of one application's cgroup."""

    def __init__(self) -> None:
        """Start without members."""
        self._origins: dict[int, str] = {}

    def join(self, tree: Tree, group: Cgroup, pid: int) -> None:
        """Move a process in. One that is already inside stays, because a child's cgroup is stricter.

        The helper itself stays outside: otherwise it would be killed with the members before it has cleaned up.
        """
        if pid == os.getpid():
            raise Refused("bad_request", "the helper cannot join the cgroup that it manages", "send another process id")
        same_network(pid)
        path = tree.path_of(pid)
        if not _is_inside(group, path):
            self._origins[pid] = path or tree.mount
            group.add(pid)

    def move_out(self, group: Cgroup) -> int:
        """Move all members back to their previous cgroups, or out of this one; return their number."""
        moved, top = 0, Path(group.path).parent
        for _ in range(_ROUNDS):  # members may fork while the others are moved
            for pid in group.members():
                for folder in (Path(self._origins.get(pid, top)), top):
                    with suppress(Refused):
                        Cgroup(folder, "").add(pid)
                        moved += 1
                        break
        self._origins.clear()
        return moved


def same_network(pid: int) -> None:
    """Refuse a process in another network namespace, where the rules would have no effect."""
    if network_of(pid) not in {None, own_network()}:
        text = f"process {pid} is in another network namespace than the helper, whose rules would not apply to it"
        raise Refused("other_network", text, "start the helper in the network namespace of the application")


def step_out(tree: Tree, group: Cgroup) -> None:
    """Move this process and its children out of the application's cgroup, in which they were started."""
    if not _is_inside(group, tree.path_of(os.getpid())):
        return
    children: list[int] = []
    with suppress(OSError):  # a kernel without this file
        for task in Path("/proc/self/task").iterdir():
            children.extend(map(int, (task / "children").read_text().split()))
    for pid in (os.getpid(), *children):
        Cgroup(Path(tree.mount), "").add(pid)


def _is_inside(group: Cgroup, path: str | None) -> bool:
    return path is not None and f"{path}/".startswith(f"{group.path}/")
