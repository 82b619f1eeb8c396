"""The examples in the README and the documents, run as a reader would run them."""

from __future__ import annotations

import itertools
import re

import pytest

from democrai_sandbox.kernel.helper.install_files import polkit_rule
from tests.docs.examples import blocks as examples_of
from tests.docs.examples import examples, run
from tests.services.redis import RedisServer


def test_the_guard_alone_does_what_the_concepts_say(tmp_path):
    """The example runs as it stands, prints the lines shown below it, and then a hint with the missing entry."""
    ((example, expected),) = examples("docs/concepts.md")
    printed = run(example, tmp_path, fresh=True)
    assert printed.startswith(expected)
    hint = printed.removeprefix(expected)
    assert '"operation": "read", "target": "/etc/passwd"' in hint
    assert (tmp_path / "home" / "notes" / "today.txt").read_text() == "water the plants"


def test_the_rule_for_polkit_is_what_the_helper_prints():
    """docs/os-enforcement.md: with the user and the paths that it names."""
    shown = examples_of("docs/os-enforcement.md", "js")[0]
    front = re.search(r"indexOf\(\"(.*) \"\)", shown).group(1)
    assert shown in polkit_rule("democrai", front.split(" "))


@pytest.mark.parametrize(("example", "expected"), examples("docs/network.md"), ids=itertools.count(1))
def test_network_examples_print_what_the_page_says(example, expected, tmp_path):
    """Each example runs as it stands and prints what is shown below it, but for the port of the stand-in server."""
    printed = run(example, tmp_path)
    assert re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8731", printed) == expected


@pytest.mark.parametrize(("example", "expected"), examples("docs/approvals.md"), ids=itertools.count(1))
def test_examples_of_approvals_print_what_the_page_says(example, expected, tmp_path):
    """Each example runs as it stands and prints what is shown below it."""
    assert run(example, tmp_path) == expected


@pytest.fixture
def servers(tmp_path, postgres):
    """What stands in the place of the servers that the page names."""
    redis = RedisServer(tmp_path).start()
    yield {
        "postgresql://access@db.example.com/access": postgres.new_database(),
        "redis://events.example.com:6379/0": redis.url,
    }
    redis.stop()


@pytest.mark.parametrize(("example", "expected"), examples("docs/access-service.md"), ids=itertools.count(1))
def test_examples_of_the_access_service_print_what_the_page_says(example, expected, tmp_path, request):
    """Each example runs as it stands and prints what is shown below it, with servers of this machine."""
    if ".example.com:" in example:
        for named, real in request.getfixturevalue("servers").items():
            assert named in example
            example = example.replace(named, real)
    assert run(example, tmp_path) == expected
