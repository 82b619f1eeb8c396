"""The command line: upgrade, verify, export."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.access.__main__ import main
from democrai_sandbox.access.audit import verify_export
from tests.access.store.samples import NOW, approval, sql


def test_verify_and_export(store, url, capsys):
    """A whole chain is told, and written out so that it can be checked elsewhere."""
    for number in range(3):
        store.decide(approval(f"/{number}"), now=NOW)
    assert main(["verify", url]) == 0
    assert capsys.readouterr().out == "3 records, the chain is whole\n"
    assert main(["export", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert verify_export(lines, store.audit_head()).count == 3
    assert json.loads(lines[0])["schema"] == "democrai-sandbox/audit/1"


def test_verify_tells_where_the_chain_breaks(store, url, capsys):
    """And ends with a status that scripts can see."""
    store.decide(approval(), now=NOW)
    sql(url, "UPDATE access_meta SET audit_hash = 'x'")
    assert main(["verify", url]) == 1
    assert "the chain breaks at record 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nonsense", "expected the URL of a database"),
        ("sqlite:////tmp/no-such-database.db", "there is no database"),
        ("postgresql://ann:s3cret@127.0.0.1:1/db", "cannot be reached"),
    ],
)
def test_what_cannot_be_opened_is_told_in_a_sentence(url, text, capsys):
    """Without a traceback, and without the password."""
    assert main(["verify", url]) == 1
    told = capsys.readouterr().err
    assert text in told
    assert "s3cret" not in told
    assert "Traceback" not in told
