"""Rules for files and folders, enforced by the kernel."""

from __future__ import annotations

import os

import pytest

from tests.kernel.landlock.harness import NOBODY

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def inside_and_outside(w):
    import os

    status = w.confine()
    return {
        "state": status.state,
        "read": w.tried(open, w.read / "file.txt"),
        "write to read-only": w.tried(open, w.read / "file.txt", "a"),
        "create in read-only": w.tried(open, w.read / "new", "x"),
        "write": w.tried(open, w.inside / "file.txt", "w"),
        "create": w.tried(open, w.inside / "new", "x"),
        "folder": w.tried(os.mkdir, w.inside / "folder"),
        "link": w.tried(os.symlink, "/etc", w.inside / "link"),
        "fifo": w.tried(os.mkfifo, w.inside / "fifo"),
        "move": w.tried(os.rename, w.inside / "new", w.inside / "folder/new"),
        "truncate": w.tried(os.truncate, w.inside / "file.txt", 0),
        "remove": w.tried(os.unlink, w.inside / "folder/new"),
        "remove folder": w.tried(os.rmdir, w.inside / "folder"),
        "outside": w.tried(open, w.secret),
        "through a link": w.tried(open, w.inside / "link/hostname"),
        "up and out": w.tried(open, f"{w.inside}/../outside/secret.txt"),
        "move out": w.tried(os.rename, w.inside / "file.txt", w.outside / "file.txt"),
        "link in": w.tried(os.link, w.secret, w.inside / "hard"),
        "move in": w.tried(os.rename, w.secret, w.inside / "stolen"),
        "execute": w.executed(w.outside / "program"),
        "no_new_privs": w.native.no_new_privs(),
    }


WORKS = (
    *("read", "write", "create", "folder", "link", "fifo", "move", "truncate", "remove", "remove folder"),
    "no_new_privs",
)


@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=as_root)])
def test_lists_hold_for_root_and_for_an_ordinary_user(ground, user):
    """Access inside works, access outside is refused; also without privileges, because no_new_privs is set first."""
    answer = ground.run(inside_and_outside, user=user)
    assert answer.pop("state") == "active"
    assert {name for name, outcome in answer.items() if outcome in {"ok", True}} == set(WORKS)
    refused = {outcome for name, outcome in answer.items() if name not in WORKS}
    assert refused <= {"EACCES", "EXDEV"}


def rules_on_files(w):
    import os

    everything = w.FsRight((1 << 16) - 1)
    status = w.confine((w.secret, everything), ("/dev/null", everything))
    return {
        "state": status.state,
        "missing": status.details["missing"],
        "read": w.tried(open, w.secret),
        "write": w.tried(open, w.secret, "w"),
        "truncate": w.tried(os.truncate, w.secret, 0),
        "device": w.tried(open, "/dev/null", "w"),
        "neighbour": w.tried(open, w.outside / "program"),
        "remove": w.tried(os.unlink, w.secret),
        "replace": w.tried(os.rename, w.inside / "file.txt", w.secret),
    }


def test_rights_are_masked_by_what_the_path_is(ground):
    """A rule on a file with rights of folders is reduced to the rights of a file."""
    answer = ground.run(rules_on_files)
    assert answer["state"] == "active"
    assert answer["missing"] == []
    assert [answer[name] for name in ("read", "write", "truncate", "device")] == ["ok"] * 4
    assert answer["neighbour"] == answer["remove"] == "EACCES"
    assert answer["replace"] in {"EACCES", "EXDEV"}


def missing_paths(w):
    import os

    pipe, _ = os.pipe()
    absent = w.base / "absent"
    (w.base / "loop").symlink_to(w.base / "loop")
    names = [absent, w.secret / "below a file", w.base / "loop", f"/proc/self/fd/{pipe}", w.base / ("n" * 300)]
    status = w.confine(*((name, w.WRITE) for name in names))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return {
        "state": status.state,
        "named": [str(name) for name in names],
        "missing": status.details["missing"],
        "made": w.tried(os.mkdir, absent),
        "inside": w.tried(open, w.inside / "file.txt"),
    }


def test_a_path_that_is_not_there_is_reported_and_not_an_error(ground):
    """The rest of the lists is in force; the status names each missing path."""
    answer = ground.run(missing_paths)
    assert answer["state"] == "active"
    assert answer["missing"] == answer["named"]
    assert answer["made"] == "EACCES"
    assert answer["inside"] == "ok"


def made_later(w, absent):
    import time
    from pathlib import Path

    w.confine((absent, w.WRITE))
    (w.inside / "ready").touch()
    for _ in range(2000):
        if (w.inside / "go").exists():  # stat is not restricted
            break
        time.sleep(0.01)
    return {"there": Path(absent).exists(), "list": w.tried(lambda: __import__("os").listdir(absent))}


def test_what_is_made_at_a_missing_path_later_stays_out_of_reach(ground):
    """A rule applies to the file that existed when it was created."""
    import threading

    def make():
        for _ in range(2000):
            if (ground.base / "inside/ready").exists():
                break
            threading.Event().wait(0.01)
        (ground.base / "absent").mkdir()
        (ground.base / "inside/go").touch()

    maker = threading.Thread(target=make)
    maker.start()
    answer = ground.run(made_later, str(ground.base / "absent"))
    maker.join(60)
    assert answer == {"there": True, "list": "EACCES"}


def symlinked_root(w):
    (w.base / "way").symlink_to(w.inside)
    status = w.confine(write=w.base / "way")
    return {
        "missing": status.details["missing"],
        "through the link": w.tried(open, w.base / "way/file.txt", "a"),
        "directly": w.tried(open, w.inside / "file.txt", "a"),
        "outside": w.tried(open, w.secret),
    }


def test_a_path_that_leads_through_a_symlink_covers_its_target(ground):
    """The folder is reachable by both names, and nothing else is."""
    answer = ground.run(symlinked_root)
    assert answer == {"missing": [], "through the link": "ok", "directly": "ok", "outside": "EACCES"}


def renames(w):
    import os

    (w.base / "stricter").mkdir()
    (w.inside / "one/a").touch()
    (w.inside / "one/b").touch()
    reading = w.READ | w.FsRight.REMOVE_FILE | w.FsRight.MAKE_REG | w.FsRight.REFER
    w.confine((w.base / "stricter", reading))
    return {
        "within one folder": w.tried(os.rename, w.inside / "one/a", w.inside / "one/c"),
        "into another": w.tried(os.rename, w.inside / "one/c", w.inside / "two/c"),
        "link into another": w.tried(os.link, w.inside / "two/c", w.inside / "one/d"),
        "to fewer rights": w.tried(os.rename, w.inside / "one/b", w.base / "stricter/b"),
        "to more rights": w.tried(os.rename, w.base / "stricter/b", w.inside / "one/b"),
    }


def test_files_move_between_folders_but_never_to_more_rights(ground):
    """REFER permits renames and links that gain no rights."""
    assert ground.run(renames) == {
        "within one folder": "ok",
        "into another": "ok",
        "link into another": "ok",
        "to fewer rights": "ok",
        "to more rights": "EXDEV",
    }


def opened_before(w):
    import os

    handle = open(w.secret, "r+")
    folder = os.open(w.outside, os.O_RDONLY | os.O_DIRECTORY)
    w.confine(("/proc", w.READ))
    return {
        "read": handle.read(),
        "write": w.tried(os.write, handle.fileno(), b"!"),
        "shorten": w.tried(os.ftruncate, handle.fileno(), 0),
        "from the folder": w.tried(os.open, "program", os.O_RDONLY, dir_fd=folder),
        "again through /proc": w.tried(open, f"/proc/self/fd/{handle.fileno()}"),
    }


def test_descriptors_from_before_keep_working_but_open_nothing_new(ground):
    """Open files stay open; a folder's descriptor and /proc do not give access again."""
    assert ground.run(opened_before) == {
        "read": "SECRET",
        "write": "ok",
        "shorten": "ok",
        "from the folder": "EACCES",
        "again through /proc": "EACCES",
    }


def twice_the_same(w):
    from democrai_sandbox.kernel.landlock.ruleset import numbers

    rules = (w.PathRule(str(w.inside), w.READ), w.PathRule(str(w.inside), w.WRITE), w.PathRule(str(w.read), w.READ))
    plan = w.RulesetPlan(rules, scopes=False)
    listed = [path for path, _ in numbers(plan, 7).paths]
    with w.build(plan, 7) as built:
        covered = built.covered
    w.apply(plan)
    return listed, covered, w.tried(open, w.inside / "file.txt", "a")


def test_rules_on_one_path_are_merged(ground):
    """Both rules are combined."""
    listed, covered, wrote = ground.run(twice_the_same)
    assert listed == covered == [str(ground.base / "inside"), str(ground.base / "read")]
    assert wrote == "ok"


def device_ioctl(w):
    import fcntl

    def ioctl(device):
        with open(device, "rb") as handle:
            fcntl.ioctl(handle, 0x80045200, bytes(4))

    early = open("/dev/urandom", "rb")
    w.confine(("/dev/urandom", w.READ), ("/dev/random", w.READ | w.FsRight.IOCTL_DEV))
    return {
        "not granted": w.tried(ioctl, "/dev/urandom"),
        "granted": w.tried(ioctl, "/dev/random"),
        "opened before": w.tried(fcntl.ioctl, early, 0x80045200, bytes(4)),
        "read": w.tried(open, "/dev/urandom", "rb"),
    }


def test_device_ioctls_need_a_right_of_their_own(ground):
    """A readable device does not permit ioctls."""
    assert ground.run(device_ioctl) == {
        "not granted": "EACCES",
        "granted": "ok",
        "opened before": "ok",
        "read": "ok",
    }


def inherited(w):
    import os

    w.confine()
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(start, w.tried(open, w.secret).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return os.read(end, 100).decode()


def test_child_processes_are_under_the_same_rules(ground):
    """A fork stays restricted."""
    assert ground.run(inherited) == "EACCES"


def layers(w):
    outcomes = [w.tried(w.confine) for _ in range(17)]
    return outcomes, w.tried(open, w.inside / "file.txt"), w.tried(open, w.secret)


def test_a_seventeenth_layer_is_a_typed_error(ground):
    """The kernel allows sixteen layers; one more is refused with a fix, and the sixteen stay in force."""
    outcomes, inside, outside = ground.run(layers)
    assert outcomes[:16] == ["ok"] * 16
    kind, code, what, fix = outcomes[16]
    assert (kind, code) == ("KernelLayerError", "os_sandbox_failed")
    assert "16" in what and fix
    assert (inside, outside) == ("ok", "EACCES")


def wider_second_layer(w):
    w.confine()
    w.confine((w.base, w.WRITE))
    return w.tried(open, w.secret), w.tried(open, w.inside / "file.txt")


def test_a_second_layer_never_widens_the_first(ground):
    """A refused access stays refused, even if a later ruleset allows it."""
    assert ground.run(wider_second_layer) == ["EACCES", "ok"]
