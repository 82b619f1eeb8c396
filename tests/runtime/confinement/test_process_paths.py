"""Paths that a process may open: no protected paths, and no path in which a subject could place a link."""

from __future__ import annotations

import os


def shut_out(world):
    from democrai_sandbox.policy import rules_for_paths
    from democrai_sandbox.runtime.confinement.process_paths import ProtectedPaths

    base = os.path.realpath(world.base) + "/tree"
    for name in ("data/modules/own/deep", "data/modules/other", "work/a", "work/b", "state"):
        os.makedirs(f"{base}/{name}")
    os.symlink(f"{base}/data", f"{base}/work/link")
    os.symlink(f"{base}/work", f"{base}/alias")
    shut = ProtectedPaths([f"{base}/data", f"{base}/state/../state"], own=[f"{base}/data/modules/own"])

    def left(*roots):
        return sorted(path.removeprefix(base) for path in shut.paths([base + root for root in roots]))

    rules = shut.rules(rules_for_paths([base, f"{base}/data/modules/other", f"{base}/data/modules/own/deep"]))
    return {
        "beside": left(""),
        "untouched": left("/work", "/work/a"),
        "inside": left("/data", "/data/modules/other", "/state"),
        "by a link": left("/work/link", "/alias"),
        "own": left("/data/modules/own", "/data/modules/own/deep"),
        "missing": left("/nothing"),
        "rules": sorted({rule.normalized_target.removeprefix(base) for rule in rules}),
    }


def test_what_is_protected_stays_shut_also_below_an_open_folder(case):
    """The folder is replaced by its other entries; links in it are omitted, and the subject's own folder stays."""
    assert case.run(shut_out) == {
        "beside": ["/work"],
        "untouched": ["/work", "/work/a"],
        "inside": [],
        "by a link": ["/work"],
        "own": ["/data/modules/own", "/data/modules/own/deep"],
        "missing": ["/nothing"],
        "rules": ["/data/modules/own/deep", "/work"],
    }


def steady(world):
    from democrai_sandbox.policy import AccessRule, Operation, ResourceType
    from democrai_sandbox.runtime.confinement.process_paths import ProtectedPaths, written_places

    base = os.path.realpath(world.base)
    for name in ("own/real", "own/elsewhere", "secret/deep", "read", "given/real"):
        os.makedirs(f"{base}/{name}")
    os.symlink(f"{base}/secret", f"{base}/own/link")
    os.symlink(f"{base}/secret", f"{base}/given/below")
    os.symlink(f"{base}/own", f"{base}/alias")
    os.symlink(f"{base}/read", f"{base}/other")

    def rule(operation, path):
        return AccessRule(ResourceType.FILESYSTEM, Operation(operation), f"{base}/{path}", f"{base}/{path}")

    rules = [
        rule("read", "read"),
        rule("create", "own"),
        rule("read", "own/link"),
        rule("modify", "own/real"),
        rule("execute", "own/link"),
        rule("execute", "own/real"),
        rule("read", "given/below"),
        rule("read", "given/real"),
        rule("read", "alias/link/deep"),
        rule("read", "alias/real"),
        rule("execute", "other"),
        AccessRule(ResourceType.NETWORK, Operation.CONNECT, "a.example", "a.example"),
    ]
    kept = ProtectedPaths((), written=written_places(rules, f"{base}/given")).rules(rules)
    return [f"{one.operation} {one.normalized_target.removeprefix(base + '/')}" for one in kept]


def test_a_link_below_what_the_subject_writes_opens_nothing(case):
    """For every path of the rule. Links of the host are followed, once."""
    assert case.run(steady) == [
        *("read read", "create own", "modify own/real", "execute own/real", "read given/real", "read own/real"),
        *("execute read", "connect a.example"),
    ]


def host_of_protected(world):
    from democrai_sandbox.runtime.confinement.process_paths import runtime_paths

    found = runtime_paths()
    return [
        "/usr" in found.execute,
        "/etc" in found.read,
        "/proc" in found.read,
        found.temp == world.tmp,
        world.tmp in found.read,
    ]


def test_the_paths_of_the_system_are_those_of_the_guard(case):
    """Never the whole of /etc or /proc, and the temp folder is not read-only."""
    assert case.run(host_of_protected) == [True, False, False, True, False]


def test_of_a_folder_on_the_path_only_modules_and_packages_are_opened(tmp_path):
    from democrai_sandbox.runtime.confinement.process_paths import importable_places

    for name in (".env", "settings.toml", "single.py", "shop/__init__.py", "shop/data.json", "space/part/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".git").mkdir()
    places = [os.path.relpath(place, tmp_path) for place in importable_places(str(tmp_path))]
    assert places == ["shop", "single.py", "space/part"]


def test_names_in_a_folder_are_listed_without_its_files_being_read():
    from democrai_sandbox.kernel.landlock.rights import FsRight
    from democrai_sandbox.kernel.spawn.confinement import ChildConfinement, plan

    ruleset = plan(ChildConfinement(paths_listed=("/srv",), bind_ports=()), 7)
    assert dict(ruleset.paths) == {"/srv": int(FsRight.READ_DIR)}


def around_code(world):
    from democrai_sandbox.policy import rules_for_paths
    from democrai_sandbox.runtime.confinement.process_paths import ProtectedPaths

    base = f"{world.base}/code"
    for name in ("env/lib/pkg/cache", "env/bin", "out", "other"):
        os.makedirs(f"{base}/{name}")
    shut = ProtectedPaths((), own=[f"{base}/env"], read_only=[f"{base}/env", f"{base}/env/lib"])

    def left(root, *, writing):
        return sorted(path.removeprefix(base) for path in shut.paths([base + root], writing=writing))

    rules = shut.rules(rules_for_paths([base]))
    return {
        "read": left("", writing=False),
        "written": left("", writing=True),
        "itself": left("/env", writing=True),
        "around its packages": left("/env/lib", writing=True),
        "inside": left("/env/lib/pkg/cache", writing=True),
        "beside": left("/out", writing=True),
        "split": [path.removeprefix(base) for path in shut.split],
        "rules": sorted({f"{rule.operation} {rule.normalized_target.removeprefix(base)}" for rule in rules}),
    }


def test_code_of_the_host_is_opened_for_reading_alone(case):
    """A written folder around it is replaced by its other entries; a path inside that a rule names is writable."""
    found = case.run(around_code)
    assert found["rules"] == sorted(
        ["read ", *(f"{act} /{name}" for act in ("create", "modify", "delete") for name in ("out", "other"))]
    )
    del found["rules"]
    assert found == {
        "read": [""],
        "written": ["/other", "/out"],
        "itself": [],
        "around its packages": [],
        "inside": ["/env/lib/pkg/cache"],
        "beside": ["/out"],
        "split": [""],
    }
