"""A served node for commands: a module that makes requests, the token of an administrator, and short helpers.

def test_something(asked):
    request = asked.wants("https://mine.example.org/today")     # of module wishes, on behalf of uma
    done = asked.says("requests", "show", request)              # in this process, without a terminal
"""

from __future__ import annotations

import json

import pytest

from tests.cli.goldens import in_terminal, piped, terminal, within
from tests.console.serving import Served

WISHES = """
from democrai_sandbox import sdk

@sdk.action("want")
def want(target):
    return sdk.access.require_external_access(
        resource_type="network",
        operation="receive",
        target=target,
        resume_action="go_on",
        resume_context={"target": target},
    ).request_id

@sdk.action("go_on")
def go_on(target):
    pass  # does not use what was approved: the tests know then when it was used last
"""


class Asked:
    """A served node, and commands that ask it as its administrator."""

    def __init__(self, served):
        self.served = served
        self.admin = served.administrator()
        self.environ = {
            "DEMOCRAI_CONFIG_FILE": str(served.file),
            "DEMOCRAI_TOKEN": served.token(self.admin),
        }
        self._uma = served.bearer(served.person("uma"))

    def wants(self, target):
        """Let the module make an undecided request; return its id."""
        answer = self._uma.post("/api/v1/modules/wishes/actions/want", json={"params": {"target": target}})
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def says(self, *arguments, **environ):
        """Run a command in this process."""
        return within(arguments, self.environ | environ)

    def data(self, *arguments):
        """Run a command that succeeds, and return its data."""
        done = self.says(*arguments, "--json")
        assert (done.status, done.err) == (0, "")
        return json.loads(done.out)

    def piped(self, *arguments, **environ):
        """Run a command in a separate process."""
        return piped(arguments, self.environ | environ)

    def terminal(self, *arguments, columns=100, typed="", **environ):
        """Run a command in a terminal, and type the answer to its question."""
        return terminal(arguments, self.environ | environ, columns, typed)

    def in_terminal(self, *arguments):
        """Run a command in a terminal during the block."""
        return in_terminal(arguments, self.environ)

    def close(self):
        self._uma.close()
        self.served.stop()
        self.served.web.stop()


@pytest.fixture(scope="session")
def asked(tmp_path_factory):
    """One node for all tests of these commands. Decisions remain, so each test requests a different target."""
    folder = tmp_path_factory.mktemp("asked")
    place = folder / "more" / "wishes"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text('{"name": "wishes"}')
    (place / "module.py").write_text(WISHES)
    found = Asked(Served(folder, {"modules_path": str(folder / "more")}, extensions=False))
    yield found
    found.close()
