"""The matchers of the core and of the policy package give the same results."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from democrai_sandbox.guard import _core
from democrai_sandbox.guard.runtime_paths import OWNED, PROTECTED
from democrai_sandbox.policy import PathIndex, normalise_path
from tests.services.properties import examples

pytestmark = pytest.mark.once  # does not depend on the interpreter

NAMES = st.sampled_from(["a", "ab", "b", "srv", "é", "x" * 40])
PATHS = st.lists(NAMES, max_size=6).map(lambda parts: "/" + "/".join(parts))
ENTRIES = st.lists(st.tuples(PATHS, st.integers(1, 31)), max_size=12)


def native(entries, protected=(), owned=()):
    """Return the same roots in the core, unresolved, because the paths of these tests do not exist."""
    rows = [(root, mask | (OWNED if root in owned else 0)) for root, mask in entries]
    rows += [(root, PROTECTED) for root in protected]
    return _core.policy(
        subject="demo",
        kind="module",
        entries=tuple((path.encode(), mask) for path, mask in rows),
        imports=frozenset(),
        allow_subprocess=False,
        include_runtime=False,
        declared="[]",
        ancestors=(),
        resolve=False,
        network=(),
        network_only=False,
        opened_by="",
        named_programs=False,
    )


@settings(max_examples=examples(4))
@given(ENTRIES, st.lists(PATHS, max_size=20))
def test_masks_are_the_same(entries, paths):
    """Union of the roots at or above, by whole components, in any order."""
    policy, index = native(entries), PathIndex(entries)
    for path in paths:
        assert _core.mask(policy, path.encode()) == index.mask(path)


@settings(max_examples=examples(4))
@given(ENTRIES, st.lists(PATHS, max_size=4), st.lists(PATHS, max_size=4), st.lists(PATHS, max_size=20))
def test_masks_are_the_same_around_protected_paths(entries, protected, owned, paths):
    """Protected paths are closed, owned ones below are open again, and ancestors stay in place."""
    policy, index = native(entries, protected, owned), PathIndex(entries, protected=protected, owned=owned)
    for path in [*paths, *protected, *owned]:
        assert _core.mask(policy, path.encode()) == index.mask(path)


def test_ten_thousand_roots_with_shared_beginnings_are_told_apart():
    """A root never matches a sibling that starts with the same letters."""
    entries = [(f"/srv/tenant{number}/data", 1 + number % 31) for number in range(10_000)]
    policy = native(entries)
    for number in range(0, 10_000, 97):
        assert _core.mask(policy, f"/srv/tenant{number}/data/x/y".encode()) == 1 + number % 31
        assert _core.mask(policy, f"/srv/tenant{number}/datax".encode()) == 0


@pytest.mark.parametrize("path", [b"relative", b"", b"/a\0b", b"/a/", b"/" + b"x" * 5000])
def test_the_core_takes_only_normalised_absolute_paths(path):
    """An entry that is not a path is rejected."""
    with pytest.raises(ValueError, match=r"path|null"):
        _core.policy(
            subject="demo",
            kind="module",
            entries=((path, 1),),
            imports=frozenset(),
            allow_subprocess=False,
            include_runtime=False,
            declared="[]",
            ancestors=(),
            resolve=False,
            network=(),
            network_only=False,
            opened_by="",
            named_programs=False,
        )


def test_normalising_is_the_same_on_both_sides():
    """The core rejects paths that normalise_path would change."""
    for path in ("/a/b", "/", "/é"):
        assert normalise_path(path) == path
        assert _core.mask(native([(path, 7)]), path.encode()) == 7
