"""A refused ``democrai-sandbox serve`` leaves nothing behind."""

from __future__ import annotations

import socket

import pytest

from tests.console.serving import CHEAPLY, Served, Web, serving

REFUSED = f"""{CHEAPLY}
from democrai_sandbox.errors import KernelRefused
from democrai_sandbox.kernel.application import Kernel

def prepare(kernel):
    raise KernelRefused("this machine has no such control", fix="none")

Kernel.prepare = prepare
"""
"""Has a start refused as late as one can be, by the kernel layer that is required."""


@pytest.fixture
def web():
    """A web server shared by the starts."""
    found = Web()
    yield found
    found.stop()


def refused(folder, web, config=None, before=CHEAPLY):
    """Start serving, expect a refusal; the database is named, so that none is prepared."""
    database = {"database": {"url": f"sqlite:///{folder}/state/sandbox.db"}}
    with pytest.raises(RuntimeError):
        Served(folder, database | (config or {}), extensions=False, before=before, outside=web)


def test_an_address_in_use(tmp_path, web):
    """The address is checked before anything is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused(tmp_path, web, {"server": {"port": taken.getsockname()[1]}})
    assert not (tmp_path / "state").exists()


def test_a_control_that_is_required_and_missing(tmp_path, web):
    """Keys, database and folders of this start are removed."""
    refused(tmp_path, web, before=REFUSED)
    assert not (tmp_path / "state").exists()


def test_a_database_that_cannot_be_used(tmp_path, web):
    """No keys remain for a database that cannot be opened."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "sandbox.db").write_text("not a database")
    refused(tmp_path, web)
    assert not (tmp_path / "state" / "keys").exists()
    assert (tmp_path / "state" / "sandbox.db").read_text() == "not a database"


def test_what_was_there_before_stays(tmp_path, web):
    """An existing database, its keys and folders survive a refused start."""
    with serving(tmp_path, {"database": {"url": f"sqlite:///{tmp_path}/state/sandbox.db"}}, extensions=False):
        pass
    kept = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    assert {path.name for path in kept} >= {"keys", "sandbox.db"}
    database = {"database": {"url": f"sqlite:///{tmp_path}/state/sandbox.db"}}
    with pytest.raises(RuntimeError):
        Served(tmp_path, database, extensions=False, before=REFUSED, outside=web)
    assert {path: path.read_bytes() for path in kept if path.suffix != ".lock"} == {
        path: content for path, content in kept.items() if path.suffix != ".lock"
    }
