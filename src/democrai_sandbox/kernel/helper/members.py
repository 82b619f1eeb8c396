"""Who is in an application's control group: processes are moved in, and back to where they came from."""

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
    """The processes of one application's group."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._origins: dict[int, str] = {}

    def join(self, tree: Tree, group: Cgroup, pid: int) -> None:
        """Move a process in. One that is inside stays where it is: a child's place is narrower than the application's.

        The helper itself stays outside: it would end with the members, before it has removed anything.
        """
        if pid == os.getpid():
            raise Refused("bad_request", "the helper cannot be moved into the group that it keeps", "name another")
        same_network(pid)
        path = tree.path_of(pid)
        if not _is_inside(group, path):
            self._origins[pid] = path or tree.mount
            group.add(pid)

    def move_out(self, group: Cgroup) -> int:
        """Move all back to where they came from, or out of the group; return how many."""
        moved, top = 0, Path(group.path).parent
        for _ in range(_ROUNDS):  # a process may be born while the others are moved
            for pid in group.members():
                for folder in (Path(self._origins.get(pid, top)), top):
                    with suppress(Refused):
                        Cgroup(folder, "").add(pid)
                        moved += 1
                        break
        self._origins.clear()
        return moved


def same_network(pid: int) -> None:
    """Refuse a process in another network than the rules are in: they would be listed, and hold nothing of its."""
    if network_of(pid) not in {None, own_network()}:
        text = f"process {pid} is in another network (namespace) than the helper, whose rules would not hold it"
        raise Refused("other_network", text, "start the helper in the network of the application")


def step_out(tree: Tree, group: Cgroup) -> None:
    """Leave the group of the application, with one's own children: whoever was started from inside was born inside."""
    if not _is_inside(group, tree.path_of(os.getpid())):
        return
    children: list[int] = []
    with suppress(OSError):  # a kernel that does not tell
        for task in Path("/proc/self/task").iterdir():
            children.extend(map(int, (task / "children").read_text().split()))
    for pid in (os.getpid(), *children):
        Cgroup(Path(tree.mount), "").add(pid)


def _is_inside(group: Cgroup, path: str | None) -> bool:
    return path is not None and f"{path}/".startswith(f"{group.path}/")
