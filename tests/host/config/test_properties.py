"""Any input is accepted or rejected with the typed error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load
from democrai_sandbox.host.config.keys import KEYS, OPEN
from democrai_sandbox.host.config.loader import variable_for
from democrai_sandbox.host.settings import HostSettings

HOME = {"HOME": "/home/ann"}

NAMES = sorted({step for pointer in (*KEYS, *OPEN) for step in pointer.split("/")[1:]})
WORDS = ["/tmp", "~", "https://h", "sqlite:////tmp/x.db", "module:a", "process", "redis", "ipc", "127.0.0.1", "0.0.0.0"]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(WORDS), st.sampled_from(NAMES)
)
KEY_NAMES = st.one_of(st.sampled_from(NAMES), st.text())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY_NAMES, inner, max_size=4), max_leaves=12
)


def read_or_refused(source, environ):
    try:
        loaded = load(source, environ=environ)
    except ConfigInvalid as refused:
        assert refused.problems
        assert refused.diagnostics()
    else:
        assert isinstance(loaded.settings, HostSettings)
        assert all(origin.source for origin in loaded.origins.values())


@st.composite
def documents(draw):
    """Objects with real keys at real places, with any values."""
    made = draw(st.dictionaries(KEY_NAMES, VALUES, max_size=3))
    for pointer in draw(st.lists(st.sampled_from([*KEYS, *OPEN]), max_size=6)):
        holder = made
        *above, last = pointer.split("/")[1:]
        for step in above:
            holder = holder.setdefault(step, {})
            if not isinstance(holder, dict):
                break
        else:
            holder[last] = draw(VALUES)
    return made


@given(documents())
def test_any_argument_is_read_or_refused(document):
    """No value at any place raises another error."""
    read_or_refused(document, HOME)


@given(documents())
def test_any_document_in_a_file_is_read_or_refused(document):
    """As YAML written by a program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(yaml.dump(document, allow_unicode=True), encoding="utf-8", errors="replace")
        read_or_refused(path, HOME)


@given(st.binary() | st.text(alphabet="ab:-[]{}&*!|>'\"%@` \n\t#,?~.0", max_size=60).map(str.encode))
def test_any_bytes_in_a_file_are_read_or_refused(data):
    """Also invalid YAML."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_bytes(data)
        read_or_refused(path, HOME)


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from([*map(variable_for, (*KEYS, *OPEN, "/server", "/sandbox/os"))]),
            st.text().map("DEMOCRAI_CONFIG__".__add__),
            st.text(),
        ),
        st.text(),
        max_size=4,
    )
)
def test_any_environment_is_read_or_refused(environ):
    """Names and values of every kind."""
    environ.pop("DEMOCRAI_CONFIG_FILE", None)
    read_or_refused(None, {**HOME, **environ})
