"""Paths: lexical normalization, comparison by components, and the index."""

from __future__ import annotations

import itertools
import os
import posixpath
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    EVERY_ACCESS,
    FileAccess,
    InvalidInputError,
    PathIndex,
    is_at_or_below,
    normalise_path,
)
from tests.services.rows import rows

READ, CREATE, MODIFY, DELETE = FileAccess.READ, FileAccess.CREATE, FileAccess.MODIFY, FileAccess.DELETE

# A small alphabet makes shared prefixes likely: a matcher by characters confuses a, ab and b.
COMPONENTS = st.sampled_from(["a", "ab", "b", "a.", "..a", "é", "e\u0301", "\udc80", "A"])
MESSY = st.one_of(COMPONENTS, st.sampled_from(["", ".", ".."]))
MASKS = st.integers(0, 31).map(FileAccess)
CLEAN_PATHS = st.lists(COMPONENTS, max_size=5).map(lambda parts: "/" + "/".join(parts))
MESSY_PATHS = st.lists(MESSY, max_size=9).map(lambda parts: "/" + "/".join(parts))
ENTRIES = st.lists(st.tuples(MESSY_PATHS, MASKS), max_size=8)


@rows(
    ("path", "expected"),
    [
        ("/", "/"),
        ("//", "/"),
        ("///srv//a///", "/srv/a"),
        ("//srv/a", "/srv/a"),
        ("/srv/./a/.", "/srv/a"),
        ("/srv/x/../a", "/srv/a"),
        ("/../../srv", "/srv"),
        ("/srv/..", "/"),
        ("/srv/...", "/srv/..."),
        ("/srv/a ", "/srv/a "),
        ("/srv/a\n", "/srv/a\n"),
        ("/srv/\udcff", "/srv/\udcff"),
        ("/srv/a\\..\\b", "/srv/a\\..\\b"),
        ("/srv/%2e%2e", "/srv/%2e%2e"),
    ],
)
def test_paths_have_one_spelling(path, expected):
    """Double slashes, dots and trailing slashes are removed; everything else is part of a name."""
    assert normalise_path(path) == expected


@rows("path", ["", "srv", "./srv", "../srv", "~", "~/x", "/a\0b", "\0", None, 1, b"/srv", ["/srv"]])
def test_what_is_no_absolute_path_is_refused(path):
    """Empty, relative, NUL and other types are rejected, not completed."""
    with pytest.raises(InvalidInputError):
        normalise_path(path)


def test_a_path_subclass_is_compared_by_its_characters():
    """Overridden methods of a text are not used in the comparison."""

    class Sly(str):
        __slots__ = ()

        def split(self, *args):
            return ["", "srv", "a"]

        def __getitem__(self, key):
            return "/"

    assert normalise_path(Sly("/etc/shadow")) == "/etc/shadow"
    assert PathIndex([("/srv/a", READ)]).mask(Sly("/etc/shadow")) == 0


@given(MESSY_PATHS)
def test_normalising_agrees_with_the_standard_library(path):
    """The result is posixpath.normpath's, with a single leading slash, and is a fixed point."""
    normal = normalise_path(path)
    assert normal == "/" + posixpath.normpath(path).lstrip("/")
    assert normalise_path(normal) == normal
    assert os.fsdecode(os.fsencode(normal)) == normal


@rows(
    ("path", "root", "expected"),
    [
        ("/srv/a", "/srv/a", True),
        ("/srv/a/x/y", "/srv/a", True),
        ("/srv/a/", "/srv/a", True),
        ("/srv/a", "/srv/a/", True),
        ("/srv/ab", "/srv/a", False),
        ("/srv/a.txt", "/srv/a", False),
        ("/srv", "/srv/a", False),
        ("/srv/a/../ab", "/srv/a", False),
        ("/srv/A", "/srv/a", False),
        ("/anything", "/", True),
        ("/", "/", True),
        ("/", "/a", False),
    ],
)
def test_below_means_whole_components(path, root, expected):
    """A root covers itself and everything below it, never a sibling with the same first letters."""
    assert is_at_or_below(path, root) is expected


@given(MESSY_PATHS, MESSY_PATHS)
def test_below_agrees_with_lists_of_components(path, root):
    """Comparing components one by one gives the same result."""
    inner, outer = ([part for part in normalise_path(text).split("/") if part] for text in (path, root))
    assert is_at_or_below(path, root) is (inner[: len(outer)] == outer)


def naive_mask(entries, path, protected=(), owned=()):
    """Implement the documented walk without an index: compare every root at every depth."""
    normal = normalise_path(path)
    parts = [part for part in normal.split("/") if part]
    roots = {}
    for root, mask in entries:
        roots[normalise_path(root)] = roots.get(normalise_path(root), 0) | int(mask)
    shut_paths = {normalise_path(root) for root in protected}
    open_paths = {normalise_path(root) for root in owned} & set(roots)
    deepest_shut = max(
        (depth for depth in range(len(parts) + 1) if "/" + "/".join(parts[:depth]) in shut_paths), default=None
    )
    begin = 0
    if deepest_shut is not None:
        depths = range(deepest_shut + 1, len(parts) + 1)
        begin = next((depth for depth in depths if "/" + "/".join(parts[:depth]) in open_paths), None)
    result = 0
    if begin is not None:
        for depth in range(begin, len(parts) + 1):
            result |= roots.get("/" + "/".join(parts[:depth]), 0)
    if any(root != normal and is_at_or_below(root, normal) for root in shut_paths):
        result &= ~int(DELETE | CREATE)
    return result


@given(ENTRIES, MESSY_PATHS)
def test_index_equals_a_naive_matcher(entries, path):
    """The mask is the union of the masks of all roots at or above the path."""
    union = 0
    for root, mask in entries:
        if is_at_or_below(path, root):
            union |= int(mask)
    assert PathIndex(entries).mask(path) == union == naive_mask(entries, path)


@given(ENTRIES, st.lists(CLEAN_PATHS, max_size=4), st.data())
def test_protection_equals_a_naive_matcher(entries, protected, data):
    """With protected and owned paths the index still follows the documented walk."""
    roots = [root for root, _ in entries]
    owned = data.draw(st.lists(st.one_of(CLEAN_PATHS, *([st.sampled_from(roots)] if roots else [])), max_size=4))
    path = data.draw(st.one_of(MESSY_PATHS, *([st.sampled_from(protected)] if protected else [])))
    index = PathIndex(entries, protected=protected, owned=owned)
    assert index.mask(path) == naive_mask(entries, path, protected, owned)


@given(ENTRIES, st.lists(CLEAN_PATHS, max_size=3), MESSY_PATHS)
def test_protection_only_takes_away(entries, protected, path):
    """A protected path never adds an operation."""
    assert PathIndex(entries, protected=protected).mask(path) & ~PathIndex(entries).mask(path) == 0


@given(ENTRIES, MESSY_PATHS, st.randoms(use_true_random=False))
def test_order_of_insertion_does_not_matter(entries, path, random):
    """Roots with shared prefixes give the same index in any order."""
    shuffled = list(entries)
    random.shuffle(shuffled)
    assert PathIndex(shuffled).mask(path) == PathIndex(entries).mask(path)
    assert PathIndex(shuffled).entries == PathIndex(entries).entries


def test_shared_prefixes_in_every_order_grant_nothing_in_between():
    """The common ancestor of two roots is not a root."""
    roots = ["/srv/abc/x", "/srv/abd/y", "/srv/ab", "/srv/abc/xy"]
    for order in itertools.permutations(roots):
        index = PathIndex((root, READ) for root in order)
        for inside in (*roots, "/srv/ab/z", "/srv/abc/x/1"):
            assert index.mask(inside) == READ
        for outside in ("/", "/srv", "/srv/a", "/srv/abc", "/srv/abd", "/srv/abcd", "/srv/abc/xz", "/srv/abd/yy"):
            assert index.mask(outside) == 0


def test_an_empty_index_allows_nothing():
    """Without roots nothing is allowed, including the root directory."""
    for path in ("/", "/tmp", "/srv/a"):
        assert PathIndex().mask(path) == 0
        assert not PathIndex().allows(path, READ)


def test_asking_for_nothing_is_not_a_yes():
    """An empty question is never allowed."""
    assert not PathIndex([("/", EVERY_ACCESS)]).allows("/a", FileAccess(0))


def test_all_of_a_question_must_be_allowed():
    """One missing operation refuses the combination."""
    index = PathIndex([("/srv", READ), ("/srv/a", CREATE)])
    assert index.allows("/srv/a/x", READ | CREATE)
    assert not index.allows("/srv/a/x", READ | MODIFY)
    assert not index.allows("/srv/x", READ | CREATE)


def test_the_root_directory_covers_everything():
    """A rule for / covers every path."""
    index = PathIndex([("/", READ)])
    assert index.mask("/") == READ
    assert index.mask("/a/b/c") == READ


def test_different_spellings_of_a_root_are_one_root():
    """Masks of the same root are combined, however it is spelled."""
    index = PathIndex([("/srv/a/", READ), ("//srv/./a", CREATE), ("/srv/b/../a", MODIFY)])
    assert index.entries == (("/srv/a", READ | CREATE | MODIFY),)


def test_unicode_forms_and_case_are_different_names():
    """The kernel distinguishes composed, decomposed and differently cased names, and so does the index."""
    index = PathIndex([("/srv/\u00e9", READ)])
    assert index.mask("/srv/\u00e9/x") == READ
    assert index.mask("/srv/e\u0301/x") == 0
    assert index.mask("/srv/\u00c9/x") == 0


def test_names_that_are_no_utf8_are_told_apart():
    """Two surrogate-escaped bytes are two names."""
    index = PathIndex([(os.fsdecode(b"/srv/\xff"), READ)])
    assert index.mask(os.fsdecode(b"/srv/\xff/x")) == READ
    assert index.mask(os.fsdecode(b"/srv/\xfe/x")) == 0


def test_protected_paths_are_shut_inside_an_allowed_root():
    """The application's files are inaccessible although they are below a root."""
    index = PathIndex([("/data", EVERY_ACCESS)], protected=["/data/config"])
    assert index.mask("/data/config") == 0
    assert index.mask("/data/config/policy.json") == 0
    assert index.mask("/data/config2") == EVERY_ACCESS
    assert index.mask("/data/x") == EVERY_ACCESS


def test_an_entry_below_a_protected_path_does_not_open_it():
    """A root inside a protected folder gives nothing unless it is flagged as owned."""
    index = PathIndex([("/data/modules/other", READ)], protected=["/data/modules"])
    assert index.mask("/data/modules/other/x") == 0


def test_owned_entries_reopen_their_own_subtree_only():
    """A subject can access its folder among protected ones, with the folder's mask."""
    index = PathIndex(
        [("/data", EVERY_ACCESS), ("/data/modules/me", READ), ("/data/modules/me/out", CREATE)],
        protected=["/data/modules", "/data/modules/me/secret"],
        owned=["/data/modules/me"],
    )
    assert index.mask("/data/modules/me/x") == READ
    assert index.mask("/data/modules/me/out/x") == READ | CREATE
    assert index.mask("/data/modules/you/x") == 0
    assert index.mask("/data/modules") == 0
    assert index.mask("/data/modules/me/secret/key") == 0


def test_protection_wins_over_ownership_of_the_same_path():
    """An owned entry must be deeper than the protected path."""
    index = PathIndex([("/data/x", READ)], protected=["/data/x"], owned=["/data/x"])
    assert index.mask("/data/x") == 0
    assert index.mask("/data/x/y") == 0


def test_an_owned_path_without_an_entry_opens_nothing():
    """Ownership is a flag of an entry, not an entry."""
    index = PathIndex([("/data", READ)], protected=["/data/m"], owned=["/data/m/me"])
    assert index.mask("/data/m/me/x") == 0
    assert index.owned == ()


def test_ancestors_of_a_protected_path_cannot_be_removed():
    """Moving an ancestor would move the protected path with it; siblings can be moved."""
    index = PathIndex([("/", EVERY_ACCESS)], protected=["/srv/app/config"])
    for ancestor in ("/", "/srv", "/srv/app"):
        assert index.mask(ancestor) == EVERY_ACCESS & ~DELETE & ~CREATE
    for other in ("/srv/app/x", "/srv/ap", "/srv/app2", "/srv/app/config2"):
        assert index.mask(other) == EVERY_ACCESS
    assert index.mask("/srv/app/config") == 0


@rows("mask", [32, -1, "1", None, 1.0, True])
def test_masks_outside_the_bits_are_refused(mask):
    """An unknown bit is an error."""
    with pytest.raises(InvalidInputError):
        PathIndex([("/srv", mask)])


@rows("options", [{"protected": ["x"]}, {"owned": [""]}, {"protected": ["/a\0"]}])
def test_malformed_protection_is_refused(options):
    """A protected path that cannot match is an error, not a hole."""
    with pytest.raises(InvalidInputError):
        PathIndex([("/srv", READ)], **options)


def test_an_index_does_not_change():
    """Attributes can be neither assigned nor added nor deleted."""
    index = PathIndex([("/srv", READ)])
    with pytest.raises(FrozenInstanceError):
        index._masks = {}
    with pytest.raises(FrozenInstanceError):
        del index._protected
    with pytest.raises((AttributeError, TypeError)):
        index.extra = 1
    assert "'/srv'" in repr(index)


def test_a_long_path_is_not_walked_beyond_the_deepest_root():
    """A path of a hundred thousand components is answered quickly."""
    index = PathIndex([("/a", READ)])
    assert index.mask("/a" * 100_000) == READ
