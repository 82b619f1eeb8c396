"""Files and roots that appear or change after the policy was compiled."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, Ground, attack, attacks_of


def prepare_link(ground: Ground) -> None:
    os.symlink(ground.outside_dir, f"{ground.inside}/outward")


def with_later(ground: Ground) -> dict[str, object]:
    """A root that does not exist when the policy is made."""
    return {"allowed_paths": [ground.inside, f"{ground.base}/later"]}


@attack("a root that did not exist becomes a link outward", expect=FILES, prepare=prepare_link, policy=with_later)
def missing_root_becomes_link(ground: Ground) -> object:
    os.rename(f"{ground.inside}/outward", f"{ground.base}/later")
    return open(f"{ground.base}/later/secret.txt").read()


@attack("a root that did not exist is made by the subject as a link outward", expect=FILES, policy=with_later)
def missing_root_made_as_link(ground: Ground) -> object:
    os.symlink("outside", f"{ground.base}/later")
    return open(f"{ground.base}/later/secret.txt").read()


@attack(
    "a root is removed and a link outward takes its place",
    expect=FILES,
    prepare=lambda ground: (prepare_link(ground), os.mkdir(f"{ground.base}/later")),
    policy=with_later,
)
def root_replaced_by_link(ground: Ground) -> object:
    os.rmdir(f"{ground.base}/later")
    os.rename(f"{ground.inside}/outward", f"{ground.base}/later")
    return open(f"{ground.base}/later/secret.txt").read()


@attack(
    "a root that is a link is pointed elsewhere, and what it pointed to before is read still",
    expect=FILES,
    prepare=lambda ground: (
        os.symlink(ground.inside, f"{ground.neutral}/root"),
        prepare_link(ground),
    ),
    policy=lambda ground: {"allowed_paths": [f"{ground.neutral}/root", ground.neutral]},
)
def linked_root_pointed_elsewhere(ground: Ground) -> object:
    os.rename(f"{ground.inside}/outward", f"{ground.neutral}/root")
    return open(f"{ground.neutral}/root/secret.txt").read()


@attack(
    "the parent of a root is moved so that the root's name is free",
    expect=FILES,
    policy=lambda ground: {
        "allowed_paths": [f"{ground.outside_dir}/allowed"],
    },
    prepare=lambda ground: os.mkdir(f"{ground.outside_dir}/allowed"),
)
def parent_of_root_moved(ground: Ground) -> None:
    os.rename(ground.outside_dir, ground.outside_dir + "-moved")


def protected_later(ground: Ground) -> None:
    """The host's secret does not exist yet when the guard starts."""
    import shutil

    shutil.rmtree(ground.vault)


def host_writes_it(ground: Ground) -> None:
    os.makedirs(ground.vault, exist_ok=True)
    ground.write(ground.protected, ground.SECRET)


attacks_of(
    {
        "made_as_folder": lambda ground: os.mkdir(ground.vault) is None,
        "made_as_file": lambda ground: open(ground.vault, "w").write("x") > 0,
        "made_as_link": lambda ground: os.symlink(f"{ground.inside}/own.txt", ground.vault) is None,
        "moved_there": lambda ground: os.rename(f"{ground.inside}/own.txt", ground.vault) is None,
        "linked_there": lambda ground: os.link(f"{ground.inside}/own.txt", ground.vault) is None,
        "parents_made": lambda ground: os.makedirs(f"{ground.vault}/deeper") is None,
    },
    "a protected path that does not exist yet is occupied by the subject: {}",
    expect=FILES,
    group="protected_",
    prepare=protected_later,
)


def host_service(ground: Ground) -> None:
    """A host thread that writes the secret when asked to."""
    import queue
    import threading

    protected_later(ground)
    orders, done = queue.SimpleQueue(), queue.SimpleQueue()

    def serve() -> None:
        orders.get()
        host_writes_it(ground)
        done.put(None)

    threading.Thread(target=serve, daemon=True).start()
    ground.held.host = lambda: (orders.put(None), done.get())


@attack(
    "a protected path is created by the host while the subject runs, and read",
    expect=FILES,
    prepare=host_service,
    host_writes=True,
)
def protected_appears(ground: Ground) -> object:
    ground.held.host()
    return open(ground.protected).read()


@attack("a folder that holds a protected path is moved aside and the path read under its new name", expect=FILES)
def holder_moved(ground: Ground) -> object:
    os.rename(f"{ground.inside}/holder", f"{ground.inside}/moved")
    return open(f"{ground.inside}/moved/vault/secret.txt").read()


@attack("a folder that holds a protected path is exchanged by moves", expect=FILES)
def holder_exchanged(ground: Ground) -> object:
    os.mkdir(f"{ground.inside}/other")
    os.rename(f"{ground.inside}/holder", f"{ground.inside}/other/x")
    return open(f"{ground.inside}/other/x/vault/secret.txt").read()


@attack("shutil moves a folder that holds a protected path", expect=FILES)
def holder_moved_by_shutil(ground: Ground) -> object:
    import shutil

    shutil.move(f"{ground.inside}/holder", f"{ground.inside}/moved")
    return open(f"{ground.inside}/moved/vault/secret.txt").read()


@attack(
    "the whole root is moved into another root and the protected path read there",
    expect=FILES,
    policy=lambda ground: {"allowed_paths": [ground.inside, ground.neutral]},
)
def root_moved(ground: Ground) -> object:
    os.rename(ground.inside, f"{ground.neutral}/moved")
    return open(f"{ground.neutral}/moved/holder/vault/secret.txt").read()


@attack("a bytecode file appears next to library code that only may be read", expect=FILES)
def bytecode_appears(ground: Ground) -> bool:
    os.makedirs(f"{ground.site}/package/__pycache__", exist_ok=True)
    open(f"{ground.site}/package/__pycache__/evil.pyc", "w").write("x")
    return True
