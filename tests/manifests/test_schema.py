"""Published JSON Schemas: current, and consistent with the parser."""

from __future__ import annotations

from importlib import resources

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests import ManifestError, ManifestKind, make_manifest, manifest_schema, schema_path
from democrai_sandbox.manifests.schema import schema_text
from tests.manifests.corpus import BEYOND_THE_SCHEMA, RIGHT, WRONG
from tests.manifests.schema_reader import accepts
from tests.services.rows import rows

SCHEMAS = {str(kind): manifest_schema(kind) for kind in ManifestKind}
# Values that are almost valid.
SCRAPS = st.sampled_from(
    [
        *(None, True, 0, 1.0, "", "x", "ctypes", "a b", "network", "read", "connect", [], {}, ["read"], ["x"]),
        *("https://a.example/x", "sse", "main.py", "/srv", "~", [{}], {"access": []}, {"requirements": ["a"]}),
        [{"resource_type": "network", "operation": "send", "target": "a.example"}],
        [{"resource_type": "filesystem", "operation": "send", "target": "a.example"}],
    ]
)
NAMES = sorted({name for schema in SCHEMAS.values() for name in schema["properties"]} | {"isolation"})


@rows("kind", ManifestKind)
def test_the_published_file_is_current(kind):
    """The published file matches the tables; otherwise run the command in docs/manifests.md."""
    assert schema_path(kind).read_text(encoding="utf-8") == schema_text(kind)
    assert resources.files("democrai_sandbox.manifests").joinpath(f"schemas/{kind}.schema.json").is_file()


def test_nothing_else_is_published():
    """Exactly one file per kind is published."""
    files = {path.name for path in schema_path(ManifestKind.MODULE).parent.iterdir()}
    assert files == {f"{kind}.schema.json" for kind in ManifestKind}


@rows(("kind", "value"), RIGHT)
def test_the_schema_accepts_what_is_right(kind, value):
    """A valid manifest has no errors in an editor."""
    assert accepts(SCHEMAS[kind], value)


@rows(("kind", "value", "pointer"), WRONG)
def test_the_schema_refuses_what_is_wrong(kind, value, pointer):
    """An editor marks what the parser rejects."""
    assert not accepts(SCHEMAS[kind], value)


@rows(("kind", "value", "pointer"), BEYOND_THE_SCHEMA)
def test_some_faults_are_beyond_a_schema(kind, value, pointer):
    """The schema really accepts these."""
    assert accepts(SCHEMAS[kind], value)


@given(st.sampled_from(list(ManifestKind)), st.dictionaries(st.sampled_from(NAMES), SCRAPS, max_size=5))
def test_the_schema_never_refuses_what_the_parser_takes(kind, value):
    """Every manifest that the parser accepts is valid against the schema."""
    try:
        make_manifest({"name": "x", **value}, kind, folder="/srv")
    except ManifestError:
        return
    assert accepts(SCHEMAS[kind], {"name": "x", **value})
