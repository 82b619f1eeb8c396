"""Denials of files reveal nothing: the same answer whether something exists at a path outside or not."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import Fruitless, Ground, attack

SAME = Fruitless("the answers are equal in type, text and attributes")


def make(ground: Ground) -> None:
    """Twins outside: under one name something is there, under the other nothing is."""
    folder = ground.outside_dir
    ground.write(f"{folder}/present", "x")
    ground.write(f"{folder}/empty.ini", "")
    os.mkdir(f"{folder}/present_d")
    ground.write(f"{folder}/present_d/present", "x")
    os.symlink("present", f"{folder}/present_l")
    os.symlink(f"{folder}/present", f"{ground.inside}/link_p")
    os.symlink(f"{folder}/missing", f"{ground.inside}/link_m")
    os.symlink(f"{folder}/present_d", f"{ground.inside}/folder_p")
    os.symlink(f"{folder}/missing_d", f"{ground.inside}/folder_m")


def answer(act, path: str, *words: str) -> tuple[object, ...]:
    """What the caller learns: a value, or everything about the error, without the name that was asked for."""
    try:
        value = act(path)
    except BaseException as error:
        seen = [type(error).__name__, str(error), repr(error), str(error.__cause__)]
        for name in ("errno", "strerror", "filename", "filename2", "code", "layer", "operation", "target", "hint"):
            seen.append(str(getattr(error, name, None)))
        seen.append(str(getattr(error, "__notes__", None)))
        text = "\n".join(seen)
    else:
        text = f"value {value!r}"
    for word in words:
        text = text.replace(word, "NAME")
    return (text,)


ACTS = {
    "open": lambda path: open(path).close(),
    "open_write": lambda path: open(path, "r+").close(),
    "open_exclusive": lambda path: open(path, "x").close(),
    "os_open": lambda path: os.open(path, os.O_RDONLY) and 1,
    "os_open_directory": lambda path: os.open(path, os.O_DIRECTORY) and 1,
    "stat": lambda path: os.stat(path) and 1,
    "lstat": lambda path: os.lstat(path) and 1,
    "access": lambda path: os.access(path, os.F_OK),
    "exists": os.path.exists,
    "lexists": os.path.lexists,
    "isfile": os.path.isfile,
    "islink": os.path.islink,
    "Path_exists": lambda path: __import__("pathlib").Path(path).exists(),
    "getsize": lambda path: os.path.getsize(path) and 1,
    "samefile": lambda path: os.path.samefile(path, path),
    "listdir": os.listdir,
    "scandir": lambda path: os.scandir(path) and 1,
    "readlink": lambda path: os.readlink(path) and 1,
    "statvfs": lambda path: os.statvfs(path) and 1,
    "chmod": lambda path: os.chmod(path, 0o600),
    "utime": lambda path: os.utime(path),
    "truncate": lambda path: os.truncate(path, 1),
    "mkdir": os.mkdir,
    "remove": os.remove,
    "rmdir": os.rmdir,
    "chdir": os.chdir,
    "rename_from": lambda path: os.rename(path, path + "-moved"),
    "link_from": lambda path: os.link(path, path + "-linked"),
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "glob": lambda path: len(__import__("glob").glob(path)),
    "linecache": lambda path: __import__("linecache").getlines(path) and 1,
    "which": lambda path: __import__("shutil").which(path, mode=os.F_OK) and 1,
    "sqlite": lambda path: __import__("sqlite3").connect(f"file:{path}?mode=ro", uri=True) and 1,
    "ssl": lambda path: __import__("ssl").SSLContext(16).load_verify_locations(path),
    "realpath_strict": lambda path: os.path.realpath(path, strict=True) and 1,
    "mkfifo": os.mkfifo,
    "import_path": lambda path: len(list(__import__("pkgutil").iter_modules([path]))),
    "file_url": lambda path: __import__("urllib.request").request.urlopen(f"file://{path}") and 1,
}
UNTOLD = {"import_path", "linecache", "islink"}
for act_name, act in ACTS.items():

    def tells(ground: Ground, act=act) -> bool | None:
        there, not_there = f"{ground.outside_dir}/present", f"{ground.outside_dir}/missing"
        answers = answer(act, there, "present"), answer(act, not_there, "missing")
        return True if answers[0] != answers[1] else None

    attack(
        f"{act_name} answers differently for what is there and what is not",
        expect=SAME,
        name=act_name,
        prepare=make,
        unguarded="says the same of both" if act_name in UNTOLD else "",
    )(tells)

PLACES = {
    "below_missing_folder": ("{outside}/present_d/x", "{outside}/missing_d/x", "present_d", "missing_d"),
    "below_a_file": ("{outside}/present/x", "{outside}/missing/x", "present", "missing"),
    "through_link": ("{inside}/link_p", "{inside}/link_m", "link_p", "link_m", "present", "missing"),
    "through_folder_link": (
        "{inside}/folder_p/present",
        "{inside}/folder_m/present",
        "folder_p",
        "folder_m",
        "present_d",
        "missing_d",
    ),
    "by_dots": ("{inside}/../outside/present", "{inside}/../outside/missing", "present", "missing"),
    "by_proc_root": ("/proc/self/root{outside}/present", "/proc/self/root{outside}/missing", "present", "missing"),
    "trailing_slash": ("{outside}/present_d/", "{outside}/missing_d/", "present_d", "missing_d"),
    "folder_above_missing": (
        "{outside}/present_d/../present",
        "{outside}/missing_d/../present",
        "present_d",
        "missing_d",
    ),
}
for place, (first, second, *words) in PLACES.items():
    for act_name in ("open", "stat", "exists", "os_open"):

        def tells_place(ground: Ground, act=ACTS[act_name], first=first, second=second, words=words) -> bool | None:
            paths = [path.format(outside=ground.outside_dir, inside=ground.inside) for path in (first, second)]
            answers = [answer(act, path, *words) for path in paths]
            return True if answers[0] != answers[1] else None

        attack(
            f"{act_name} of two paths ({place}) tells which one is there",
            expect=SAME,
            name=f"{place}_{act_name}",
            prepare=make,
            unguarded="both are missing" if place == "below_missing_folder" or act_name == "exists" else "",
        )(tells_place)


@attack("the text of a denial names where a link outside leads to", expect=SAME, prepare=make)
def link_target_named(ground: Ground) -> bool | None:
    os.environ["X"] = ""
    try:
        return os.path.realpath(open(f"{ground.outside_dir}/present_l").name).endswith("present")
    except PermissionError as error:
        told = str(error).replace("present_l", "NAME") + str(vars(error)).replace("present_l", "NAME")
        return True if "present" in told else None


@attack("a library asks on the subject's behalf and is told what is there", expect=SAME, prepare=make)
def library_probe(ground: Ground) -> bool | None:
    import configparser

    paths = f"{ground.outside_dir}/empty.ini", f"{ground.outside_dir}/missing.ini"
    return True if configparser.ConfigParser().read(paths) else None


@attack(
    "the source of a traceback is fetched from outside",
    expect=SAME,
    prepare=lambda ground: ground.write(f"{ground.outside_dir}/code.py", f"1 / 0  # {ground.SECRET}\n"),
)
def traceback_source(ground: Ground) -> object:
    import traceback

    try:
        exec(compile("1 / 0", f"{ground.outside_dir}/code.py", "exec"))
    except ZeroDivisionError:
        return traceback.format_exc() if ground.SECRET in traceback.format_exc() else None
    return sys.platform
