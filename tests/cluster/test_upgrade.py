"""A rolling upgrade with a migration: nodes of the version before go on after one that only adds, and after no other.

The later versions are copies of this one, with a migration more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from democrai_sandbox.access.store import schema
from tests.cli.goldens import piped
from tests.cluster.machines import PROBE
from tests.cluster.page import commands, run
from tests.console.serving import ROOT, Served, merge, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ADDS = f'''
"""A column and a table more."""
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "9001", "{schema.HEAD}", None, None
additive = True

def upgrade():
    op.add_column("access_requests", sa.Column("colour", sa.Text, nullable=False, server_default="grey"))
    op.create_table("access_colours", sa.Column("name", sa.Text, primary_key=True))
'''
BREAKS = '''
"""A table has another name."""
from alembic import op
revision, down_revision, branch_labels, depends_on = "9002", "9001", None, None

def upgrade():
    op.rename_table("access_ended_sessions", "access_closed_sessions")
'''


def later_version(folder, head, **migrations):
    """Make a copy of the package that has further migrations and needs the last of them; return where it lies."""
    package = folder / "democrai_sandbox"
    # With what is compiled already, which is good as long as a file has its time: else each start would compile it all;
    # without what somebody else is writing there just now, under a name that is gone a moment later.
    ignored = shutil.ignore_patterns("*.c", "*.pyc.*")
    shutil.copytree(ROOT / "src" / "democrai_sandbox", package, ignore=ignored)
    for name, text in migrations.items():
        (package / "access" / "store" / "migrations" / "versions" / f"{name}.py").write_text(text)
    file = package / "access" / "store" / "schema.py"
    text = file.read_text()
    assert f'HEAD = "{schema.HEAD}"' in text
    file.write_text(text.replace(f'HEAD = "{schema.HEAD}"', f'HEAD = "{head}"'))
    return {"PYTHONPATH": str(folder)}


def node(folder, url, environ=None):
    """Start a node of the version that the environment names; a later one has the keys already."""
    config = {
        "database": {"url": url, "key_file": str(folder.parent / "keys")},
        "modules_path": str(folder / "modules"),
    }
    if not folder.exists():
        folder.mkdir()
        shutil.copytree(PROBE, folder / "modules" / "probe")
    return Served(folder, config, extensions=False, environ=environ or {})


def command(environ, *words):
    """Run the command line of a version."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")} | environ
    line = [sys.executable, "-m", "democrai_sandbox.cli", *words]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120, check=False)


def checks(served):
    answer = httpx.get(f"{served.url}/health/ready", trust_env=False, timeout=30)
    return answer.status_code, answer.json()["checks"]["schema"]


def store_line(client):
    return next(line["summary"] for line in client.get("/api/v1/status").json()["lines"] if line["name"] == "store")


def decide(client, number, effect="approval"):
    target = f"http://127.0.0.1:9/{number}"
    body = {"subject": "module:probe", "resource_type": "network", "operation": "receive", "target": target}
    return client.post("/api/v1/decisions", json={**body, "effect": effect})


def allowed(client, number):
    """Whether the guard of a node lets the module fetch it: what is let through finds nobody at that port."""
    params = {"url": f"http://127.0.0.1:9/{number}"}
    answer = client.post("/api/v1/modules/probe/actions/fetch", json={"params": params})
    return answer.status_code == 502


@contextmanager
def load(client, wrong):
    """Renders and decisions, many in each second; answers other than the right ones are kept."""
    ending = threading.Event()

    def work():
        number = 0
        while not ending.wait(0.2):
            number += 1
            render = client.post("/api/v1/modules/probe/render", json={"params": {}})
            made = decide(client, f"load/{number}")
            wrong.extend(answer.text for answer in (render, made) if answer.status_code not in {200, 201})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_nodes_are_exchanged_one_by_one(tmp_path, postgres):
    """The database goes ahead, old nodes serve on and start again, new ones join; a break is refused by all."""
    url, wrong = postgres.new_database(), []
    newer = later_version(tmp_path / "newer", "9001", adds=ADDS)
    newest = later_version(tmp_path / "newest", "9002", adds=ADDS, breaks=BREAKS)
    one = node(tmp_path / "one", url)
    nodes = [one]
    try:
        token = one.token(one.administrator())
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=one.url, headers=headers, trust_env=False, timeout=60) as old:
            refused = command(newer, "serve", "--config", str(one.file))
            assert refused.returncode == 1 and "db upgrade --database" in refused.stderr, refused.stderr
            with load(old, wrong):
                for line in commands("db upgrade"):
                    run(line, one, **newer)
                assert checks(one) == (200, "ok")
                assert "9001" in store_line(old) and schema.HEAD in store_line(old)
                two = node(tmp_path / "two", url, newer)
                nodes.append(two)
                with httpx.Client(base_url=two.url, headers=headers, trust_env=False, timeout=60) as new:
                    assert "9001" in store_line(new) and schema.HEAD not in store_line(new)
                    for here, there, number in ((old, new, 1), (new, old, 2)):
                        assert not allowed(there, number)
                        assert decide(here, number).status_code in {200, 201}
                        until(lambda there=there, number=number: allowed(there, number), "hearing of it")
                    assert new.get("/api/v1/audit/verify").json()["ok"] is True
            assert wrong == []
        assert one.stop() == 0
        one.start()
        assert checks(one) == (200, "ok")
        done = command(newest, "db", "upgrade", "--yes", "--config", str(one.file))
        assert done.returncode == 0, done.stderr
        for served in nodes:
            until(lambda served=served: checks(served) == (503, "failed"), "noticing it")
        refused = piped(("serve", "--config", one.file))
        assert refused.status == 1 and "9002" in refused.err and "upgrade" not in refused.err, refused.err
    finally:
        for served in nodes:
            served.stop()
            served.web.stop()
