"""Paths that share a prefix with a root: roots are compared by whole components, in any order of declaration."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, Ground, attack, attacks_of


def prepare_siblings(ground: Ground) -> None:
    for name in ("a", "ab", "abc", "b"):
        os.makedirs(f"{ground.base}/srv/{name}/sub")
        ground.write(f"{ground.base}/srv/{name}/secret.txt", ground.SECRET)
    ground.write(f"{ground.base}/srv/file", "x")
    ground.write(f"{ground.base}/srv/file.bak", ground.SECRET)


def roots(*names: str):
    return lambda ground: {"allowed_paths": [f"{ground.base}/srv/{name}" for name in names], "access": []}


def read(name: str):
    return lambda ground: open(f"{ground.base}/srv/{name}/secret.txt").read()


CASES = {
    "sibling_with_prefix": (("a",), "ab"),
    "sibling_with_longer_prefix": (("ab",), "abc"),
    "shorter_sibling": (("ab",), "a"),
    "between_two_roots": (("a", "abc"), "ab"),
    "between_two_roots_reversed": (("abc", "a"), "ab"),
    "after_splitting_siblings": (("abc", "ab"), "a"),
    "after_splitting_siblings_reversed": (("ab", "abc"), "a"),
    "trailing_slash": (("a/",), "ab"),
    "trailing_slash_dot": (("a/.",), "ab"),
    "doubled_slash": (("a//",), "ab"),
    "deeper_root": (("a/sub",), "a"),
    "deeper_roots": (("a/sub", "ab/sub"), "ab"),
    "parent_after_dots": (("a/sub/..",), "ab"),
}
for case, (declared, wanted) in CASES.items():
    attack(
        f"roots {declared} are declared, {wanted} is read",
        expect=FILES,
        name=case,
        prepare=prepare_siblings,
        policy=roots(*declared),
    )(read(wanted))

attacks_of(
    {
        "file_root": lambda ground: open(f"{ground.base}/srv/file.bak").read(),
        "list_parent": lambda ground: "ab" in os.listdir(f"{ground.base}/srv"),
        "new_sibling": lambda ground: open(f"{ground.base}/srv/file2", "w").write("x") > 0,
        "renamed_to_sibling": lambda ground: os.rename(f"{ground.base}/srv/file", f"{ground.base}/srv/file2") is None,
    },
    "a file is the root and its neighbour is reached: {}",
    expect=FILES,
    prepare=prepare_siblings,
    policy=roots("file"),
)


@attack(
    "ten thousand roots that share prefixes are declared, the one that is missing is read",
    expect=FILES,
    prepare=prepare_siblings,
    policy=lambda ground: {"allowed_paths": [f"{ground.base}/srv/a{number}" for number in range(3_000)]},
)
def many_roots(ground: Ground) -> object:
    return open(f"{ground.base}/srv/a/secret.txt").read()


@attack(
    "a rule for a deeper folder allows more than the rule above it, and the folder above is written",
    expect=FILES,
    prepare=prepare_siblings,
    policy=lambda ground: {
        "allowed_paths": [f"{ground.base}/srv/a/sub"],
        "access": [{"resource_type": "filesystem", "operation": "read", "target": f"{ground.base}/srv"}],
    },
)
def operations_of_the_deeper_root(ground: Ground) -> bool:
    return open(f"{ground.base}/srv/a/secret.txt", "w").write("x") > 0


@attack(
    "a root is declared for one operation below a root for another, and the operations are mixed up",
    expect=FILES,
    prepare=prepare_siblings,
    policy=lambda ground: {
        "allowed_paths": [],
        "access": [
            {"resource_type": "filesystem", "operation": "create", "target": f"{ground.base}/srv/a"},
            {"resource_type": "filesystem", "operation": "delete", "target": f"{ground.base}/srv/ab"},
        ],
    },
)
def operations_of_neighbours(ground: Ground) -> bool:
    return os.remove(f"{ground.base}/srv/a/secret.txt") is None
