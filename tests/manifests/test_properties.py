"""Properties of manifests: round trips, and no crash on any input."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests import (
    ManifestError,
    ManifestKind,
    diff,
    lint,
    make_manifest,
    manifest_schema,
    manifest_to_dict,
    parse_manifest,
)
from democrai_sandbox.policy import VALID_OPERATIONS, ResourceType
from tests.manifests.corpus import RIGHT
from tests.manifests.schema_reader import accepts

KINDS = st.sampled_from(list(ManifestKind))
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
TARGETS = {
    ResourceType.NETWORK: st.sampled_from(
        ["https://a.example/v1", "a.example", "*.a.example:8443", "10.0.0.0/8", "unix:/run/x", "HTTP://localhost"]
    ),
    ResourceType.FILESYSTEM: st.text(
        st.characters(exclude_categories=["Cc", "Cs"]) | st.just("/"), min_size=1, max_size=30
    ).filter(lambda text: not text.startswith("~")),
    ResourceType.SYSTEM_DEPENDENCY: st.from_regex(r"[a-z][a-z0-9+ -]{0,10}[a-z]", fullmatch=True),
}


@st.composite
def entries(draw):
    kind = draw(st.sampled_from(list(ResourceType)))
    operations = st.sampled_from([str(operation) for operation in VALID_OPERATIONS[kind]])
    return {
        "resource_type": str(kind),
        "operation": draw(operations | st.lists(operations, min_size=1, max_size=4)),
        "target": draw(TARGETS[kind]),
    }


SECTIONS = {
    "access": st.lists(entries(), max_size=4),
    "allowed_imports": st.lists(st.sampled_from(["ctypes", "cffi", "numpy"]), max_size=3),
    "limits": st.dictionaries(st.sampled_from(["address_space_mb", "processes"]), st.integers(1, 5000), max_size=2),
}
DESCRIPTIONS = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=80)
MODULES = st.fixed_dictionaries({"name": NAMES}, optional={"description": DESCRIPTIONS, **SECTIONS})
ENGINES = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "runtime": st.fixed_dictionaries(
            {}, optional={**SECTIONS, "allowed_config_urls": st.lists(NAMES.map("k".__add__))}
        ),
        "install": st.fixed_dictionaries({}, optional={**SECTIONS, "requirements": st.lists(NAMES)}),
    },
)
SCRAPS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(MODULES.map(lambda value: ("module", value)) | ENGINES.map(lambda value: ("engine", value)))
def test_a_right_manifest_survives_the_round_trip(given_manifest):
    """After the round trip it is equal, allows the same, and is valid against the schema."""
    kind, value = given_manifest
    manifest = parse_manifest(json.dumps(value, indent=1), kind, folder="/srv/ext")
    written = manifest_to_dict(manifest)
    again = parse_manifest(json.dumps(written, ensure_ascii=False).encode(), kind)
    assert again == manifest
    assert manifest_to_dict(again) == written
    assert diff(manifest, again).changes == ()
    schema = manifest_schema(ManifestKind(kind))
    assert accepts(schema, value)
    assert accepts(schema, written)
    for finding in lint(manifest):
        assert finding.line > 1


@given(st.binary() | st.text(), KINDS)
def test_any_text_is_a_manifest_or_refused(data, kind):
    """Any text is parsed or rejected with the declared error."""
    try:
        parse_manifest(data, kind, folder="/srv/ext")
    except ManifestError as error:
        assert error.problems
        assert error.diagnostics()


@given(st.data())
def test_a_right_text_with_something_cut_or_put_in_is_read_or_refused(data):
    """Mutations of valid manifests never crash, and accepted ones can be linted."""
    kind, value = data.draw(st.sampled_from(RIGHT))
    text = json.dumps(value)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 10)))
    put_in = data.draw(st.text('{}[]",:\\ 019e-/.*~$x\u202e\x00', max_size=3) | st.text(max_size=3))
    try:
        manifest = parse_manifest(text[:begin] + put_in + text[end:], kind, folder="/srv/ext")
    except ManifestError as error:
        assert all(problem.line for problem in error.problems)
    else:
        lint(manifest)
        assert diff(manifest, manifest).changes == ()


@given(KINDS, st.data())
def test_any_data_is_a_manifest_or_refused(kind, data):
    """Any Python value at any place is accepted or rejected with the declared error."""
    names = list(manifest_schema(kind)["properties"])
    value = data.draw(SCRAPS | st.dictionaries(st.sampled_from(names), SCRAPS, max_size=4))
    try:
        manifest = make_manifest(value, kind, folder="/srv/ext")
    except ManifestError as error:
        assert error.diagnostics()
    else:
        assert make_manifest(manifest_to_dict(manifest), kind) == manifest
