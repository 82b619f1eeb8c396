"""Serving engines and extractors: with their own packages, under their own declarations, for a call chain."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.runtime.engines.conftest import rule
from tests.runtime.installs.packages import source

ENGINE = """
import helper
from democrai_sandbox import sdk

@sdk.method("version")
def version():
    return helper.VERSION
"""


def two_versions(world):
    hosting = world.load(world.args[0])
    outcome = hosting["outcome"]

    async def story(runtime):
        import asyncio

        early = await outcome(runtime.engines.call("one", "version"))
        await asyncio.gather(
            runtime.engines.install("one"), runtime.engines.install("one"), runtime.extractors.install("two")
        )
        calls = [runtime.engines.call("one", "version"), runtime.extractors.call("two", "version")]
        return {
            "early": early,
            "versions": await asyncio.gather(*calls),
            "states": [runtime.engines.status("one").state, runtime.extractors.status("two").state],
            "unknown": await outcome(runtime.engines.call("ome", "version")),
            "no method": await outcome(runtime.engines.call("one", "versions")),
            "other kind": await outcome(runtime.engines.call("two", "version")),
        }

    return hosting["serve"](world.base, story)


def test_two_of_them_have_two_versions_of_one_library(workshop):
    """Each has its own; the error of a missing installation names the fix; the same code serves both kinds."""
    workshop.wheel("helper", "1.0")
    workshop.wheel("helper", "2.0")
    workshop.extension("helper==1.0", name="one", code=ENGINE)
    workshop.extension("helper==2.0", name="two", kind="extractor", code=ENGINE)
    told = workshop.host(two_versions)
    assert told["early"]["error"] == "NotInstalled"
    assert "democrai-sandbox extensions install engine:one" in told["early"]["text"]
    assert told["versions"] == ["1.0", "2.0"]
    assert told["states"] == ["ready", "ready"]
    assert told["unknown"]["error"] == "ExtensionUnknown"
    assert "'one'" in told["unknown"]["text"]
    assert told["no method"]["error"] == "ExtensionUnknown"
    assert told["other kind"]["error"] == "ExtensionUnknown"


PHASES = """
import os, socket, subprocess, sys, urllib.request
from democrai_sandbox import sdk

def verdict(action):
    try:
        return str(action())
    except BaseException as error:
        return type(error).__name__

def fetch(url):
    with urllib.request.urlopen(url, timeout=3) as answer:
        return answer.status

@sdk.method("look")
def look(places):
    import evil, helper
    from helper_native import _heapq
    secret, runtime, install, read_in_install = places
    here = os.path.dirname(helper.__file__)
    return {
        "runtime's target": verdict(lambda: fetch(runtime)),
        "install's target": verdict(lambda: fetch(install)),
        "install's file": verdict(lambda: open(read_in_install).read()),
        "secret": verdict(lambda: open(secret).read()),
        "program": verdict(lambda: subprocess.run(["/bin/true"])),
        "fork": verdict(os.fork),
        "change a package": verdict(lambda: open(helper.__file__, "w")),
        "add a start file": verdict(lambda: open(here + "/x.pth", "w")),
        "current": verdict(lambda: os.listdir(here + "/../../../../..")),
        "native": verdict(lambda: _heapq.heappush([], 1)),
        "start file of a package": evil.VERDICT,
        "interpreter": [sys.prefix == here.rpartition("/lib/")[0], os.path.realpath("/proc/self/exe")],
        "data": verdict(lambda: (sdk.data_dir() / "mine").write_text("x")),
        "variables": sorted(name for name in os.environ if name.startswith(("PIP_", "HOST_"))),
    }
"""
EVIL = """
def attempt():
    try:
        return open({secret!r}).read()
    except BaseException as error:
        return type(error).__name__
VERDICT = attempt()
"""
TAKE_OVER = """
import sys
python = sys.prefix + "/bin/python"
try:
    if os.path.islink(python):
        os.rename(python, python + ".real")
        with open(python, "w") as file:
            file.write("#!/bin/sh\\ncase \\"$*\\" in *bootstrap.py*|*runner.py*) touch {flag};; esac\\n")
            file.write("exec " + python + '.real "$@"\\n')
        os.chmod(python, 0o755)
except PermissionError:
    pass
"""


def phases(world):
    hosting = world.load(world.args[0])

    async def story(runtime):
        places, kind = world.args[1:]
        installed = getattr(runtime, f"{kind}s")
        await installed.install("demo")
        return await installed.call("demo", "look", {"places": places})

    return hosting["serve"](world.base, story)


@pytest.mark.parametrize("kind", ["engine", "extractor"])
def test_the_phases_do_not_leak_into_each_other(workshop, web, kind):
    """Rights of the install section do not apply while it serves, and no installed code runs before the guard."""
    installing = workshop.base / "installing.txt"
    installing.write_text("for the installation")
    flag = workshop.base / "wheels" / "flag"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    native = next(Path(sysconfig.get_config_var("DESTSHARED")).glob(f"_heapq{suffix}"), None)
    if native is None:
        pytest.skip("the interpreter has no native module to copy")
    workshop.wheel(
        "helper",
        extra={
            "evil.py": EVIL.format(secret=str(workshop.secret)),
            "a_evil.pth": "import evil\n",
            "helper_native/__init__.py": "",
            f"helper_native/_heapq{suffix}": native.read_bytes(),
        },
    )
    folder = workshop.extension(
        "helper",
        "./tiny",
        kind=kind,
        code=PHASES,
        access=[rule("receive", web.url), rule("read", installing), rule("create", flag)],
        runtime={"access": [rule("receive", web.other_url)]},
    )
    source(folder / "tiny", "tiny", before=TAKE_OVER.format(flag=flag))
    places = [str(workshop.secret), web.other_url, web.url, str(installing)]
    found = workshop.host(phases, places, kind, HOST_TOKEN="secret")
    interpreter = found.pop("interpreter")
    assert found == {
        "runtime's target": "200",
        "install's target": "NetworkDenied",
        "install's file": "FilesystemDenied",
        "secret": "FilesystemDenied",
        "program": "SubprocessDenied",
        "fork": "SubprocessDenied",
        "change a package": "FilesystemDenied",
        "add a start file": "FilesystemDenied",
        "current": "FilesystemDenied",
        "native": "None",
        "start file of a package": "FilesystemDenied",
        "data": "1",
        "variables": [],
    }
    # The installation cannot replace the environment's interpreter, which is never started either.
    environment = next((workshop.base / f"data/installs/{kind}s/demo/environments").iterdir())
    assert (environment / "bin" / "python").is_symlink()
    assert interpreter[0] is True
    assert not interpreter[1].startswith(str(workshop.base))
    assert not flag.exists()
