"""Paths that every guard may read and write without declaring them, and other paths."""

from __future__ import annotations

import os
import sys
import sysconfig


def guard_of(world, **more):
    from democrai_sandbox import process_guard_context

    more.setdefault("allowed_paths", [world.root])
    return process_guard_context(subject="demo", **more)


def readable(world):
    """Return the results of reading paths that should be readable."""
    import idna

    import democrai_sandbox

    places = {
        "interpreter": os.path.realpath(sys.executable),
        "standard library": os.__file__,
        "package": idna.__file__,
        "stdlib folder": sysconfig.get_path("stdlib"),
        "site-packages": sysconfig.get_path("purelib"),
        "this package": democrai_sandbox.__file__,
        "/usr": "/usr",
        "/usr/lib": "/usr/lib",
        "/dev/null": "/dev/null",
        "/dev/zero": "/dev/zero",
        "/dev/urandom": "/dev/urandom",
        "temp": world.tmp,
        **{
            path: path
            for path in (
                "/etc/ssl/certs",
                "/etc/ssl/openssl.cnf",
                "/etc/localtime",
                "/etc/hosts",
                "/etc/mime.types",
                "/etc/os-release",
                "/usr/share/zoneinfo",
                "/proc/cpuinfo",
                "/proc/meminfo",
                "/etc/resolv.conf",
                "/etc/nsswitch.conf",
                "/proc/self/stat",
                "/proc/self/status",
            )
        },
    }
    existing = {name: path for name, path in places.items() if os.path.exists(path)}
    return guard_of(world).run(lambda: {name: world.verdict(os.stat, path) for name, path in existing.items()})


def unreadable(world):
    """Return the results of reading paths that must not be readable, in both spellings if both exist."""
    me = os.getpid()
    held = os.open(world.secret, os.O_RDONLY)
    places = [
        "/etc/shadow",
        "/etc/passwd",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/ssl",
        "/etc/ssl/private",
        "/etc/ssl/private/host.key",
        "/etc/pki/tls/private/host.key",
        "/root",
        "/home",
        world.home,
        os.path.join(world.home, ".ssh"),
        "/",
        "/etc",
        "/proc",
        "/sys",
        "/run",
        "/var",
        "/var/log",
        "/boot",
        "/mnt",
        *(
            f"/proc/{who}/{name}"
            for who in ("self", "thread-self", me, 1)
            for name in (
                "mem",
                "environ",
                "maps",
                "fd",
                f"fd/{held}",
                "root",
                "root/etc/passwd",
                "cwd",
                "exe",
                "auxv",
                "syscall",
                "map_files",
                "pagemap",
                "fdinfo",
                "ns",
            )
            if not (name == "exe")
        ),
        f"/proc/self/task/{me}/mem",
        f"/proc/self/task/{me}/environ",
        f"/proc/self/task/{me}/fd/{held}",
        f"/dev/fd/{held}",
        "/dev/mem",
        "/dev/kmem",
        "/dev/kmsg",
        "/dev/sda",
        "/dev/shm/nothing",
        "/proc/kcore",
        "/proc/1/environ",
        "/proc/keys",
        world.secret,
    ]
    ask = {
        "stat": os.stat,
        "open": lambda path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)),
        "list": os.listdir,
    }
    guard = guard_of(world)
    return {
        f"{name} {path}": verdict
        for path in places
        for name, function in ask.items()
        if not (verdict := guard.run(world.verdict, function, path)).startswith(
            ("FilesystemDenied", "FilesystemFdDenied")
        )
    }


def writable(world):
    """Return what may be written without a rule: the temp directory and /dev/null.

    The acts on system paths would fail or change nothing without a guard, so that a failing guard does not damage the
    machine: files are opened for writing and closed, existing folders are created, and files are removed as folders.
    """

    def touch(path):
        os.close(os.open(path, os.O_WRONLY))

    def subject():
        stdlib, packages, temp = (
            os.path.dirname(os.__file__),
            sysconfig.get_path("purelib"),
            os.path.join(world.tmp, "t"),
        )
        return {
            "/dev/null": [world.verdict(write, "/dev/null"), world.verdict(touch, "/dev/null")],
            "temp": [world.verdict(write, temp), world.verdict(touch, temp), world.verdict(os.unlink, temp)],
            "/dev/zero": [world.verdict(touch, "/dev/zero")],
            "stdlib": [world.verdict(touch, os.__file__), world.verdict(os.mkdir, stdlib)],
            "package": [world.verdict(touch, sys.modules["democrai_sandbox"].__file__)],
            "site-packages": [world.verdict(os.mkdir, packages), world.verdict(os.rmdir, os.__file__)],
            "pycache": [world.verdict(os.mkdir, os.path.join(stdlib, "json"))],
            "/etc/hosts": [world.verdict(touch, "/etc/hosts"), world.verdict(os.rmdir, "/etc/hosts")],
            "/usr": [world.verdict(os.mkdir, "/usr/lib")],
            "delete /dev/null": [world.verdict(os.rmdir, "/dev/null")],
            "change /dev/null": [world.verdict(os.chown, "/dev/null", -1, -1)],
        }

    return guard_of(world).run(subject)


def library_folder(world):
    """Use a separate site-packages folder: readable by all subjects, writable by none."""
    import site

    site.PREFIXES.append(world.base)
    folder = site.getsitepackages()[-1]
    os.makedirs(folder)
    write(os.path.join(folder, "somelibrary.py"), "value = 1")
    sys.path.append(folder)

    def subject():
        import somelibrary

        return {
            "import": somelibrary.value,
            "read": world.can_read(somelibrary.__file__),
            "change": world.verdict(write, somelibrary.__file__, "value = 2"),
            "pth": world.verdict(write, os.path.join(folder, "new.pth"), "import os"),
            "pycache": world.verdict(os.mkdir, os.path.join(folder, "__pycache__")),
            "delete": world.verdict(os.unlink, somelibrary.__file__),
            "rename": world.verdict(os.rename, folder, folder + "2"),
        }

    seen = guard_of(world).run(subject)
    return seen, os.listdir(folder)


def without(world):
    """A guard without runtime paths and roots still imports; besides code it reads nothing."""

    def subject():
        import colorsys
        import xml.dom.minidom

        import idna.uts46data

        return {
            "import": [colorsys.__name__, xml.dom.minidom.__name__, idna.uts46data.__name__],
            "temp": world.verdict(os.listdir, world.tmp),
            "temp write": world.verdict(write, os.path.join(world.tmp, "x")),
            "/usr": world.verdict(os.listdir, "/usr"),
            "/dev/null": world.verdict(write, "/dev/null"),
            "/etc/hosts": world.verdict(read, "/etc/hosts"),
            "root": world.verdict(os.listdir, world.root),
        }

    return guard_of(world, allowed_paths=[], include_runtime_paths=False).run(subject)


def protected(world):
    """Protected paths are closed below an allowed root, existing or not, and do not move with their parents."""
    from democrai_sandbox import configure_guard

    os.makedirs(world.inside("app", "config"))
    write(world.inside("app", "config", "policy.json"), "{}")
    write(world.inside("app", "data"))
    write(world.inside("app.sock"))
    later = world.inside("later.db")
    configure_guard(protected_paths=[world.inside("app", "config"), world.inside("app.sock"), later])

    def subject():
        policy = world.inside("app", "config", "policy.json")
        os.symlink(world.inside("app", "data"), world.inside("fine"))
        return {
            "read": world.can_read(policy),
            "stat": world.verdict(os.stat, policy),
            "list": world.verdict(os.listdir, world.inside("app", "config")),
            "write": world.verdict(write, policy),
            "delete": world.verdict(os.unlink, policy),
            "new file": world.verdict(write, world.inside("app", "config", "new")),
            "file": world.can_read(world.inside("app.sock")),
            "appears later": world.verdict(write, later),
            "folder made later": world.verdict(os.mkdir, later),
            "moved with parent": world.verdict(os.rename, world.inside("app"), world.inside("moved")),
            "replaced": world.verdict(os.rename, world.inside("app", "data"), policy),
            "link to it": world.verdict(os.symlink, policy, world.inside("link")),
            "hard link": world.verdict(os.link, policy, world.inside("hard")),
            "beside": [world.can_read(world.inside("app", "data")), world.verdict(write, world.inside("app.sock2"))],
            "parent": world.verdict(os.listdir, world.inside("app")),
        }

    return guard_of(world).run(subject)


def later_root(world):
    """Use roots that do not exist yet, are links, or end in a slash."""
    os.symlink(world.out("real"), os.path.join(world.base, "alias"))
    os.mkdir(world.out("real"))
    os.mkdir(world.out("real2"))
    os.mkdir(world.out("x"))
    write(world.out("real", "f"))
    write(world.out("real2", "f"))
    seen = {}
    future = guard_of(world, allowed_paths=[world.out("future", "deep")])
    seen["future before"] = future.run(world.verdict, os.mkdir, world.out("future", "deep"))
    os.mkdir(world.out("future"))
    seen["future"] = future.run(
        lambda: [
            world.verdict(os.mkdir, world.out("future", "deep")),
            world.verdict(write, world.out("future", "deep", "x")),
            world.verdict(write, world.out("future", "y")),
        ]
    )
    alias = os.path.join(world.base, "alias")
    for name, root in {
        "link": alias,
        "real": world.out("real"),
        "slash": world.out("real") + "/",
        "dots": world.out("x", "..", "real"),
    }.items():
        guard = guard_of(world, allowed_paths=[root])
        seen[name] = guard.run(
            lambda: [
                world.can_read(os.path.join(alias, "f")),
                world.can_read(world.out("real", "f")),
                world.can_read(world.out("real2", "f")),
                world.verdict(os.listdir, root),
            ]
        )
    seen["file as root"] = guard_of(world, allowed_paths=[world.out("real", "f")]).run(
        lambda: [
            world.can_read(world.out("real", "f")),
            world.can_read(world.out("real", "g")),
            world.verdict(os.listdir, world.out("real")),
        ]
    )
    seen["everything"] = guard_of(world, allowed_paths=["/"]).run(world.can_read)
    seen["nothing"] = guard_of(world, allowed_paths=[]).run(world.can_read, world.inside("f"))
    return seen


class TestReading:
    def test_what_python_needs_is_readable(self, case):
        """The interpreter, libraries, time zones, certificates and a few system files."""
        seen = case.run(readable)
        assert {name: verdict for name, verdict in seen.items() if verdict != "ok"} == {}
        assert len(seen) > 12

    def test_what_belongs_to_others_is_not(self, case):
        """Accounts, homes, other processes, this process's memory, environment and descriptors, the system's roots."""
        assert case.run(unreadable) == {"stat /": "ok"}  # an ancestor of a root, whose existence is known

    def test_without_runtime_paths_imports_still_work(self, case):
        """include_runtime_paths=False leaves only code readable, and imports work."""
        seen = case.run(without)
        assert seen.pop("import") == ["colorsys", "xml.dom.minidom", "idna.uts46data"]
        assert seen.pop("/dev/null") == "ok"
        assert set(seen.values()) == {"FilesystemDenied"}, seen


class TestWriting:
    def test_only_temp_and_null_can_be_written(self, case):
        """Code, packages and system files cannot; /dev/null accepts all writes but cannot be removed or changed."""
        seen = case.run(writable)
        assert seen.pop("/dev/null") == ["ok"] * 2
        assert seen.pop("temp") == ["ok"] * 3
        assert {verdict for verdicts in seen.values() for verdict in verdicts} == {"FilesystemDenied"}, seen

    def test_library_folders_are_read_only(self, case):
        """A site-packages folder can be imported from and read, not changed: no .pth, no bytecode, no new name."""
        seen, left = case.run(library_folder)
        assert (seen.pop("import"), seen.pop("read")) == (1, "ok")
        assert set(seen.values()) == {"FilesystemDenied"}, seen
        assert left == ["somelibrary.py"]


class TestRoots:
    def test_protected_paths_are_closed_below_an_allowed_root(self, case):
        """They cannot be read, listed, changed, created, linked or moved with their parent; their siblings can."""
        seen = case.run(protected)
        assert seen.pop("beside") == ["ok", "ok"]
        assert seen.pop("parent") == "ok"
        assert {name for name, verdict in seen.items() if verdict != "FilesystemDenied"} == set()

    def test_roots_may_come_later_or_be_links(self, case):
        """A root is resolved, also if it appears later; a sibling with the same first letters does not match."""
        seen = case.run(later_root)
        assert seen["future before"] == "FileNotFoundError:ENOENT"
        assert seen["future"] == ["ok", "ok", "FilesystemDenied"]
        for name in ("link", "real", "slash"):
            assert seen[name] == ["ok", "ok", "FilesystemDenied", "ok"], name
        # The root is where the dots lead; resolving through an unreadable folder would reveal whether it exists.
        assert seen["dots"] == ["ok", "ok", "FilesystemDenied", "FilesystemDenied"]
        assert seen["file as root"] == ["ok", "FilesystemDenied", "FilesystemDenied"]
        assert seen["everything"] == "ok"
        assert seen["nothing"] == "FilesystemDenied"
