"""Files that configure the subject, written by the subject: code roots, hooks of the interpreter, bytecode."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def cache_file(ground: Ground) -> str:
    return f"{ground.site}/package/__pycache__/evil.pyc"


attacks_of(
    {
        "pth_file": lambda ground: open(f"{ground.site}/evil.pth", "w").write("import evil"),
        "sitecustomize": lambda ground: open(f"{ground.site}/sitecustomize.py", "w").write("pass"),
        "module_changed": lambda ground: open(f"{ground.site}/package/__init__.py", "a").write("VALUE = 2"),
        "module_replaced": lambda ground: os.replace(f"{ground.inside}/own.txt", f"{ground.site}/package/__init__.py"),
        "module_shadowed": lambda ground: os.mkdir(f"{ground.site}/json"),
        "module_removed": lambda ground: os.remove(f"{ground.site}/package/__init__.py"),
        "package_moved": lambda ground: os.rename(f"{ground.site}/package", f"{ground.inside}/package"),
        "metadata": lambda ground: os.mkdir(f"{ground.site}/evil.dist-info"),
        "module_linked": lambda ground: (
            os.link(f"{ground.site}/package/__init__.py", f"{ground.inside}/x")
            or open(f"{ground.inside}/x", "w").write("VALUE = 2")
        ),
        "module_chmod": lambda ground: os.chmod(f"{ground.site}/package/__init__.py", 0o777),
        "compiled": lambda ground: __import__("py_compile").compile(
            f"{ground.site}/package/__init__.py", cfile=f"{ground.site}/package/evil.pyc", doraise=True
        ),
    },
    "code that everybody imports is changed: {}",
    expect=FILES,
)


@attack(
    "the import system writes bytecode next to library code",
    expect=FILES.quietly,
    prepare=lambda ground: setattr(sys, "dont_write_bytecode", False),
    after=lambda ground: os.path.exists(f"{ground.site}/package/__pycache__") or None,
)
def bytecode_written(ground: Ground) -> None:
    import package

    del package


def guard_files() -> str:
    import democrai_sandbox

    return os.path.dirname(democrai_sandbox.__file__)


@attack("the guard's own code is opened for writing", expect=FILES)
def guard_opened(ground: Ground) -> bool:
    return os.open(f"{guard_files()}/__init__.py", os.O_WRONLY) > 0


def manifest_outside(ground: Ground) -> None:
    ground.write(f"{ground.vault}/manifest.json", '{"access": []}')


attacks_of(
    {
        "written": lambda ground: open(f"{ground.vault}/manifest.json", "w").write("{}"),
        "replaced": lambda ground: os.replace(f"{ground.inside}/own.txt", f"{ground.vault}/manifest.json"),
        "removed": lambda ground: os.remove(f"{ground.vault}/manifest.json"),
        "truncated": lambda ground: os.truncate(f"{ground.vault}/manifest.json", 0),
        "renamed": lambda ground: os.rename(f"{ground.vault}/manifest.json", f"{ground.vault}/old"),
        "added": lambda ground: open(f"{ground.vault}/override.json", "x").write("{}"),
        "read": lambda ground: "access" in open(f"{ground.vault}/manifest.json").read(),
        "listed": lambda ground: "manifest.json" in os.listdir(ground.vault),
        "stat": lambda ground: os.stat(f"{ground.vault}/manifest.json").st_size > 0,
        "linked": lambda ground: os.link(f"{ground.vault}/manifest.json", f"{ground.inside}/x") is None,
        "folder_moved": lambda ground: os.rename(ground.vault, f"{ground.inside}/moved") is None,
        "folder_above_removed": lambda ground: __import__("shutil").rmtree(f"{ground.inside}/holder") is None,
        "by_link": lambda ground: (
            os.symlink("holder/vault", f"{ground.inside}/x")
            or "access" in open(f"{ground.inside}/x/manifest.json").read()
        ),
    },
    "a manifest that the host protects below a root of the subject is touched: {}",
    expect=FILES,
    group="manifest_",
    prepare=manifest_outside,
)


@attack("the temp folder of the process is moved where the secret is", expect=FILES)
def temp_folder(ground: Ground) -> None:
    import tempfile

    os.environ["TMPDIR"] = tempfile.tempdir = ground.outside_dir
    tempfile.mkstemp()


@attack("the interpreter's own paths are changed to include the secret", expect=SANDBOX)
def interpreter_paths(ground: Ground) -> object:
    sys.path[:0] = [ground.outside_dir]
    sys.prefix = sys.exec_prefix = sys.base_prefix = ground.outside_dir
    sys.executable = ground.outside
    return open(ground.outside).read()


@attack("the guard is entered again after the paths of the interpreter were changed", expect=SANDBOX)
def interpreter_paths_again(ground: Ground) -> object:
    sys.path[:0] = [ground.outside_dir]
    os.environ["PYTHONPATH"] = os.environ["HOME"] = ground.outside_dir
    return ground.held.make(subject="again").run(lambda: open(ground.outside).read())


@attack(
    "the paths of the interpreter are changed so that the next guard of the host includes the secret",
    expect=SANDBOX,
    after=lambda ground: ground.held.make(subject="next").run(lambda: open(ground.outside).read()),
)
def paths_for_the_next_guard(ground: Ground) -> None:
    import tempfile

    sys.path[:0] = [ground.outside_dir]
    tempfile.tempdir = ground.outside_dir
    os.environ["TMPDIR"] = os.environ["HOME"] = ground.outside_dir
    sys.prefix = sys.exec_prefix = sys.base_prefix = ground.outside_dir
