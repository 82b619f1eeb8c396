"""``democrai-sandbox manifest``: check, lint, diff, schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from democrai_sandbox.manifests import ManifestKind, schema_path
from tests.cli.goldens import code_of, golden, terminal, transcript
from tests.cli.local import configured, says
from tests.services.rows import rows

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
WRONG = """{
  "name": "reports",
  "descripton": "x",
  "access": [
    {"resource_type": "network", "operation": "recieve", "target": "https://api.example.com/x"}
  ]
}
"""
BROAD = {"name": "reports", "access": [{"resource_type": "filesystem", "operation": "read", "target": "/"}]}


@pytest.fixture
def manifest(tmp_path):
    """Write the manifest of a module; return its file."""

    def write(content, name="reports"):
        folder = tmp_path / "modules" / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "manifest.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return write


def test_a_pattern_in_a_file_target_is_refused(manifest):
    """Check and lint refuse it with the folder to declare; the literal name is accepted."""

    def declaring(target):
        return manifest({"access": [{"resource_type": "filesystem", "operation": "read", "target": target}]})

    problems = says("manifest", "check", declaring("/srv/data/*.csv"), "--json").data["files"][0]["problems"]
    assert [(one["pointer"], one["suggestion"]) for one in problems] == [("/access/0/target", "/srv/data")]
    for verb in ("check", "lint"):
        assert says("manifest", verb, declaring("/srv/data/*.csv")).status == 1
        assert says("manifest", verb, declaring("/srv/data/./*.csv")).status == 0


def test_everything_that_is_wrong_is_said_at_once(manifest, tmp_path):
    """Each problem has file, line, column, pointer and the nearest name; exit status 1."""
    file = manifest(WRONG)
    found = says("manifest", "check", tmp_path / "modules", EXAMPLES / "modules" / "weather")
    assert found.status == 1
    first, second = found.out.splitlines()
    assert first.startswith(f"{file}:3:17: /descripton: ") and "'description'" in first
    assert second.startswith(f"{file}:5:") and "'receive'" in second
    golden("manifest-check.piped", found.out + found.err, folder=tmp_path)
    data = says("manifest", "check", file, "--json").data
    assert (data["schema"], data["ok"], data["files"][0]["kind"]) == (
        "democrai-sandbox/manifest.check/1",
        False,
        "module",
    )
    first = data["files"][0]["problems"][0]
    assert (first["pointer"], first["line"], first["suggestion"]) == ("/descripton", 3, "description")
    golden("manifest-check.terminal", terminal(["manifest", "check", file]).text, folder=tmp_path)


def test_a_folder_stands_for_what_lies_in_it():
    """All examples are found from the parent folder, and have no problems."""
    found = says("manifest", "check", EXAMPLES, "--json")
    assert (found.status, len(found.data["files"])) == (0, len(list(EXAMPLES.glob("*/*/manifest.json"))))
    assert {each["kind"] for each in found.data["files"]} == {"module", "engine", "extractor"}


@rows(
    ("content", "words", "status"),
    [
        ({"name": "x"}, (), 2),
        ({"name": "x"}, ("--kind", "module"), 0),
        ({"$schema": "../schemas/module.schema.json", "name": "x"}, (), 0),
        ({"$schema": "urn:democrai-sandbox:manifest:module:1", "name": "x"}, (), 0),
        ("{", (), 2),
    ],
)
def test_what_kind_a_manifest_is(tmp_path, content, words, status):
    """The kind comes from an option, the file or its folder; otherwise it is required."""
    file = tmp_path / "manifest.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    found = says("manifest", "check", file, *words)
    assert found.status == status
    assert status == 0 or (code_of(found.err), "--kind" in found.err) == ("command_misused", True)


def test_what_is_not_there_is_a_problem_like_another(tmp_path):
    """A missing file, a name with control characters and an empty folder are one clear line each."""
    missing = says("manifest", "check", "--kind", "module", tmp_path / "nothing", f"{tmp_path}/a\x1b[2Jb")
    assert missing.status == 1
    assert [line.partition(": ")[0] for line in missing.out.splitlines()] == [
        f"{tmp_path}/nothing",
        f"{tmp_path}/a\\x1b[2Jb",
    ]
    nothing = says("manifest", "check", tmp_path / "nothing")
    assert (nothing.status, nothing.out, f"{tmp_path}/nothing" in nothing.err) == (2, "", True)
    empty = says("manifest", "check", tmp_path)
    assert (empty.status, empty.out, "manifest.json" in empty.err) == (2, "", True)
    steps = zip((("missing",), ("nothing",), ("empty",)), (missing, nothing, empty), strict=True)
    transcript("manifest-missing", steps, folder=tmp_path)


def test_advice_is_no_failure_unless_it_is_to_be(manifest):
    """A broad rule is reported with its line; ``--strict`` makes it a failure."""
    file = manifest(BROAD)
    found = says("manifest", "lint", file)
    assert found.status == 0
    assert f"{file}:1: /access/0" in found.out
    assert "warning" in found.out
    assert says("manifest", "lint", file, "--strict").status == 1
    data = says("manifest", "lint", file, "--json").data
    assert (data["schema"], data["files"][0]["findings"][0]["code"]) == (
        "democrai-sandbox/manifest.lint/1",
        "broad_root",
    )
    assert says("manifest", "lint", EXAMPLES, "--strict").status == 0
    assert says("manifest", "lint", manifest(WRONG, "wrong")).status == 1


def test_what_a_new_version_may_do_more(manifest, tmp_path):
    """Added rights come first, and fail on request; the reverse direction adds none."""
    old, new = manifest({"name": "reports"}, "old"), manifest(BROAD, "new")
    found = says("manifest", "diff", old, new)
    assert (found.status, found.out) == (0, "added /access: filesystem read /\n")
    assert says("manifest", "diff", old, new, "--exit-code").status == 1
    back = says("manifest", "diff", new.parent, old.parent, "--exit-code", "--json")
    assert (back.status, back.data["adds_power"], back.data["changes"][0]["effect"]) == (0, False, "dropped")
    same = says("manifest", "diff", old, old, "--exit-code")
    assert (same.status, same.out) == (0, "")
    golden("manifest-diff-same.piped", same.err)
    assert says("manifest", "diff", tmp_path / "modules", old).status == 2
    proposal = tmp_path / "proposal.json"
    proposal.write_text(json.dumps(BROAD))
    assert says("manifest", "diff", old, proposal).out == found.out  # of the kind of the other one
    assert says("manifest", "diff", old, new, "--kind", "mcp").status == 1


def test_the_schemas(tmp_path):
    """One is printed, all are written, and they equal the published ones."""
    printed = says("manifest", "schema", "engine")
    assert printed.out == schema_path(ManifestKind.ENGINE).read_text()
    assert says("manifest", "schema", "--output", tmp_path).status == 0
    for kind in ManifestKind:
        assert schema_path(kind, tmp_path).read_text() == schema_path(kind).read_text()
    assert says("manifest", "schema", "tool", "--json").data["json_schema"]["title"].startswith("tool")
    assert says("manifest", "schema").status == 2
    assert says("manifest", "schema", "tol").status == 2
    refused = says("manifest", "schema", "--output", tmp_path / "none")
    assert (refused.status, refused.out, f"{tmp_path}/none" in refused.err) == (1, "", True)


def test_what_the_kernel_does_not_enforce_is_a_notice(manifest, tmp_path):
    """A configuration without confinement is named; with the default, this machine lacks nothing."""
    file = manifest({"name": "narrow", "access": []}, "narrow")
    config = configured(tmp_path, sandbox={"os": {"enabled": False}})

    def codes(*options):
        (one,) = says("manifest", "lint", file, "--json", *options).data["files"]
        return [(found["code"], found["severity"]) for found in one["findings"]]

    assert codes() == []
    assert codes("--config", config) == [("unenforced", "notice")]
