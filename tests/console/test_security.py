"""Security middleware: host, origin, size of the body, and response headers."""

from __future__ import annotations

import http.client
import json
import re
from urllib.parse import urlsplit

import httpx
import pytest

from democrai_sandbox.console.auth import client_address
from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PASSWORD, serving
from tests.services.ports import port
from tests.services.rows import rows

PUBLIC = "https://sandbox.example.com"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


@pytest.fixture(scope="module")
def behind_proxy(tmp_path_factory):
    """A server that users reach over TLS, through a proxy on the same machine."""
    with port() as number:
        config = {"server": {"port": number, "public_url": PUBLIC, "trusted_proxies": ["127.0.0.1"]}}
        with serving(tmp_path_factory.mktemp("proxied"), config, extensions=False) as found:
            found.url = f"http://127.0.0.1:{number}"  # past the proxy, which is not there
            yield found


def send(served, method, path, headers=(), body=None):
    """Send exactly these headers; return status, headers and text."""
    split = urlsplit(served.url)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        given = list(headers)
        if not any(name.lower() == "host" for name, _ in given):
            given.append(("Host", split.netloc))
        if body is not None:
            given.append(("Content-Length", str(len(body))))
            if not any(name.lower() == "content-type" for name, _ in given):
                given.append(("Content-Type", "application/x-www-form-urlencoded"))
        for name, value in given:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def cookie_of(served):
    with served.signed_in() as client:
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def code_of(text):
    """The code of a refusal, from a document or a page."""
    try:
        return json.loads(text)["code"]
    except ValueError:
        return re.search(r"<code>(\w+)</code>", text)[1]


# ---- headers


@rows(
    ("path", "status"),
    [
        ("/login", 200),
        ("/account", 303),
        ("/nowhere", 404),
        ("/api/v1/me", 401),
        ("/api/v1/nowhere", 404),
        ("/api/v1/openapi.json", 200),
        ("/health/live", 200),
        ("/static/console.css", 200),
        ("/static/../secret", 404),
        ("/static/%2e%2e/application.py", 404),
        ("/static/%00", 404),
        ("/static/", 404),
    ],
)
def test_every_answer_carries_the_headers(served, path, status):
    """Pages, documents, files, redirects and errors have the security headers."""
    found, headers, _ = send(served, "GET", path)
    assert found == status
    assert headers["Content-Security-Policy"] == CSP
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["X-Request-Id"]
    assert headers["Cache-Control"] == ("no-cache" if path == "/static/console.css" else "no-store")
    assert "Server" not in headers
    assert "Strict-Transport-Security" not in headers
    assert "Access-Control-Allow-Origin" not in headers


def test_files_with_a_version_are_kept_by_browsers(served):
    """Versioned files are cached; all other answers are not."""
    page = send(served, "GET", "/login")[2]
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        status, headers, _ = send(served, "GET", address)
        assert (status, headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable"), address


def test_pages_have_neither_script_nor_style_in_them(served):
    """Pages follow the content policy."""
    served.person("plain", role="super")  # without hostile names on the page, which look like it
    with served.signed_in("plain") as client:
        for path in ("/login", "/account", "/people", "/account/confirm", "/nowhere"):
            page = client.get(path).text
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page), path


def test_over_tls_browsers_are_told_to_stay_there(behind_proxy):
    """Answers over TLS have HSTS."""
    assert send(behind_proxy, "GET", "/login")[1]["Strict-Transport-Security"] == "max-age=31536000"


# ---- the host that is meant


@rows("host", ["localhost", "localhost:1234", "127.0.0.1:99", "[::1]:80", "192.0.2.7:8420", "LOCALHOST"])
def test_loopback_and_numbers_are_ours(served, host):
    """Addresses are accepted with any port, because DNS cannot rebind them."""
    assert send(served, "GET", "/login", [("Host", host)])[0] == 200


@rows(
    "host",
    [
        "evil.example",
        "evil.example:8420",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "sandbox.example.com",
        "2130706433",
        "",
        "[",
        "evil.example#localhost",
    ],
)
def test_a_name_that_is_not_ours_is_turned_away(served, host):
    """A rebound host name is refused, also with a cookie."""
    headers = [("Host", host), ("Cookie", cookie_of(served))]
    for path in ("/account", "/api/v1/me", "/static/console.css", "/metrics"):
        status, _, text = send(served, "GET", path, headers)
        assert (status, code_of(text)) == (421, "host_unknown"), path


def test_probes_and_tokens_may_use_any_name(served):
    """Health checks and token calls accept any host name."""
    host = ("Host", "sandbox.internal:8420")
    for path, status in {"/health/live": 200, "/health/ready": 200, "/health/": 421, "/health/other": 421}.items():
        assert send(served, "GET", path, [host])[0] == status, path
    token = served.token(served.administrator(), Scope.STATUS_READ)
    assert send(served, "GET", "/metrics", [host, ("Authorization", f"Bearer {token}")])[0] == 200


def test_the_public_name_is_ours(behind_proxy):
    """The public name is accepted in any case, other names are not."""
    for host, status in (("sandbox.example.com", 200), ("SANDBOX.example.com:443", 200), ("other.example.com", 421)):
        assert send(behind_proxy, "GET", "/login", [("Host", host)])[0] == status


# ---- where a form comes from

OWN = "http://{netloc}"
FOREIGN = [
    [("Sec-Fetch-Site", "cross-site")],
    [("Sec-Fetch-Site", "same-site")],
    [("Sec-Fetch-Site", "Same-Origin")],
    [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")],
    [("Sec-Fetch-Site", "cross-site"), ("Origin", OWN)],
    [("Origin", "http://evil.example")],
    [("Origin", "null")],
    [("Origin", "http://127.0.0.1")],
    [("Origin", "https://{netloc}")],
    [("Origin", OWN + ".evil.example")],
    [("Origin", OWN), ("Origin", "http://evil.example")],
    [("Referer", OWN + "/account")],
    [],
]


def filled(served, headers):
    return [(name, value.format(netloc=urlsplit(served.url).netloc)) for name, value in headers]


@rows("headers", FOREIGN)
def test_a_form_of_another_site_changes_nothing(served, headers):
    """A valid cookie with a foreign or missing origin is refused."""
    uma = served.person("uma")
    cookie = ("Cookie", cookie_of(served))
    for path in (f"/people/{uma.name}/disable", "/logout", "/account/sessions/end-all"):
        status, _, text = send(served, "POST", path, [cookie, *filled(served, headers)], b"")
        assert (status, code_of(text)) == (403, "origin_refused"), path
    assert served.accounts.person("uma").disabled_at is None
    assert send(served, "GET", "/account", [cookie])[0] == 200


@rows("headers", FOREIGN)
def test_another_site_does_not_sign_anybody_in(served, headers):
    """A foreign page cannot sign a browser in."""
    form = f"name={served.admin}&password={served.password}".encode()
    status, found, text = send(served, "POST", "/login", filled(served, headers), form)
    assert (status, code_of(text)) == (403, "origin_refused")
    assert "Set-Cookie" not in found


@rows("headers", FOREIGN)
def test_the_api_takes_no_cookie_from_another_site(served, headers):
    """With a cookie the API checks the origin, too."""
    cookie = ("Cookie", cookie_of(served))
    given = [cookie, ("Content-Type", "application/json"), *filled(served, headers)]
    status, _, text = send(served, "DELETE", "/api/v1/sessions", given, b"")
    assert (status, code_of(text)) == (403, "origin_refused")


@rows(
    "headers",
    [[("Sec-Fetch-Site", "same-origin")], [("Sec-Fetch-Site", "none")], [("Origin", OWN)]],
)
def test_our_own_pages_are_taken(served, headers):
    """Forms of the console are accepted, also from old browsers."""
    form = f"name={served.admin}&password={served.password}".encode()
    status, found, _ = send(served, "POST", "/login", filled(served, headers), form)
    assert status == 303
    cookie = ("Cookie", found["Set-Cookie"].partition(";")[0])
    assert send(served, "DELETE", "/api/v1/sessions", [cookie, *filled(served, headers)], b"")[0] == 200


def test_a_token_says_by_itself_who_sends_it(served):
    """A token needs no origin, and takes precedence over a cookie."""
    token = served.token(served.administrator(), Scope.ACCOUNTS_MANAGE)
    given = [("Authorization", f"Bearer {token}"), ("Sec-Fetch-Site", "cross-site")]
    assert send(served, "DELETE", "/api/v1/sessions", given, b"")[0] == 200
    wrong = [("Authorization", "Bearer dsb_wrong"), ("Cookie", cookie_of(served)), ("Sec-Fetch-Site", "cross-site")]
    assert send(served, "DELETE", "/api/v1/sessions", wrong, b"")[0] == 401


def test_a_program_without_anything_is_nobody(served):
    """Without cookie, token and origin the API answers 401."""
    assert send(served, "DELETE", "/api/v1/sessions", [], b"")[0] == 401


def test_a_form_over_tls_comes_from_the_public_address(behind_proxy):
    """Behind a TLS proxy the origin is the public address."""
    form = f"name={behind_proxy.admin}&password={behind_proxy.password}".encode()
    host = ("Host", "sandbox.example.com")
    for origin, status in (
        (PUBLIC, 303),
        ("http://sandbox.example.com.evil.example", 403),
        ("http://evil.example", 403),
    ):
        assert send(behind_proxy, "POST", "/login", [host, ("Origin", origin)], form)[0] == status, origin


# ---- how much may be sent

FILE = b'--x\r\nContent-Disposition: form-data; name="name"; filename="f"\r\n\r\nadmin\r\n--x--\r\n'


@rows(("path", "most"), [("/login", 64 * 1024), ("/api/v1/explain", 1024 * 1024)])
@rows("announced", [True, False])
def test_more_than_is_taken_is_refused(served, path, most, announced):
    """Announced and chunked bodies are limited; one at the limit is accepted."""
    token = served.token(served.administrator())
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if path == "/login":
        headers["Content-Type"] = "application/x-www-form-urlencoded"

    def pieces(size):
        for begin in range(0, size, 8192):
            yield b"x" * min(8192, size - begin)

    def status(size):
        content = b"x" * size if announced else pieces(size)
        with served.client() as client:
            try:
                return client.post(path, content=content, headers=headers).status_code
            except httpx.TransportError:  # it was turned away before it had sent everything
                return 413

    assert status(most) != 413
    assert status(most + 1) == 413


def test_a_length_that_is_a_lie_is_not_believed(served):
    """Invalid and huge lengths have no effect."""
    for length in ("99999999999999999999999999", "-1", "abc"):
        split = urlsplit(served.url)
        connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
        connection.putrequest("POST", "/login")
        for name, value in (("Content-Length", length), ("Sec-Fetch-Site", "same-origin")):
            connection.putheader(name, value)
        connection.endheaders()
        try:
            assert connection.getresponse().status in {400, 413}, length
        finally:
            connection.close()
    assert send(served, "GET", "/health/live")[0] == 200


@rows("field", ["name", "password", "next"])
def test_fields_that_are_too_long_are_refused(served, field):
    """Fields have a lower limit than the form."""
    with served.client() as client:
        answer = client.post("/login", data={field: "x" * 5000})
    assert answer.status_code == 422
    assert "x" * 100 not in answer.text


@rows(
    ("kind", "body"),
    [
        ("application/json", b'{"name": "admin"}'),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="name"; filename="f"\r\n\r\nadmin\r\n--x--\r\n',
        ),
        ("multipart/form-data", b"no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nbroken"),
        ("application/x-www-form-urlencoded", b"name=%ff%fe&password=%00"),
        ("application/x-www-form-urlencoded", b"&".join(b"a=1" for _ in range(5000))),
        ("text/plain", b"name=admin"),
        ("", b"\xff\xfe\0"),
    ],
)
def test_forms_in_other_shapes_sign_nobody_in(served, kind, body):
    """Malformed forms are refused without an internal error."""
    status, headers, _ = send(
        served, "POST", "/login", [("Sec-Fetch-Site", "same-origin"), ("Content-Type", kind)], body
    )
    assert status in {400, 401, 422, 429}, status
    assert "Set-Cookie" not in headers


# ---- where a client is


@rows(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "198.51.100.1, 203.0.113.9, 10.0.0.1", "203.0.113.9"),
        ("127.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9, nonsense", "127.0.0.1"),
        ("127.0.0.1", "2001:DB8::1", "2001:db8::1"),
        ("::ffff:127.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
        ("", "203.0.113.9", ""),
    ],
)
def test_the_address_of_a_client_is_what_a_trusted_proxy_says(peer, forwarded, found):
    """The last forwarded address that is not a trusted proxy counts."""
    assert client_address(peer, forwarded, ("127.0.0.1", "10.0.0.1")) == found


def test_the_address_is_kept_with_the_session(behind_proxy):
    """Behind a trusted proxy, the session has the client's address."""
    form = f"name={behind_proxy.admin}&password={behind_proxy.password}".encode()
    headers = [("Sec-Fetch-Site", "same-origin"), ("X-Forwarded-For", "8.8.8.8, 203.0.113.77")]
    assert send(behind_proxy, "POST", "/login", headers, form)[0] == 303
    assert behind_proxy.accounts.sessions_of("admin")[0].address == "203.0.113.77"


def test_without_a_trusted_proxy_nobody_chooses_an_address(served):
    """Forwarding headers of clients are ignored."""
    served.person("mo")
    form = f"name=mo&password={PASSWORD}".encode()
    headers = [("Sec-Fetch-Site", "same-origin"), ("X-Forwarded-For", "203.0.113.77"), ("Forwarded", "for=8.8.8.8")]
    assert send(served, "POST", "/login", headers, form)[0] == 303
    assert served.accounts.sessions_of("mo")[0].address == "127.0.0.1"
