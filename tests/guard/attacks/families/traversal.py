"""Path traversal: dots, doubled slashes, archive members and loader paths."""

from __future__ import annotations

import io
import os

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def relative(ground: Ground) -> object:
    os.chdir(ground.inside)
    return open("../outside/secret.txt").read()


def from_neutral(ground: Ground) -> object:
    return open("../outside/secret.txt").read()


attacks_of(
    {
        "dots": lambda ground: open(f"{ground.inside}/../outside/secret.txt").read(),
        "dots_bytes": lambda ground: open(f"{ground.inside}/../outside/secret.txt".encode()).read(),
        "doubled": lambda ground: open(f"{ground.inside}//..//outside//secret.txt").read(),
        "dot_dots": lambda ground: open(f"{ground.inside}/./.././outside/./secret.txt").read(),
        "many_dots": lambda ground: open(f"{ground.inside}/{'../' * 40}{ground.outside}").read(),
        "leading_slashes": lambda ground: open(f"//{ground.outside}").read(),
        "three_slashes": lambda ground: open(f"///{ground.inside}/../outside/secret.txt").read(),
        "relative": relative,
        "relative_to_neutral": from_neutral,
        "down_and_up": lambda ground: open(f"{ground.vault}/../../../outside/secret.txt").read(),
        "os_open": lambda ground: os.read(os.open(f"{ground.inside}/../outside/secret.txt", 0), 99),
        "stat": lambda ground: os.stat(f"{ground.inside}/../outside/secret.txt").st_size > 0,
        "listdir": lambda ground: "secret.txt" in os.listdir(f"{ground.inside}/../outside/"),
        "parent_listing": lambda ground: "outside" in os.listdir(f"{ground.inside}/.."),
        "remove": lambda ground: os.remove(f"{ground.inside}/../outside/secret.txt"),
        "rename": lambda ground: os.rename(f"{ground.inside}/own.txt", f"{ground.inside}/../outside/new"),
        "mkdir": lambda ground: os.mkdir(f"{ground.inside}/../outside/new"),
        "mkdir_trailing": lambda ground: os.mkdir(f"{ground.inside}/../outside/new/"),
        "readonly_dots": lambda ground: open(f"{ground.inside}/../readonly/data.txt", "w").write("changed"),
        "from_library": lambda ground: open(f"{os.path.dirname(os.__file__)}/{'../' * 40}{ground.outside}").read(),
        "from_dev_null": lambda ground: open(f"/dev/../{ground.outside}").read(),
    },
    "dots lead out of a root: {}",
    expect=FILES,
)


def prepare_folder_link(ground: Ground) -> None:
    os.mkdir(f"{ground.outside_dir}/deep")
    os.symlink(f"{ground.outside_dir}/deep", f"{ground.inside}/deep")
    ground.write(f"{ground.inside}/secret.txt", "a decoy that lexical cleaning would find")


attacks_of(
    {
        "open": lambda ground: open(f"{ground.inside}/deep/../secret.txt").read(),
        "stat": lambda ground: os.stat(f"{ground.inside}/deep/../secret.txt").st_size == len(ground.SECRET),
        "remove": lambda ground: os.remove(f"{ground.inside}/deep/../secret.txt"),
        "rename": lambda ground: os.rename(f"{ground.inside}/deep/../secret.txt", f"{ground.inside}/x"),
        "write": lambda ground: open(f"{ground.inside}/deep/../new", "w").write("new"),
    },
    "dots after a link mean the link's target, not the link's folder: {}",
    expect=FILES,
    group="dots_after_link_",
    prepare=prepare_folder_link,
)


def archive_with(name: str, kind: bytes | None = None, target: str = "") -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        if kind is not None:
            link = tarfile.TarInfo("link")
            link.type, link.linkname = kind, target
            archive.addfile(link)
        member = tarfile.TarInfo(name)
        member.size = 3
        archive.addfile(member, io.BytesIO(b"new"))
    return buffer.getvalue()


def extract(ground: Ground, data: bytes) -> None:
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        archive.extractall(ground.inside)


attacks_of(
    {
        "dots": lambda ground: extract(ground, archive_with("../outside/new")),
        "absolute": lambda ground: extract(ground, archive_with(f"{ground.outside_dir}/new")),
        "symlink": lambda ground: extract(ground, archive_with("link/new", b"2", ground.outside_dir)),
        "symlink_relative": lambda ground: extract(ground, archive_with("link/new", b"2", "../outside")),
        "hard_link": lambda ground: extract(ground, archive_with("link", b"1", "../outside/secret.txt")),
    },
    "an archive's members ({}) are extracted to places outside",
    expect=FILES.unseen,
    group="tar_",
)


@attack("an archive's member is renamed to a place outside before extraction", expect=FILES)
def zip_member(ground: Ground) -> None:
    import zipfile

    path = f"{ground.inside}/a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("member", "new")
    with zipfile.ZipFile(path) as archive:
        archive._extract_member = lambda member, target, password: open(f"{ground.outside_dir}/new", "w").write("new")
        archive.extractall(ground.inside)


@attack("unpack_archive unpacks outside", expect=FILES)
def unpack_archive(ground: Ground) -> None:
    import shutil

    open(f"{ground.inside}/a.tar", "wb").write(archive_with("new"))
    shutil.unpack_archive(f"{ground.inside}/a.tar", ground.outside_dir)


@attack("a package resource is asked for with dots", expect=FILES)
def resource_with_dots(ground: Ground) -> object:
    import pkgutil

    return pkgutil.get_data("package", "../../outside/secret.txt")


@attack("a loader is asked for a module file with dots", expect=SANDBOX)
def loader_with_dots(ground: Ground) -> object:
    import package

    return package.__loader__.get_data(f"{ground.site}/package/../../outside/secret.txt")


@attack("the current folder is a root's sibling and a bare name is opened", expect=FILES)
def bare_name(ground: Ground) -> object:
    os.chdir(ground.outside_dir)
    return open("secret.txt").read()


@attack(
    "the host works in the folder of the secret and a bare name is opened",
    expect=FILES,
    prepare=lambda ground: os.chdir(ground.outside_dir),
)
def bare_name_of_the_host(ground: Ground) -> object:
    return open("secret.txt").read()


@attack(
    "an empty path component list is opened where the host works",
    expect=FILES,
    prepare=lambda ground: os.chdir(ground.outside_dir),
)
def dot_listing(ground: Ground) -> bool:
    return "secret.txt" in os.listdir()
