"""One operation in place of another: a right to one is not a right to another."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, FILES_OR_FD, Ground, attack, attacks_of


def write_descriptor(path: str, flags: int) -> None:
    os.write(os.open(path, flags, 0o600), b"changed")


def linked_and_written(ground: Ground) -> None:
    os.link(ground.readonly_file, f"{ground.inside}/linked")
    open(f"{ground.inside}/linked", "w").write("changed")


def linked_through_descriptor(ground: Ground) -> None:
    descriptor = os.open(ground.readonly_file, os.O_RDONLY)
    os.link(f"/proc/self/fd/{descriptor}", f"{ground.inside}/linked", src_dir_fd=0, follow_symlinks=True)
    open(f"{ground.inside}/linked", "w").write("changed")


def reopened_for_writing(ground: Ground) -> None:
    descriptor = os.open(ground.readonly_file, os.O_RDONLY)
    open(f"/proc/self/fd/{descriptor}", "w").write("changed")


def reopened_through_dev(ground: Ground) -> None:
    descriptor = os.open(ground.readonly_file, os.O_RDONLY)
    open(f"/dev/fd/{descriptor}", "w").write("changed")


def symlinked_and_written(ground: Ground) -> None:
    os.symlink(ground.readonly_file, f"{ground.inside}/link")
    open(f"{ground.inside}/link", "w").write("changed")


def folder_moved_and_written(ground: Ground) -> None:
    os.rename(ground.readonly, f"{ground.inside}/taken")
    open(f"{ground.inside}/taken/data.txt", "w").write("changed")


attacks_of(
    {
        "open_w": lambda ground: open(ground.readonly_file, "w").write("changed"),
        "open_a": lambda ground: open(ground.readonly_file, "a").write("changed"),
        "open_r_plus": lambda ground: open(ground.readonly_file, "r+").write("changed"),
        "open_new": lambda ground: open(f"{ground.readonly}/new", "w").write("changed"),
        "truncate_by_reading": lambda ground: os.open(ground.readonly_file, os.O_RDONLY | os.O_TRUNC) and None,
        "create_by_reading": lambda ground: os.open(f"{ground.readonly}/new", os.O_RDONLY | os.O_CREAT) and None,
        "append_flags": lambda ground: write_descriptor(ground.readonly_file, os.O_WRONLY | os.O_APPEND),
        "remove": lambda ground: os.remove(ground.readonly_file),
        "rename_out": lambda ground: os.rename(ground.readonly_file, f"{ground.inside}/x"),
        "rename_onto": lambda ground: os.rename(f"{ground.inside}/own.txt", ground.readonly_file),
        "mkdir": lambda ground: os.mkdir(f"{ground.readonly}/new"),
        "chmod": lambda ground: os.chmod(ground.readonly_file, 0o777),
        "utime": lambda ground: os.utime(ground.readonly_file, (1, 1)),
        "setxattr": lambda ground: os.setxattr(ground.readonly_file, "user.x", b"y"),
        "symlink": lambda ground: os.symlink("data.txt", f"{ground.readonly}/new"),
        "mkfifo": lambda ground: os.mkfifo(f"{ground.readonly}/new"),
        "copystat": lambda ground: __import__("shutil").copystat(f"{ground.inside}/own.txt", ground.readonly_file),
        "linked_and_written": linked_and_written,
        "symlinked_and_written": symlinked_and_written,
        "reopened_for_writing": reopened_for_writing,
        "reopened_through_dev": reopened_through_dev,
        "folder_moved_and_written": folder_moved_and_written,
        "sqlite": lambda ground: (
            __import__("sqlite3").connect(f"{ground.readonly}/new.db").execute("create table t (x)").close()
        ),
    },
    "a root that may only be read is changed: {}",
    group="readonly_",
    expect=FILES,
)


attack("a file that may only be read is linked by its descriptor into a writable root", expect=FILES_OR_FD)(
    linked_through_descriptor
)


def own_descriptor(ground: Ground) -> int:
    return os.open(ground.readonly_file, os.O_RDONLY)


def chmod_of_file_object(ground: Ground) -> None:
    with open(ground.readonly_file) as file:
        os.chmod(file.fileno(), 0o777)


attacks_of(
    {
        "fchmod": lambda ground: os.fchmod(own_descriptor(ground), 0o777),
        "chmod_number": lambda ground: os.chmod(own_descriptor(ground), 0o777),
        "utime_number": lambda ground: os.utime(own_descriptor(ground), (1, 1)),
        "setxattr_number": lambda ground: os.setxattr(own_descriptor(ground), "user.x", b"y"),
        "chmod_of_file_object": chmod_of_file_object,
        "chmod_of_folder": lambda ground: os.fchmod(os.open(ground.readonly, os.O_RDONLY), 0o777),
    },
    "a descriptor opened for reading is used to change what it belongs to: {}",
    expect=FILES_OR_FD,
)
attacks_of(
    {
        "fchown": lambda ground: os.fchown(own_descriptor(ground), 12345, 12345),
        "chown_number": lambda ground: os.chown(own_descriptor(ground), 12345, 12345),
    },
    "a descriptor opened for reading is used to give the file away: {}",
    expect=FILES_OR_FD,
    needs=("root",),
)


def prepare_drop(ground: Ground) -> None:
    os.mkdir(f"{ground.base}/drop")
    ground.write(f"{ground.base}/drop/mail.txt", ground.SECRET)


def only(*operations: str):
    """A policy with these operations, and no other, on the drop folder."""
    return lambda ground: {
        "allowed_paths": [ground.inside],
        "access": [
            {"resource_type": "filesystem", "operation": list(operations), "target": f"{ground.base}/drop"},
        ],
    }


def in_drop(ground: Ground, name: str = "mail.txt") -> str:
    return f"{ground.base}/drop/{name}"


attacks_of(
    {
        "read": lambda ground: open(in_drop(ground)).read(),
        "read_and_write": lambda ground: open(in_drop(ground), "r+").read(),
        "os_open_both": lambda ground: os.read(os.open(in_drop(ground), os.O_RDWR), 99),
        "stat": lambda ground: os.stat(in_drop(ground)).st_size > 0,
        "listdir": lambda ground: "mail.txt" in os.listdir(in_drop(ground, "")),
        "linked": lambda ground: os.link(in_drop(ground), f"{ground.inside}/l") or open(f"{ground.inside}/l").read(),
        "moved": lambda ground: os.rename(in_drop(ground), f"{ground.inside}/l") or open(f"{ground.inside}/l").read(),
        "symlinked": lambda ground: (
            os.symlink(in_drop(ground), f"{ground.inside}/l") or open(f"{ground.inside}/l").read()
        ),
    },
    "a folder one may create and modify in is read: {}",
    group="without_read_",
    expect=FILES,
    prepare=prepare_drop,
    policy=only("create", "modify"),
)
attacks_of(
    {
        "overwrite": lambda ground: open(in_drop(ground), "w").write("x") > 0,
        "append": lambda ground: open(in_drop(ground), "a").write("x") > 0,
        "truncate": lambda ground: os.truncate(in_drop(ground), 0) is None,
        "chmod": lambda ground: os.chmod(in_drop(ground), 0o777) is None,
        "replace": lambda ground: os.replace(f"{ground.inside}/own.txt", in_drop(ground)) is None,
        "delete": lambda ground: os.remove(in_drop(ground)) is None,
    },
    "a right to create is used to change or remove what is there: {}",
    group="create_only_",
    expect=FILES,
    prepare=prepare_drop,
    policy=only("create", "read"),
)
attacks_of(
    {
        "create": lambda ground: open(in_drop(ground, "new"), "w").write("x") > 0,
        "create_by_flags": lambda ground: os.open(in_drop(ground, "new"), os.O_CREAT | os.O_RDWR) > 0,
        "mkdir": lambda ground: os.mkdir(in_drop(ground, "new")) is None,
        "rename_to_new": lambda ground: os.rename(f"{ground.inside}/own.txt", in_drop(ground, "new")) is None,
        "delete": lambda ground: os.remove(in_drop(ground)) is None,
        "move_away": lambda ground: os.rename(in_drop(ground), f"{ground.inside}/l") is None,
    },
    "a right to modify is used to create or delete: {}",
    group="modify_only_",
    expect=FILES,
    prepare=prepare_drop,
    policy=only("modify", "read"),
)


@attack(
    "a right to execute a file is used to read it",
    expect=FILES,
    prepare=prepare_drop,
    policy=only("execute"),
)
def execute_is_not_read(ground: Ground) -> object:
    return open(in_drop(ground)).read()
