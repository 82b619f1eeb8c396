"""SECURITY.md: the table of what each layer stops is what was measured."""

from __future__ import annotations

import os
import re

import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.seccomp import this_architecture
from tests.docs import layers
from tests.docs.pages import REPOSITORY

_FULL_ABI = 6
complete = pytest.mark.skipif(
    landlock_support().abi < _FULL_ABI or this_architecture() is None,
    reason="the table is about a kernel with Landlock ABI 6 and a known table of system calls",
)


def told():
    """The table of the page, as ``layers.measured`` returns it."""
    text = (REPOSITORY / "SECURITY.md").read_text()
    head, _, *rows = (
        re.search(r"^\| operation \| by \|.*?\n\n", text, re.DOTALL | re.MULTILINE).group().strip().splitlines()
    )
    columns = [cell.strip() for cell in head.strip("|").split("|")][2:]
    found = {column: {} for column in columns}
    for row in rows:
        act, by, *cells = (cell.strip().strip("*") for cell in row.strip("|").split("|"))
        for column, cell in zip(columns, cells, strict=True):
            found[column][act, by] = cell
    return found


@complete
@pytest.mark.timeout(600)
def test_each_layer_stops_what_the_table_says_and_nothing_else():
    """Every act works with nothing in the way, and comes to what the table says under each layer and under all."""
    found = layers.measured()
    works = {act for act, outcome in found.pop(layers.NOTHING).items() if outcome == layers.THROUGH}
    # Some acts need rights that a user does not have anyway.
    assert len(works) == len(layers.ACTS) if os.geteuid() == 0 else len(works) > len(layers.ACTS) / 2
    page = told()
    assert set(page) == set(layers.COLUMNS)
    for column, outcomes in found.items():
        assert page[column].keys() == outcomes.keys()
        assert {act: outcomes[act] for act in works} == {act: page[column][act] for act in works}, column


def test_no_layer_stops_everything():
    """The table is there to show gaps: each layer lets something through, and stops what another one does not."""
    page = told()
    single = [column for column in page if column != layers.ALL]
    for column in page:
        assert layers.THROUGH in page[column].values(), column
    for column in single:
        others = [page[other] for other in single if other != column]
        assert any(
            outcome == layers.STOPPED and all(other[act] == layers.THROUGH for other in others)
            for act, outcome in page[column].items()
        ), column
