"""The pages about modules, extensions, the SDK and tests, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.docs.examples import blocks, files, programs, run, write
from tests.docs.pages import REPOSITORY

HOUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "host_setup.py")
EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(HOUSE), "../../examples/extensions"))


@pytest.mark.parametrize("page", ["docs/modules.md", "docs/extensions.md"])
def test_the_program_prints_what_the_page_says(page, tmp_path):
    """Its files, at the given paths, and its host print the shown output."""
    ((example, expected),) = programs(page)
    assert run(example, tmp_path, files(page)) == expected


def sdk_story(world):
    use = SimpleNamespace(**world.load(HOUSE))
    house = use.House(world)
    house.extension("everything", world.args[0])
    house.example("extractor", "plaintext", EXAMPLES)
    letter = house.file("letter.txt")

    async def story():
        async def act(action, **params):
            return await use.told(house.runtime.modules.action("everything", action, params, use.caller()))

        await house.runtime.extractors.install("plaintext")
        out = {"problems": house.problems(), "visit": await act("visit"), "open": await act("open", path=letter)}
        house.admin("approve_permanently", out["open"]["waits for"])
        out["open"] = await act("open", path=letter)
        out["at once"] = await act("open at once", path="/etc/passwd")
        started = await act("begin", words="one two three")
        await house.ended(started)
        out["how far"] = await act("how far", task_id=started)
        out["numbers"] = await act("numbers")
        out["listing"] = await act("listing")
        out["paragraphs"] = await act("paragraphs", data=b"one\n\ntwo")
        out["frequent"] = await act("frequent", text="one")
        out["headline"] = await act("headline", text="a long story")
        out["shorten"] = await act("shorten", text="a long story")
        out["add"] = await act("add", a=2, b=3)
        out["picture"] = await act("picture", url=f"{house.web.url}/picture")
        return out

    return house.serve(story, isolation={"module:everything": world.args[1]})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_the_examples_of_the_sdk_are_a_module_that_works(mcp_case, isolation):
    """The Python code on the page is a module whose functions work as described, in any process."""
    told = mcp_case.run(sdk_story, "\n".join(blocks("docs/sdk.md", "python")), isolation)
    assert told["problems"] == {}
    assert told["visit"] == {"by": "uma", "files": ["manifest.json"]}
    assert told["open"] == "found"
    assert '"target": "/etc/passwd"' in told["at once"]["add to the manifest"]
    assert told["how far"] == {"state": "done", "result": 3}
    assert told["numbers"] == [1, 2, 3]
    assert told["listing"] == 2
    assert told["paragraphs"] == {"paragraphs": ["one", "two"]}
    assert told["frequent"] == "ExtensionUnknown"
    assert told["headline"] == "A LONG STO"
    assert told["shorten"] == "a lo"
    assert "calculator" in told["add"]
    assert told["picture"]["locked"].endswith("/picture")


NAMES = """
from democrai_sandbox import sdk
from types import ModuleType
for name in sdk.__all__:
    part = getattr(sdk, name)
    if not isinstance(part, ModuleType):
        print(f"sdk.{name}")
        continue
    own = [each for each, value in vars(part).items() if getattr(value, "__module__", "") == part.__name__]
    constants = [each for each in vars(part) if each.startswith("EXTERNAL_")]
    for each in getattr(part, "__all__", [*own, *constants]):
        if each[0] != "_" and len(each) > 1:
            print(f"sdk.{name}.{each}")
"""


def test_every_name_of_the_sdk_is_on_its_page():
    """Every function that extension code can call is listed."""
    listed = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True).stdout.split()
    page = (REPOSITORY / "docs" / "sdk.md").read_text()
    assert len(listed) > 50
    assert [name for name in listed if name not in page] == []


def test_the_tests_on_the_pages_pass(tmp_path):
    """They pass unchanged, also with warnings as errors."""
    for page in ("docs/testing.md", "docs/extractors.md"):
        write(files(page), tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--timeout", "50"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert "9 passed" in done.stdout, done.stdout[-3000:]
    assert done.returncode == 0
