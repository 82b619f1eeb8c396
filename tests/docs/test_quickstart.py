"""docs/quickstart.md and the first module of the README, followed to the letter by a reader with an empty folder."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.docs.console import Console, runnable
from tests.docs.examples import files, write
from tests.services.ports import port


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_quickstart_leads_to_an_approved_request(tmp_path):
    """docs/quickstart.md: its files and commands, in order, come to what it shows; and so do those of other pages."""
    write(files("docs/quickstart.md"), tmp_path)
    # Of another port the page says nothing, and of the clone only where its programs are.
    with port() as number, Console(tmp_path, DEMOCRAI_CONFIG__SERVER__PORT=str(number)) as console:
        for page in ("docs/quickstart.md", "docs/cli.md", "docs/troubleshooting.md"):
            for block in runnable(page):
                console.play(block)


def test_the_first_module_of_the_readme_does_what_it_says(tmp_path):
    """README.md: what is declared works, the rest is refused with an entry, and with that in the manifest it works."""
    given = files("README.md")
    assert sorted(given) == ["modules/hello/manifest.json", "modules/hello/module.py"]
    write(given, tmp_path)
    with Console(tmp_path) as console:
        for block in runnable("README.md"):
            console.play(block)
        (entry,) = re.findall(r"^  (\{.*\})$", runnable("README.md")[0], re.MULTILINE)
        manifest = tmp_path / "modules/hello/manifest.json"
        manifest.write_text(manifest.read_text().replace("\n  ]", f",\n    {entry}\n  ]"))
        console.play("$ democrai-sandbox run module modules/hello --action users\n...\ntrue\n")
