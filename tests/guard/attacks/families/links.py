"""Symbolic and hard links: the target counts, however it is reached and whoever made the link."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, FILES_OR_FD, Ground, attack, attacks_of


def links(ground: Ground) -> None:
    os.symlink(ground.outside, f"{ground.inside}/link")
    os.symlink("../outside/secret.txt", f"{ground.inside}/relative")
    os.symlink(ground.outside_dir, f"{ground.inside}/folder")
    os.symlink(f"{ground.outside_dir}/new", f"{ground.inside}/dangling")
    os.symlink("link", f"{ground.inside}/chain")
    os.symlink("/proc/self/root", f"{ground.inside}/everything")
    os.symlink(ground.readonly_file, f"{ground.inside}/data")
    os.symlink("folder", f"{ground.inside}/folder_chain")


def inside(name: str, act):
    return lambda ground: act(f"{ground.inside}/{name}")


def entry_of(ground: Ground, name: str) -> os.DirEntry[str]:
    return next(entry for entry in os.scandir(ground.inside) if entry.name == name)


attacks_of(
    {
        "read": inside("link", lambda path: open(path).read()),
        "read_relative": inside("relative", lambda path: open(path).read()),
        "read_chain": inside("chain", lambda path: open(path).read()),
        "read_bytes": inside("link", lambda path: open(path.encode()).read()),
        "read_folder": inside("folder/secret.txt", lambda path: open(path).read()),
        "read_folder_chain": inside("folder_chain/secret.txt", lambda path: open(path).read()),
        "read_everything": lambda ground: open(f"{ground.inside}/everything{ground.outside}").read(),
        "os_open": inside("link", lambda path: os.read(os.open(path, 0), 99)),
        "os_open_path": inside("link", lambda path: os.open(path, os.O_PATH) > 0),
        "FileIO": inside("link", lambda path: __import__("io").FileIO(path).read()),
        "open_code": inside("link", lambda path: __import__("io").open_code(path).read()),
        "write": inside("link", lambda path: open(path, "w").write("changed")),
        "append": inside("link", lambda path: open(path, "a").write("changed")),
        "create_dangling": inside("dangling", lambda path: open(path, "w").write("new")),
        "create_in_folder": inside("folder/new", lambda path: open(path, "x").write("new")),
        "write_readonly": inside("data", lambda path: open(path, "w").write("changed")),
        "stat": inside("link", lambda path: os.stat(path).st_size == len(Ground.SECRET)),
        "lstat_in_folder": inside("folder/secret.txt", lambda path: os.lstat(path).st_size > 0),
        "exists": inside("link", os.path.exists),
        "access": inside("link", lambda path: os.access(path, os.R_OK)),
        "listdir": inside("folder", lambda path: "secret.txt" in os.listdir(path)),
        "scandir": inside("folder/", lambda path: any(os.scandir(path))),
        "readlink_in_folder": inside("folder/alias", lambda path: os.readlink(path) != ""),
        "DirEntry_stat": lambda ground: entry_of(ground, "link").stat().st_size == len(ground.SECRET),
        "DirEntry_is_file": lambda ground: entry_of(ground, "link").is_file(),
        "DirEntry_is_dir": lambda ground: entry_of(ground, "folder").is_dir(),
        "chdir": inside("folder", lambda path: os.chdir(path) or open("secret.txt").read()),
        "truncate": inside("link", lambda path: os.truncate(path, 0)),
        "chmod": inside("link", lambda path: os.chmod(path, 0o777)),
        "utime": inside("link", lambda path: os.utime(path, (1, 1))),
        "setxattr": inside("link", lambda path: os.setxattr(path, "user.x", b"y")),
        "listxattr": inside("link", lambda path: os.listxattr(path) is not None),
        "statvfs": inside("link", lambda path: os.statvfs(path).f_bsize > 0),
        "pathconf": inside("link", lambda path: os.pathconf(path, "PC_NAME_MAX") > 0),
        "remove_in_folder": inside("folder/secret.txt", os.remove),
        "rename_in_folder": lambda ground: os.rename(f"{ground.inside}/folder/secret.txt", f"{ground.inside}/x"),
        "rename_into_folder": lambda ground: os.rename(f"{ground.inside}/own.txt", f"{ground.inside}/folder/new"),
        "mkdir_in_folder": inside("folder/new", os.mkdir),
        "mkdir_trailing_slash": inside("folder/new/", os.mkdir),
        "rmdir_in_folder": inside("folder/empty", os.rmdir),
        "mkfifo_in_folder": inside("folder/new", os.mkfifo),
        "symlink_in_folder": inside("folder/new", lambda path: os.symlink("x", path)),
        "hard_link_from_folder": lambda ground: os.link(f"{ground.inside}/folder/secret.txt", f"{ground.inside}/x"),
        "hard_link_into_folder": lambda ground: os.link(f"{ground.inside}/own.txt", f"{ground.inside}/folder/new"),
        "read_text": inside("link", lambda path: __import__("pathlib").Path(path).read_text()),
        "copyfile": lambda ground: (
            __import__("shutil").copyfile(f"{ground.inside}/link", f"{ground.inside}/copy")
            and open(f"{ground.inside}/copy").read()
        ),
    },
    "a link inside that the host made is followed: {}",
    expect=FILES,
    prepare=lambda ground: (
        links(ground),
        os.mkdir(f"{ground.outside_dir}/empty"),
        os.symlink("x", f"{ground.outside_dir}/alias"),
    ),
)
attacks_of(
    {
        "walk": lambda ground: any("secret.txt" in files for top, _, files in os.walk(f"{ground.inside}/folder")),
        "walk_followlinks": lambda ground: any(
            "secret.txt" in files for top, _, files in os.walk(ground.inside, followlinks=True) if "folder" in top
        ),
        "glob": lambda ground: bool(__import__("glob").glob(f"{ground.inside}/folder/*")),
    },
    "a link inside to a folder outside is walked: {}",
    expect=FILES.quietly,
    prepare=lambda ground: os.symlink(ground.outside_dir, f"{ground.inside}/folder"),
)


@attack("chown follows a link", expect=FILES, prepare=links, needs=("root",))
def chown(ground: Ground) -> None:
    os.chown(f"{ground.inside}/link", 12345, 12345)


@attack("a folder of links is removed together with what they lead to", expect=FILES, prepare=links)
def rmtree_through(ground: Ground) -> None:
    import shutil

    shutil.rmtree(f"{ground.inside}/folder/")


def linked(make):
    """The secret is read through a link that the subject just made at `inside/l`."""

    def act(ground: Ground) -> object:
        make(ground, f"{ground.inside}/l")
        return open(f"{ground.inside}/l").read()

    return act


def moved_up(ground: Ground, link: str) -> None:
    os.makedirs(f"{ground.inside}/d/e")
    os.symlink("../outside/secret.txt", f"{ground.inside}/d/e/l")
    os.rename(f"{ground.inside}/d/e/l", link)


attacks_of(
    {
        "absolute": linked(lambda ground, link: os.symlink(ground.outside, link)),
        "relative": linked(lambda ground, link: os.symlink("../outside/secret.txt", link)),
        "relative_bytes": linked(lambda ground, link: os.symlink(b"../outside/secret.txt", link.encode())),
        "pathlib": linked(lambda ground, link: __import__("pathlib").Path(link).symlink_to(ground.outside)),
        "to_proc": linked(lambda ground, link: os.symlink(f"/proc/self/root{ground.outside}", link)),
        "to_folder_above": linked(
            lambda ground, link: (os.symlink("..", f"{ground.inside}/up"), os.symlink("up/outside/secret.txt", link))
        ),
        "moved_up": linked(moved_up),
    },
    "the subject makes a link to the secret ({}) and the secret is read through it",
    expect=FILES,
    group="make_",
)


@attack("an allowed file is read, then a moved link takes its place and is read", expect=FILES)
def decision_remembered(ground: Ground) -> object:
    os.makedirs(f"{ground.inside}/a/outside")
    open(f"{ground.inside}/a/outside/secret.txt", "w").write("own")
    os.makedirs(f"{ground.inside}/a/b")
    os.symlink("../outside/secret.txt", f"{ground.inside}/a/b/link")
    path = f"{ground.inside}/name"
    open(path, "w").write("own")
    for _ in range(3):
        open(path).close()
    os.unlink(path)
    os.rename(f"{ground.inside}/a/b/link", path)
    return open(path).read()


@attack("a link that was harmless where it was made is moved to where it leads out", expect=FILES)
def moved_folder_of_link(ground: Ground) -> object:
    os.makedirs(f"{ground.inside}/a/b/outside")
    open(f"{ground.inside}/a/b/outside/secret.txt", "w").write("own")
    os.makedirs(f"{ground.inside}/a/b/c")
    os.symlink("../outside", f"{ground.inside}/a/b/c/folder")
    os.rename(f"{ground.inside}/a/b/c/folder", f"{ground.inside}/folder")
    return open(f"{ground.inside}/folder/secret.txt").read()


attacks_of(
    {
        "root": lambda ground: open(f"/proc/self/root{ground.outside}").read(),
        "thread_root": lambda ground: open(f"/proc/thread-self/root{ground.outside}").read(),
        "pid_root": lambda ground: open(f"/proc/{os.getpid()}/root{ground.outside}").read(),
        "task_root": lambda ground: open(f"/proc/self/task/{os.getpid()}/root{ground.outside}").read(),
        "cwd": lambda ground: open("/proc/self/cwd/../outside/secret.txt").read(),
        "root_of_root": lambda ground: open(f"/proc/self/root/proc/self/root{ground.outside}").read(),
        "dev_root": lambda ground: open(f"/dev/fd/../root{ground.outside}").read(),
        "parent_root": lambda ground: open(f"/proc/{os.getppid()}/root{ground.outside}").read(),
        "stat": lambda ground: os.stat(f"/proc/self/root{ground.outside}").st_size > 0,
        "listdir": lambda ground: "secret.txt" in os.listdir(f"/proc/self/root{ground.outside_dir}"),
        "write": lambda ground: open(f"/proc/self/root{ground.outside}", "w").write("changed"),
        "parent_cwd": lambda ground: bool(os.listdir(f"/proc/{os.getppid()}/cwd")),
        "own_folder_fd": lambda ground: open(
            f"/proc/self/fd/{os.open(ground.inside, os.O_RDONLY)}/../outside/secret.txt"
        ).read(),
    },
    "a link of the process file system is followed: {}",
    expect=FILES_OR_FD,
    group="proc_",
)


@attack("a hard link the subject makes to a file outside is read", expect=FILES)
def hard_link(ground: Ground) -> object:
    os.link(ground.outside, f"{ground.inside}/l")
    return open(f"{ground.inside}/l").read()


@attack("a hard link is made to a link, which leads out", expect=FILES, prepare=links)
def hard_link_of_link(ground: Ground) -> object:
    os.link(f"{ground.inside}/link", f"{ground.inside}/l", follow_symlinks=False)
    return open(f"{ground.inside}/l").read()


@attack(
    "temporary links: the temp folder holds a link that leads out",
    expect=FILES,
    prepare=lambda ground: os.symlink(ground.outside, f"{os.environ['TMPDIR']}/link"),
)
def link_in_temp(ground: Ground) -> object:
    return open(f"{os.environ['TMPDIR']}/link").read()


@attack("the temp folder's link is used to write a file that may only be read", expect=FILES)
def temp_link_to_readonly(ground: Ground) -> None:
    path = f"{os.environ['TMPDIR']}/link"
    os.symlink(ground.readonly_file, path)
    open(path, "w").write("changed")
