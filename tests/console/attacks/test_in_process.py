"""A hostile module in the process of the console: searching objects and replacing functions."""

from __future__ import annotations

import re

import pytest

from tests.console.attacks.hostile import Hostile
from tests.services.ports import port
from tests.services.rows import rows

HOLDERS = (
    "democrai_sandbox.host.accounts.accounts.Accounts",
    "democrai_sandbox.access.access.Access",
    "democrai_sandbox.access.node.AccessNode",
    "democrai_sandbox.access.checks.AccessService",
    "democrai_sandbox.access.administration.Administration",
    "democrai_sandbox.access.snapshot.Snapshot",
    "democrai_sandbox.access.store.SqlStore",
    "democrai_sandbox.access.store.database.Database",
    "democrai_sandbox.host.sandbox.Sandbox",
    "democrai_sandbox.runtime.runtime.Runtime",
    "democrai_sandbox.kernel.application.Kernel",
    "fastapi.applications.FastAPI",
    "fastapi.routing.APIRouter",
    "fastapi.routing.APIRoute",
    "jinja2.environment.Environment",
    "sqlalchemy.engine.base.Engine",
    "starlette.requests.Request",
)
"""What leads to decisions, accounts, passwords on their way, or to what the pages show."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A server that attacks only read."""
    found = Hostile(tmp_path_factory.mktemp("hostile"))
    yield found
    found.stop()
    found.web.stop()


@pytest.fixture(scope="module")
def ruined(tmp_path_factory):
    """A server whose process attacks change; its module may connect to the console."""
    with port() as number:
        rule = {"resource_type": "network", "target": f"http://127.0.0.1:{number}"}
        access = [{**rule, "operation": operation} for operation in ("receive", "send")]
        found = Hostile(tmp_path_factory.mktemp("ruined"), {"server": {"port": number}}, access=access)
        yield found
        found.stop()
        found.web.stop()


# ---- looking


def test_a_module_finds_neither_the_sandbox_nor_the_secrets_of_whom_it_works_for(hostile):
    """No object leads there while it runs for an administrator's token."""
    with hostile.by_the_form() as browser, hostile.bearer(hostile.administrator()) as client:
        for page in ("/requests", "/status", "/account"):
            assert browser.get(page).status_code == 200
        assert client.get("/metrics").status_code == 200
        token = client.headers["Authorization"].removeprefix("Bearer ")
        secrets = (hostile.password, token, *browser.cookies.values())
        wanted = [*HOLDERS, *(text[::-1] for text in secrets)]  # backwards, or the search finds its own words
        told = hostile.search(client, "everywhere()", wanted)
    assert told["seen"] > 50_000
    assert told["found"] == {}


@rows(
    "expression",
    [
        "render._environment()",
        "pages.routers()",
        "api.routers()",
        "api.unversioned()",
        "Accounts.people(object.__new__(Accounts))",
        "Accounts.sign_in(object.__new__(Accounts), 'admin', 'guess', None)",
        "object.__getattribute__(Sandbox.__new__(Sandbox), 'access')",
        "Sandbox.access.fget(Sandbox.__new__(Sandbox))",
    ],
)
def test_what_holds_the_host_together_is_closed_to_guarded_code(hostile, expression):
    """Templates, routes, accounts and parts of a sandbox refuse guarded code."""
    told = hostile.as_administrator(
        "from democrai_sandbox.console import api, pages, render\n"
        "from democrai_sandbox.host.accounts import Accounts\n"
        "from democrai_sandbox.host.sandbox import Sandbox\n"
        f"def main():\n    return repr({expression})\n"
    )
    assert told.startswith("TamperDenied: sandbox_guard_denied:"), told


@rows("module", ["pages.accounts", "pages.requests", "api.accounts", "api.decisions", "live_updates", "health"])
def test_no_module_of_the_console_names_its_routes(hostile, module):
    """A reachable route could be changed to call other code with passwords."""
    told = hostile.as_administrator(
        f"import democrai_sandbox.console.{module} as found\n"
        "def main():\n    return [name for name, value in vars(found).items() if hasattr(value, 'routes')]\n"
    )
    assert told == []


def test_the_database_of_the_accounts_is_not_opened_by_a_module(hostile):
    """It is neither read for hashes nor written for a session."""
    told = hostile.as_administrator(
        f"import sqlite3\ndef main():\n    return repr(sqlite3.connect({str(hostile.folder / 'state/sandbox.db')!r}))\n"
    )
    assert told.startswith("FilesystemDenied"), told


def test_the_console_is_out_of_reach_without_a_rule(hostile):
    """A module without network rules cannot reach the port of its process."""
    number = int(hostile.url.rsplit(":", 1)[1])
    told = hostile.as_administrator(
        "import socket\ndef main():\n"
        f"    with socket.create_connection(('127.0.0.1', {number}), 5) as found:\n        return 'connected'\n"
    )
    assert "sandbox_network_denied" in told, told


def test_a_module_with_a_rule_for_the_console_is_nobody_there(ruined):
    """Working for an administrator gives it no rights over the network."""
    told = ruined.as_administrator(
        "import urllib.error, urllib.request\n"
        "def ask(path, data=None):\n"
        "    try:\n"
        f"        return urllib.request.urlopen('{ruined.url}' + path, data, 30).status\n"
        "    except urllib.error.HTTPError as error:\n"
        "        return error.code\n"
        "async def main():\n"
        "    paths = [('/api/v1/me', None), ('/api/v1/decisions', b'{}'), ('/metrics', None), ('/login', b'')]\n"
        "    return [await sdk.tasks.run_blocking(ask, *one) for one in paths]\n"
    )
    assert told == [401, 401, 401, 403]


# ---- replacing


def test_what_signing_in_compares_with_cannot_be_exchanged(ruined):
    """A replaced comparison of passwords has no effect."""
    told = ruined.as_administrator(
        "from cryptography.hazmat.primitives.kdf.argon2 import Argon2id\n"
        "def main():\n"
        "    Argon2id.verify_phc_encoded = staticmethod(lambda *_: None)\n"
        "    return repr(Argon2id.verify_phc_encoded('', ''))\n"
    )
    assert told == "None"
    with ruined.client() as door:
        assert door.post("/login", data={"name": ruined.admin, "password": "wrong"}).status_code == 401
    ruined.by_the_form().close()


def test_secrets_stay_random_when_the_functions_for_it_are_exchanged(ruined):
    """Session cookies do not use replaced ``secrets`` and ``os`` functions."""
    told = ruined.as_administrator(
        "import os, random, secrets\n"
        "def main():\n"
        "    secrets.token_urlsafe = secrets.token_hex = lambda *_: 'known'\n"
        "    secrets.token_bytes = os.urandom = lambda size=32: b'k' * size\n"
        "    return secrets.token_urlsafe(32)\n"
    )
    assert told == "known"
    cookies = set()
    for _ in range(2):
        with ruined.by_the_form() as client:
            cookies.add(next(iter(client.cookies.values())))
    assert len(cookies) == 2
    assert all(re.fullmatch(r"[\w-]{43}", cookie) and "a2tr" not in cookie for cookie in cookies)


def test_pages_go_on_escaping_when_the_function_for_it_is_exchanged(ruined):
    """Templates keep the escape function of their compilation."""
    told = ruined.as_administrator(
        "import jinja2, jinja2.defaults, jinja2.runtime\n"
        "def main():\n"
        "    jinja2.runtime.escape = str\n"
        "    jinja2.defaults.DEFAULT_FILTERS['escape'] = jinja2.defaults.DEFAULT_FILTERS['e'] = str\n"
        "    return repr(jinja2.runtime.escape)\n"
    )
    assert told == "<class 'str'>"
    form = {"name": "<script>x</script>", "password": "wrong"}
    with ruined.client() as door:
        page = door.post("/login", data=form).text
    assert "&lt;script&gt;" in page
    assert "<script>x" not in page
