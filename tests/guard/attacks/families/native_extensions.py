"""Native code in extension modules, which load only from folders that no subject can write."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import SANDBOX, Ground, attack, attacks_of


def find_extension() -> str:
    """Any extension module of the interpreter that is not loaded yet."""
    import sysconfig

    folder = sysconfig.get_config_var("DESTSHARED")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("_statistics", "_crypt", "_xxtestfuzz", "_lsprof", "_queue", "_zoneinfo", "audioop"):
        if name not in sys.modules and os.path.exists(f"{folder}/{name}{suffix}"):
            return f"{folder}/{name}{suffix}"
    raise LookupError("no extension module to copy")


def copied_extension(folder: str) -> tuple[str, str]:
    import shutil

    source = find_extension()
    target = f"{folder}/{os.path.basename(source)}"
    shutil.copyfile(source, target)
    return os.path.basename(source).partition(".")[0], target


def load_extension(name: str, path: str) -> bool:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    return module_from_spec(spec) is not None


def create_dynamic(name: str, path: str) -> bool:
    import _imp
    from importlib.util import spec_from_file_location

    return _imp.create_dynamic(spec_from_file_location(name, path)) is not None


def create_dynamic_by_forged_spec(name: str, path: str) -> bool:
    """A spec whose origin changes while it is read."""
    import _imp

    class Origin(str):
        __slots__ = ()

    class Spec:
        loader = None
        calls = 0

        def __init__(self) -> None:
            self.name = name

        @property
        def origin(self) -> str:
            self.calls += 1
            return find_extension() if self.calls == 1 and path.startswith("!") else Origin(path.strip("!"))

    return _imp.create_dynamic(Spec()) is not None


def import_from_root(name: str, path: str) -> bool:
    sys.path.insert(0, os.path.dirname(path))
    module = __import__(name)
    return module.__file__ == path


LOADERS = {
    "loader": load_extension,
    "create_dynamic": create_dynamic,
    "forged_spec": create_dynamic_by_forged_spec,
    "import": import_from_root,
}
attacks_of(
    {name: lambda ground, load=load: load(*copied_extension(ground.inside)) for name, load in LOADERS.items()},
    "an extension module that the subject copied into its root is loaded: {}",
    expect=SANDBOX,
    group="extension_",
)
attacks_of(
    {
        "temp": lambda ground: load_extension(*copied_extension(os.environ["TMPDIR"])),
        "library_path_link": lambda ground: load_extension(
            copied_extension(ground.inside)[0], f"{ground.site}/../inside/{os.path.basename(find_extension())}"
        ),
        "memory_file": lambda ground: load_from_memory(),
        "outside": lambda ground: load_extension(*ground.held.extension),
    },
    "an extension module is loaded from a place that is no code root: {}",
    expect=SANDBOX,
    group="extension_",
    prepare=lambda ground: setattr(ground.held, "extension", copied_extension(ground.outside_dir)),
)


def load_from_memory() -> bool:
    source = find_extension()
    descriptor = os.memfd_create("extension")
    with open(source, "rb") as file:
        os.write(descriptor, file.read())
    return load_extension(os.path.basename(source).partition(".")[0], f"/proc/self/fd/{descriptor}")


@attack(
    "an extension module is loaded from a code root that the subject may write",
    expect=SANDBOX,
    early=lambda ground: (os.mkdir(f"{ground.base}/more"), sys.path.append(f"{ground.base}/more")),
    policy=lambda ground: {"allowed_paths": [f"{ground.base}/more"]},
)
def extension_in_writable_code_root(ground: Ground) -> bool:
    return load_extension(*copied_extension(f"{ground.base}/more"))


@attack(
    "a link in the root that the host made leads to a code root, and the module is swapped",
    expect=SANDBOX,
    early=lambda ground: (
        os.mkdir(f"{ground.base}/more"),
        sys.path.append(f"{ground.base}/more"),
        os.symlink(f"{ground.base}/more", f"{ground.inside}/code"),
    ),
    policy=lambda ground: {"allowed_paths": [ground.inside, f"{ground.inside}/code"]},
)
def extension_through_link(ground: Ground) -> bool:
    return load_extension(*copied_extension(f"{ground.inside}/code"))


@attack("the test module of the interpreter runs code in another interpreter", expect=SANDBOX, needs=("_testcapi",))
def test_module(ground: Ground) -> object:
    import _testcapi

    _testcapi.run_in_subinterp(f"open('{ground.inside}/loot.txt', 'w').write(open({ground.outside!r}).read())")
    return open(f"{ground.inside}/loot.txt").read()
