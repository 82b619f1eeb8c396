"""All functions of the standard library that read a path or query it."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, Ground, attack, attacks_of


def reopened(ground: Ground) -> object:
    import io

    file = io.FileIO(f"{ground.inside}/own.txt")
    file.__init__(ground.outside)
    return file.read()


def through_super(ground: Ground) -> object:
    import io

    class Sly(io.FileIO):
        def __init__(self, path: str) -> None:
            super().__init__(f"{ground.inside}/own.txt")
            super().__init__(path)

    return Sly(ground.outside).read()


def by_descriptor(ground: Ground) -> object:
    descriptor = os.open(ground.outside, os.O_RDONLY)
    return os.read(descriptor, 99)


def via_posix(ground: Ground) -> object:
    import posix

    return posix.read(posix.open(ground.outside, posix.O_RDONLY), 99)


attacks_of(
    {
        "open": lambda ground: open(ground.outside).read(),
        "open_by_keyword": lambda ground: open(file=ground.outside, mode="rb").read(),
        "open_unbuffered": lambda ground: open(ground.outside, "rb", 0).read(),
        "io_open": lambda ground: __import__("io").open(ground.outside).read(),
        "_io_open": lambda ground: __import__("_io").open(ground.outside).read(),
        "FileIO": lambda ground: __import__("io").FileIO(ground.outside).read(),
        "FileIO_initialised_again": reopened,
        "FileIO_through_super": through_super,
        "open_code": lambda ground: __import__("io").open_code(ground.outside).read(),
        "_io_open_code": lambda ground: __import__("_io").open_code(ground.outside).read(),
        "_pyio_open": lambda ground: __import__("_pyio").open(ground.outside).read(),
        "os_open": by_descriptor,
        "os_open_path_only": lambda ground: os.open(ground.outside, os.O_PATH) > 0,
        "posix_open": via_posix,
        "map_open": lambda ground: next(map(open, [ground.outside])).read(),
        "read_text": lambda ground: __import__("pathlib").Path(ground.outside).read_text(),
        "read_bytes": lambda ground: __import__("pathlib").Path(ground.outside).read_bytes(),
        "Path_open": lambda ground: __import__("pathlib").Path(ground.outside).open().read(),
        "codecs_open": lambda ground: __import__("codecs").open(ground.outside).read(),
        "tokenize_open": lambda ground: __import__("tokenize").open(ground.outside).read(),
        "bz2_builtin_open": lambda ground: __import__("bz2")._builtin_open(ground.outside).read(),
        "tarfile_bltn_open": lambda ground: __import__("tarfile").bltn_open(ground.outside).read(),
        "fileinput": lambda ground: "".join(__import__("fileinput").input([ground.outside])),
        "opener": lambda ground: open(
            f"{ground.inside}/own.txt", opener=lambda path, flags: os.open(ground.outside, flags)
        ).read(),
    },
    "{} reads a file outside",
    expect=FILES,
)


def entries_of(folder: object) -> bool:
    return "secret.txt" in [getattr(entry, "name", entry) for entry in folder]


attacks_of(
    {
        "listdir": lambda ground: entries_of(os.listdir(ground.outside_dir)),
        "posix_listdir": lambda ground: entries_of(__import__("posix").listdir(ground.outside_dir)),
        "scandir": lambda ground: entries_of(os.scandir(ground.outside_dir)),
        "iterdir": lambda ground: entries_of(__import__("pathlib").Path(ground.outside_dir).iterdir()),
        "fwalk": lambda ground: any(entries_of(files) for _, _, files, _ in os.fwalk(ground.outside_dir)),
    },
    "{} lists a folder outside",
    expect=FILES,
)
attacks_of(
    {
        "walk": lambda ground: any(entries_of(files) for _, _, files in os.walk(ground.outside_dir)),
        "glob": lambda ground: bool(__import__("glob").glob(f"{ground.outside_dir}/*")),
        "iglob_root_dir": lambda ground: bool(list(__import__("glob").iglob("*", root_dir=ground.outside_dir))),
        "Path_glob": lambda ground: entries_of(__import__("pathlib").Path(ground.outside_dir).glob("*")),
        "Path_rglob": lambda ground: entries_of(__import__("pathlib").Path(ground.base).rglob("secret*")),
        "linecache": lambda ground: "".join(__import__("linecache").getlines(ground.outside)),
        "configparser": lambda ground: __import__("configparser").ConfigParser().read(ground.outside) != [],
        "which": lambda ground: __import__("shutil").which(ground.outside, mode=os.F_OK) is not None,
        "iter_modules": lambda ground: bool(list(__import__("pkgutil").iter_modules([ground.outside_dir]))),
        "filecmp": lambda ground: __import__("filecmp").dircmp(ground.outside_dir, ground.inside).left_list != [],
    },
    "{} reports what is outside, swallowing errors on the way",
    expect=FILES.quietly,
    prepare=lambda ground: (
        ground.write(f"{ground.outside_dir}/loot_module.py", ground.SECRET),
        ground.write(ground.outside, "[section]\n# " + ground.SECRET),
    ),
)

attacks_of(
    {
        "stat": lambda ground: os.stat(ground.outside).st_size == len(ground.SECRET),
        "posix_stat": lambda ground: __import__("posix").stat(ground.outside).st_size > 0,
        "lstat": lambda ground: os.lstat(ground.outside).st_size > 0,
        "access": lambda ground: os.access(ground.outside, os.R_OK),
        "access_effective_ids": lambda ground: os.access(ground.outside, os.R_OK, effective_ids=True),
        "exists": lambda ground: os.path.exists(ground.outside),
        "lexists": lambda ground: os.path.lexists(ground.outside),
        "isfile": lambda ground: os.path.isfile(ground.outside),
        "isdir": lambda ground: os.path.isdir(ground.outside_dir),
        "ismount": lambda ground: os.path.ismount(ground.outside_dir) is False,
        "getsize": lambda ground: os.path.getsize(ground.outside) > 0,
        "getmtime": lambda ground: os.path.getmtime(ground.outside) > 0,
        "samefile": lambda ground: os.path.samefile(ground.outside, ground.outside),
        "Path_exists": lambda ground: __import__("pathlib").Path(ground.outside).exists(),
        "Path_is_file": lambda ground: __import__("pathlib").Path(ground.outside).is_file(),
        "Path_stat": lambda ground: __import__("pathlib").Path(ground.outside).stat().st_size > 0,
        "statvfs": lambda ground: os.statvfs(ground.outside).f_bsize > 0,
        "disk_usage": lambda ground: __import__("shutil").disk_usage(ground.outside_dir).total > 0,
        "pathconf": lambda ground: os.pathconf(ground.outside, "PC_NAME_MAX") > 0,
        "chdir": lambda ground: os.chdir(ground.outside_dir) is None,
        "contextlib_chdir": lambda ground: __import__("contextlib").chdir(ground.outside_dir).__enter__() is None,
        "listxattr": lambda ground: os.listxattr(ground.outside) is not None,
    },
    "{} tells about a path outside",
    expect=FILES,
)


def prepare_links(ground: Ground) -> None:
    os.symlink("secret.txt", f"{ground.outside_dir}/alias")


attacks_of(
    {
        "readlink": lambda ground: os.readlink(f"{ground.outside_dir}/alias") == "secret.txt",
        "Path_readlink": lambda ground: str(__import__("pathlib").Path(f"{ground.outside_dir}/alias").readlink()) != "",
        "islink": lambda ground: os.path.islink(f"{ground.outside_dir}/alias"),
    },
    "{} tells about a link outside",
    expect=FILES,
    prepare=prepare_links,
)
attacks_of(
    {
        "realpath": lambda ground: os.path.realpath(f"{ground.outside_dir}/alias").endswith("secret.txt"),
        "resolve": lambda ground: __import__("pathlib").Path(f"{ground.outside_dir}/alias").resolve().name != "alias",
    },
    "{} follows a link outside",
    expect=FILES.quietly,
    prepare=prepare_links,
)


def prepare_attribute(ground: Ground) -> None:
    os.setxattr(ground.outside, "user.note", ground.SECRET.encode())


@attack("getxattr reads an attribute outside", expect=FILES, prepare=prepare_attribute)
def getxattr(ground: Ground) -> object:
    return os.getxattr(ground.outside, "user.note")


def tarfile_add(ground: Ground) -> None:
    import tarfile

    with tarfile.open(f"{ground.inside}/a.tar", "w") as archive:
        archive.add(ground.outside)


attacks_of(
    {
        "copyfile": lambda ground: __import__("shutil").copyfile(ground.outside, f"{ground.inside}/loot.txt"),
        "copy": lambda ground: __import__("shutil").copy(ground.outside, ground.inside),
        "copy2": lambda ground: __import__("shutil").copy2(ground.outside, ground.inside),
        "copytree": lambda ground: __import__("shutil").copytree(ground.outside_dir, f"{ground.inside}/tree"),
        "move": lambda ground: __import__("shutil").move(ground.outside, f"{ground.inside}/loot.txt"),
        "make_archive": lambda ground: __import__("shutil").make_archive(
            f"{ground.inside}/archive", "tar", ground.outside_dir
        ),
        "zipfile_write": lambda ground: (
            __import__("zipfile").ZipFile(f"{ground.inside}/a.zip", "w").write(ground.outside)
        ),
        "tarfile_add": tarfile_add,
    },
    "shutil and the archives ({}) carry a file from outside into the root",
    expect=FILES.unseen,
    after=lambda ground: any(
        ground.SECRET.encode() in open(f"{folder}/{name}", "rb").read()
        or name == "secret.txt"
        or (name == "a.zip" and os.path.getsize(f"{folder}/{name}") > 0)
        for folder, _, names in os.walk(ground.inside)
        if "holder" not in folder
        for name in names
    ),
)
