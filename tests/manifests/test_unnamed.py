"""Manifests without a name, as in the specification's examples: the folder's name is used."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from democrai_sandbox.manifests import (
    ManifestError,
    ManifestKind,
    load_manifest,
    manifest_schema,
    manifest_to_dict,
    parse_manifest,
)
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
from democrai_sandbox.sdk import testing
from tests.cli.local import says
from tests.manifests.schema_reader import accepts
from tests.services.rows import rows

MODULES = (
    """{
"access": [
{
"resource_type": "network",
"operation": "receive",
"target": "https://api.example.com/v1/"
},
{
"resource_type": "filesystem",
"operation": "read",
"target": "/srv/democrai/example-data"
}
]
}""",
    """{
  "access": [
    {
      "resource_type": "filesystem",
      "operation": "read",
      "target": "/srv/democrai/reports"
    }
  ]
}""",
    """{
  "allowed_imports": ["ctypes"]
}""",
    """{
  "access": [
    {
      "resource_type": "network",
      "operation": "receive",
      "target": "https://api.example.com/v1/reports"
    }
  ]
}""",
)
INSTALLED = (
    """{
  "runtime": {
    "access": [
      {
        "resource_type": "filesystem",
        "operation": "read",
        "target": "/srv/democrai/models"
      }
    ]
  }
}""",
    """{
  "runtime": {
    "access": [
      {
        "resource_type": "network",
        "operation": "receive",
        "target": "https://api.example.com/v1/models"
      }
    ]
  }
}""",
)
EXAMPLES = (
    *((ManifestKind.MODULE, text) for text in MODULES),
    *((kind, text) for kind in (ManifestKind.ENGINE, ManifestKind.EXTRACTOR) for text in INSTALLED),
)
ENTRIES = {ManifestKind.MODULE: "module.py", ManifestKind.ENGINE: "engine.py", ManifestKind.EXTRACTOR: "extractor.py"}


def written(place, kind, text, name="example"):
    folder = place / f"{kind}s" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(text)
    (folder / ENTRIES[kind]).write_text("")
    return folder


@rows(("kind", "text"), EXAMPLES)
def test_an_example_pasted_as_it_is_has_the_name_of_its_folder(tmp_path, kind, text):
    """This applies to the parser, the schema, the registry and the command line."""
    folder = written(tmp_path, kind, text)
    manifest = load_manifest(folder / "manifest.json", kind)
    assert (manifest.kind, manifest.name, str(manifest.subject)) == (kind, "example", f"{kind}:example")
    assert accepts(manifest_schema(kind), json.loads(text))
    settings = RuntimeSettings(**{f"{kind}s_path": str(tmp_path / f"{kind}s"), "data_dir": str(tmp_path / "data")})
    assert [(one.name, one.problems) for one in discover(settings)] == [("example", ())]
    assert says("manifest", "check", folder).status == 0


@rows("kind", tuple(ENTRIES))
def test_a_name_in_the_manifest_comes_first(tmp_path, kind):
    folder = written(tmp_path, kind, '{"name": "other"}')
    assert load_manifest(folder / "manifest.json", kind).name == "other"


@rows("kind", tuple(ENTRIES))
def test_a_folder_whose_name_no_subject_can_have_needs_a_name_in_the_manifest(tmp_path, kind):
    """A valid name is suggested."""
    folder = written(tmp_path, kind, "{}", "my reports")
    with pytest.raises(ManifestError) as caught:
        load_manifest(folder / "manifest.json", kind)
    assert [(problem.pointer, problem.suggestion) for problem in caught.value.problems] == [("/name", "my-reports")]


@rows("kind", tuple(ENTRIES))
def test_a_text_without_a_folder_needs_a_name(kind):
    with pytest.raises(ManifestError) as caught:
        parse_manifest("{}", kind)
    assert [problem.pointer for problem in caught.value.problems] == [""]


@rows("kind", [ManifestKind.TOOL, ManifestKind.AGENT, ManifestKind.PIPELINE, ManifestKind.MCP])
def test_other_declarations_still_need_a_name(kind):
    """They have no folder."""
    with pytest.raises(ManifestError):
        parse_manifest("{}", kind, folder="/srv/example")


def test_the_name_is_written_out(tmp_path):
    """The serialized manifest can be parsed without a folder."""
    manifest = load_manifest(written(tmp_path, ManifestKind.MODULE, "{}") / "manifest.json", ManifestKind.MODULE)
    plain = manifest_to_dict(manifest)
    assert plain == {"name": "example"}
    assert parse_manifest(json.dumps(plain), "module") == replace(manifest)


def test_a_link_to_a_folder_names_it_everywhere(tmp_path):
    """The registry and a test of the extension agree."""
    written(tmp_path / "versions", ManifestKind.MODULE, "{}", "reports-1.4")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "reports").symlink_to(tmp_path / "versions" / "modules" / "reports-1.4")
    settings = RuntimeSettings(modules_path=str(tmp_path / "modules"), data_dir=str(tmp_path / "data"))
    assert [one.name for one in discover(settings)] == ["reports"]
    with testing.module(tmp_path / "modules" / "reports") as module:
        assert module.manifest.name == "reports"


def test_a_candidate_without_a_name_has_the_one_it_is_given():
    """A candidate is for an extension that already has a name."""
    assert parse_manifest("{}", "module", folder="/srv/example", name="reports").name == "reports"
