"""What a confined worker gets from the host: limits, a temp folder, and declared folders that did not exist."""

from __future__ import annotations

import os

import pytest

from tests.guard.harness import Case

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
WORKER = {"isolation": {"default": "process"}}
MODULE = """
import os, tempfile, time
from democrai_sandbox import sdk

@sdk.action("temp")
def temp():
    with open(os.path.join(tempfile.gettempdir(), "kept"), "a") as file:
        file.write("x")
    return [tempfile.gettempdir(), os.listdir(tempfile.gettempdir()), os.getpid()]

@sdk.action("fill")
def fill(names, size):
    for name in names:
        place = os.path.join(tempfile.gettempdir(), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(bytes(size))
    time.sleep(60)

@sdk.action("opens")
def opens(path):
    os.close(os.open(path, os.O_RDONLY))

@sdk.action("write")
def write(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("x")

@sdk.action("eat")
def eat():
    return len(bytearray(200 << 20))

@sdk.action("grow")
def grow():
    with open(sdk.data_dir() / "large", "wb") as file:
        file.truncate(3 << 20)

@sdk.action("hoard")
def hoard():
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in held:
            os.close(descriptor)

@sdk.action("program")
async def program(path):
    return (await sdk.tasks.run_subprocess(["/bin/cat", path])).stdout.decode()
"""


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def temps(world):
    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    for name in ("one", "two"):
        house.extension(name, MODULE)

    async def story():
        import asyncio

        folder, found, pid = await lab.action("one", "temp")
        other = await lab.action("two", "temp")
        inside = os.path.isdir(folder)
        denied = await lab.action("two", "opens", path=f"{folder}/kept")
        programs = [await lab.action(name, "program", path=f"{folder}/kept") for name in ("one", "two")]
        os.kill(pid, 9)
        while os.path.exists(folder):
            await asyncio.sleep(0.01)
        again = await lab.action("one", "temp")
        return {
            "found": found,
            "separate": folder != other[0],
            "inside": inside,
            "programs": programs,
            "denied": denied[0],
            "again": again[:2] == [folder, ["kept"]],
            "below": folder.startswith(f"{house.base}/data/"),
            "mode": oct(os.stat(folder).st_mode & 0o777),
        }

    return lab.serve(story, **WORKER)


def test_each_worker_has_a_temp_folder_of_its_own(case):
    """Other subjects cannot read it, and it is removed when the process ends."""
    assert case.run(temps) == {
        "found": ["kept"],
        "separate": True,
        "inside": True,
        "programs": ["x", ""],
        "denied": "FilesystemDenied",
        "again": True,
        "below": True,
        "mode": "0o700",
    }


def left_over(world):
    import fcntl

    lab = world.load(LAB)["Lab"](world)
    lab.house.extension("one", MODULE)
    around = f"{lab.house.base}/data/temp"
    for name in ("killed", "running"):
        os.makedirs(f"{around}/{name}/module-one")
    lock = os.open(f"{around}/running", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    async def story():
        folder, *_ = await lab.action("one", "temp")
        return sorted(set(os.listdir(around)) - {os.path.basename(os.path.dirname(folder))})

    return lab.serve(story, **WORKER)


def test_temp_folders_of_killed_hosts_are_removed(case):
    """Those of another running host stay."""
    assert case.run(left_over) == ["running"]


def folders(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    os.makedirs(f"{world.base}/shared")
    out, plain = f"{world.base}/shared/out", f"{world.base}/shared/plain"
    link, lost = f"{world.base}/link", f"{world.base}/missing/deep"
    os.symlink(house.state, link)
    rules = [
        entry(operation, target)
        for target in (f"{out}/", plain, f"{lost}/", f"{link}/new/")
        for operation in ("create", "modify", "read")
    ]
    house.extension("demo", MODULE, access=rules)

    async def story():
        written = await lab.action("demo", "write", path=f"{out}/a.txt")
        return {
            "written": written,
            "exists": os.path.isfile(f"{out}/a.txt"),
            "without a slash": os.path.exists(plain),
            "without a parent": os.path.exists(lost),
            "below a protected folder": os.path.exists(f"{house.state}/new"),
        }

    return lab.serve(story, **WORKER)


def test_a_declared_folder_that_is_missing_is_created(case):
    """Only with a slash at its end, in a folder that exists, and never in a protected one."""
    assert case.run(folders) == {
        "written": None,
        "exists": True,
        "without a slash": False,
        "without a parent": False,
        "below a protected folder": False,
    }


def limits(world):
    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    house.extension("demo", MODULE, limits={"memory_mb": 120, "file_size_mb": 2, "open_files": 60})
    house.extension("free", MODULE)

    async def story():
        told = {name: await lab.action("demo", name) for name in ("eat", "grow", "hoard")}
        alive = await lab.action("demo", "temp")
        return {
            "told": {name: [kind, text.split(":")[1:3]] for name, (kind, text) in told.items()},
            "alive": len(alive),
            "free": await lab.action("free", "eat"),
            "counted": sorted(f"{label} {limit} {n}" for (label, limit), n in house.runtime.limits_reached.items()),
        }

    return lab.serve(story, **WORKER)


def test_a_limit_of_a_worker_is_one_clear_error(case):
    """The error names the limit, the worker continues, and the host counts it."""
    told = case.run(limits)
    assert told["alive"] == 3
    assert told["free"] == 200 << 20
    assert [told["told"][name][0] for name in ("eat", "grow", "hoard")] == ["MemoryError", "OSError", "OSError"]
    assert told["counted"] == [f"module:demo {name} 1" for name in ("file_size_mb", "memory_mb", "open_files")]


def full(world):
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    house.extension("demo", MODULE, limits={"temp_mb": 2})
    house.extension("free", MODULE, limits={"temp_mb": 64})

    async def story():
        folder, _, first = await lab.action("demo", "temp")
        large = await lab.action("demo", "fill", names=["a/b/c", "a/d"], size=(1 << 20) + 1)
        while os.path.exists(folder):
            await asyncio.sleep(0.01)
        many = await lab.action("demo", "fill", names=[f"file{number}" for number in range(600)], size=0)
        _, found, last = await lab.action("demo", "temp")
        free, other = (
            await lab.action("free", "temp"),
            asyncio.ensure_future(lab.action("free", "fill", names=["a"], size=3 << 20)),
        )
        await asyncio.sleep(2.5)  # two measurements
        told = {
            "large": large[1].split(":")[1],
            "many": many[1].split(":")[1],
            "found": found,
            "another process": first != last,
            "free": [other.done(), len(free)],
            "counted": {f"{label} {limit}": count for (label, limit), count in house.runtime.limits_reached.items()},
        }
        other.cancel()
        return told

    return lab.serve(story, **WORKER)


def test_worker_that_fills_its_temp_folder_is_stopped(case):
    """By size or by number of files; the next call has an empty folder, and other workers continue."""
    told = case.run(full)
    assert "temp_mb" in told.pop("large")
    assert "temp_mb" in told.pop("many")
    assert told == {
        "found": ["kept"],
        "another process": True,
        "free": [False, 3],
        "counted": {"module:demo temp_mb": 2},
    }
