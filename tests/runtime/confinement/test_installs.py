"""Installations under the kernel layer: they work, and code that a package runs during its build is confined."""

from __future__ import annotations

import os

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
PACKAGES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "installs", "packages.py")

ENGINE = """
from democrai_sandbox import sdk
import tiny

@sdk.method("said")
def said(): return tiny.SAID
"""

# A shell is not Python: the guard of the installation is not active in it.
BUILD = """
import subprocess
script = "cat SECRET || echo shut; echo; echo x >> SECRET || echo shut; echo x > own && cat own; ulimit -n; cat KEYS"
done = subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
with open("tiny.py", "w") as file:
    file.write("SAID = " + repr(done.stdout.split()))
"""

INSTALLING = os.path.join(os.path.dirname(PACKAGES), "hosting.py")


def installs(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, told = lab.house, parts["told"]
    secret = house.file("secret/file", "SECRET")
    install = {"requirements": ["./tiny"], "limits": {"open_files": 333, "wall_seconds": 90}}
    folder = house.extension("demo", ENGINE, kind="engine", install=install)
    before = BUILD.replace("SECRET", secret).replace("KEYS", f"{house.state}/keys")
    world.load(PACKAGES)["source"](os.path.join(folder, "tiny"), "tiny", before=before)

    async def story():
        installed = await told(house.runtime.engines.install("demo"))
        if isinstance(installed, list):
            return [*installed, house.runtime.engines.status("demo").problem]
        said = await told(house.runtime.engines.call("demo", "said"))
        left = [name for name in os.listdir(os.path.dirname(installed.folder)) if name.endswith(".work")]
        return [said, list(installed.packages), left, list(house.runtime.confinement.unenforced)]

    return lab.serve(story)


def test_a_package_is_built_and_installed_and_reaches_no_more_than_the_installation_may(equipped_case):
    """The build starts a shell, in which no guard is active."""
    network = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    said, packages, left, subjects = equipped_case.run(installs, **network)
    assert said == ["shut", "shut", "x", "333"]
    assert subjects == ["engine:demo"]
    assert packages == ["tiny==1.0"]
    assert left == []


def too_slow(world):
    world.load(INSTALLING)["know_pip"]()
    lab = (parts := world.load(LAB))["Lab"](world)
    house = lab.house
    install = {"requirements": ["./tiny"], "limits": {"wall_seconds": 3}}
    folder = house.extension("demo", ENGINE, kind="engine", install=install)
    world.load(PACKAGES)["source"](os.path.join(folder, "tiny"), "tiny", before="import time; time.sleep(60)")

    async def story():
        return await parts["told"](house.runtime.engines.install("demo"))

    return lab.serve(story)


def test_an_installation_takes_no_longer_than_its_limit(equipped_case):
    """And no process of it remains: the call returns."""
    failed = equipped_case.run(too_slow, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    assert failed[0] == "InstallFailed"
    assert "3 seconds" in failed[1]
