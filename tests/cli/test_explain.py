"""``democrai-sandbox explain``: lines, codes and accesses, with and without a node."""

from __future__ import annotations

import json

import pytest

from tests.cli.goldens import code_of, golden, piped, transcript, within
from tests.services.rows import rows

LINE = "sandbox_filesystem_denied:reports:/etc/passwd"
ASKED = ("explain", "--subject", "module:wishes", "--operation", "receive", "--target")
NOWHERE = {"DEMOCRAI_URL": "http://127.0.0.1:9", "DEMOCRAI_TOKEN": "dsb_x"}


@pytest.fixture
def manifest(tmp_path):
    """A manifest that is not loaded."""
    file = tmp_path / "manifest.json"
    access = [{"resource_type": "filesystem", "operation": "read", "target": "/srv/reports"}]
    file.write_text(json.dumps({"name": "reports", "access": access}))
    return file


def test_a_line_is_explained_by_the_node(asked):
    """The node resolves the subject and explains each possible operation of the line."""
    found = asked.says("explain", "sandbox_filesystem_denied:wishes:/etc/passwd")
    assert found.status == 0
    golden("explain-line.piped", found.out, folder=asked.served.folder)
    told = asked.data("explain", "sandbox_filesystem_denied:wishes:/etc/passwd")
    assert (told["schema"], told["code"]) == ("democrai-sandbox/explain.line/1", "sandbox_filesystem_denied")
    assert {one["subject"] for one in told["node"]["explanations"]} == {"module:wishes"}
    assert len(told["node"]["explanations"]) > 1  # the line does not say for which operation
    unknown = ("explain", "sandbox_filesystem_denied:nobody-here:/etc/passwd")
    golden("explain-line-unknown.piped", asked.says(*unknown).out)
    told = asked.data(*unknown)
    assert (told["node"]["explanations"], told["told"]["subject"]) == ([], "nobody-here")


def test_a_question_is_answered_by_the_node(asked):
    """The deciding layer is marked; each subject of a chain and a pending request are named."""
    target = "https://explained.example.org/v1"
    request = asked.wants(target)
    waiting = asked.says(*ASKED, target)
    assert request in waiting.out
    assert "* request" in waiting.out
    inside = (*ASKED, "https://never.example.org/v1", "--chain", "module:gallery -> task:wishes.nightly")
    golden("explain-access.piped", asked.says(*inside).out, folder=asked.served.folder)
    golden("explain-access.terminal", asked.terminal(*inside, columns=120).text, folder=asked.served.folder)
    told = asked.data(*inside)
    assert [one["subject"] for one in told["chain"]] == ["module:gallery", "task:wishes.nightly", "module:wishes"]
    refused = asked.says(*ASKED, "https://user@a.example/")
    assert (refused.status, "user information" in refused.out) == (1, True)
    wrong = asked.says(*ASKED, "https://a.example/", "--chain", "reports")
    assert (wrong.status, "/chain/0" in wrong.err) == (1, True)


def test_a_symptom_is_shown_beside_what_the_kernel_layer_does(asked):
    """A symptom lists the controls of the node for comparison."""
    line = "ConnectionRefusedError: [Errno 111] Connection refused"
    found, told = asked.says("explain", line), asked.data("explain", line)
    assert (found.status, told["code"]) == (0, "symptom_connection_refused")
    assert "Egress" in found.out or "egress" in found.out


@pytest.mark.parametrize("more", [("--offline",), ()], ids=["offline", "unreachable"])
def test_without_a_node_a_line_is_explained_all_the_same(more):
    """The catalogue explains it, with the missing entry and the reason why no node was asked."""
    found = within(("explain", LINE, *more), NOWHERE)
    assert found.status == 0
    assert '"target": "/etc/passwd"' in found.out
    golden(f"explain-offline-{len(more)}.piped", found.out + found.err)
    told = json.loads(within(("explain", LINE, *more, "--json"), NOWHERE).out)
    assert (told["node"], told["told"]["subject"]) == (None, "reports")
    assert told["not_asked"]


def test_a_code_is_explained_without_a_node():
    """The whole section is printed; an unknown code is refused with the nearest one."""
    golden("explain-code.piped", within(("explain", "--code", "external_access_admin_required")).out)
    assert "no_iptables: " in within(("explain", "--code", "os_sandbox_helper_failed")).out
    wrong = within(("explain", "--code", "sandbox_netwrk_denied"))
    assert (wrong.status, wrong.out) == (1, "")
    assert (code_of(wrong.err), " sandbox_network_denied" in wrong.err) == ("error_unknown", True)


def test_a_manifest_alone_is_asked(manifest):
    """The answer has the nearest rule and the entry; an invalid manifest is refused."""
    ask = ("explain", "--subject", "module:reports", "--target", "/srv/reports/x", "--manifest", manifest)
    assert json.loads(within((*ask, "--operation", "read", "--json")).out)["verdict"] == "allowed"
    missing = within((*ask, "--operation", "modify"))
    assert '"operation": "modify"' in missing.out
    tool = within(("explain", "--subject", "tool:x", "--operation", "read", "--target", "/x", "--manifest", manifest))
    assert (tool.status, code_of(tool.err)) == (1, "invalid_input")
    other = within(("explain", "--subject", "task:other.run", *ask[3:], "--operation", "read"))
    assert (other.status, code_of(other.err)) == (1, "invalid_input")
    steps = zip((("modify",), ("tool:x",), ("task:other.run",)), (missing, tool, other), strict=True)
    transcript("explain-manifest", steps, folder=manifest.parent)
    task = within(("explain", "--subject", "task:reports.run", *ask[3:], "--operation", "read", "--json"))
    assert json.loads(task.out)["verdict"] == "allowed"
    pattern = within((*ask[:4], "/srv/other/*.csv", *ask[5:], "--operation", "read"))
    assert '"target": "/srv/other/./*.csv"' in pattern.out
    assert "wildcards" in pattern.out
    manifest.write_text("{}")
    assert json.loads(within((*ask, "--operation", "read", "--json")).out)["verdict"] == "needs_approval"
    manifest.write_text("{")
    assert within((*ask, "--operation", "read")).status == 1


@rows(
    ("arguments", "status"),
    [
        (("hello world",), 1),
        (("",), 1),
        ((), 2),
        ((LINE, "--code", "pending"), 2),
        (("--subject", "module:x"), 2),
        (("--subject", "module:x", "--operation", "read"), 2),
        (("--subject", "module:x", "--operation", "red", "--target", "/x"), 2),
        (("--subject", "x", "--operation", "read", "--target", "/x", "--manifest", "/nowhere/manifest.json"), 2),
        (("--subject", "module:x", "--operation", "read", "--target", "/x", "--manifest", "/nowhere/manifest.json"), 1),
    ],
)
def test_what_cannot_be_explained_is_refused(arguments, status):
    """One clear error with the documented status, and no node is asked."""
    found = within(("explain", *arguments), NOWHERE)
    assert (found.status, found.out) == (status, "")
    assert found.err
    assert "Traceback" not in found.err


def test_a_line_is_read_from_standard_input():
    """The last error of a log counts; binary data is accepted, and too much data refused."""
    log = f"one line\n{LINE}\nanother line\n"
    found = piped(("explain", "-", "--offline"), stdin=log)
    assert (found.status, "subject:   reports" in found.out) == (0, True)
    assert piped(("explain", "-", "--offline"), stdin="x" * 1_100_000).status == 2


def test_nothing_hidden_reaches_the_terminal():
    """Control characters in names and paths are escaped."""
    found = within(("explain", "sandbox_filesystem_denied:re\x1b[2Jports:/etc/\u202epasswd", "--offline"))
    assert "\x1b" not in found.out + found.err
    assert "\u202e" not in found.out
