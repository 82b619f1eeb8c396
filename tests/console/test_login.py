"""Signing in and out, the account and the people, over HTTP as a browser without JavaScript does it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest

from democrai_sandbox.host.accounts import store
from democrai_sandbox.host.scopes import Scope
from tests.console.pages.reading import Page, form, read
from tests.console.serving import PASSWORD, PLAIN, serving, until
from tests.services.golden import sentence
from tests.services.rows import rows

NEW = "another good password"
CROWD = 10
"""Two passwords are compared at a time, and six wait: some of so many are turned away."""


def cookies_of(answer):
    return answer.headers.get_list("set-cookie")


def secret_of(page):
    return re.search(r'aria-label="secret">([^<]+)<', page.text)[1]


# ---- the way in


def test_nobody_is_led_to_the_sign_in_and_back(served):
    """With the page and its query in the address; after the sign-in there."""
    with served.client() as client:
        answer = client.get("/people?x=1&y=%2F")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=/people%3Fx%3D1%26y%3D%252F"
        page = client.get(answer.headers["location"])
        onward = re.search(r'name="next" value="([^"]+)"', page.text)[1].replace("&amp;", "&")
        form = {"name": served.admin, "password": served.password, "next": onward}
        answer = client.post("/login", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/people?x=1&y=%2F")
        assert client.get(answer.headers["location"]).status_code == 200


def test_the_form_is_what_password_managers_know(served):
    """The form has standard fields and works without a script."""
    with served.client() as client:
        page = client.get("/login").text
    assert re.search(r'<form[^>]*method="post" action="/login"', page)
    assert re.search(r'name="name"[^>]*autocomplete="username"', page)
    assert re.search(r'name="password" type="password"[^>]*autocomplete="current-password"', page)
    assert 'for="field-name"' in page
    assert 'for="field-password"' in page


def test_the_cookie_is_kept_from_scripts_and_other_sites(served):
    """HttpOnly, SameSite=Lax, for all paths, until the browser closes."""
    with served.client() as client:
        answer = client.post("/login", data={"name": served.admin, "password": served.password})
    (cookie,) = cookies_of(answer)
    assert re.fullmatch(r"democrai_session=[\w-]{43}; HttpOnly; Path=/; SameSite=lax", cookie)


@rows(
    "given",
    [
        {"name": "ADMIN", "password": "wrong wrong wrong"},
        {"name": "nobody-there", "password": "wrong wrong wrong"},
        {"name": "nobody-there"},
        {"password": "wrong wrong wrong"},
        {},
    ],
)
def test_a_refused_sign_in_says_the_same_whoever_is_meant(served, given):
    """Known and unknown names get the same message, 401 and no cookie."""
    with served.client() as client:
        answer = client.post("/login", data=given)
    assert answer.status_code == 401
    sentence("refused", Page(answer).parts("notice")[0])
    assert cookies_of(answer) == []
    assert "wrong wrong wrong" not in answer.text


def test_a_throttled_sign_in_says_how_long_to_wait(served):
    """The page and the header have the time; the right password waits, too."""
    served.person("tess")
    accounts = served.accounts
    key = store._key("pair", "tess", "127.0.0.1")
    accounts._database.act(lambda connection: store._put(connection, key, 12, accounts._clock(), timedelta(days=1)))
    with served.client() as client:
        answer = client.post("/login", data={"name": "tess", "password": PASSWORD})
    assert answer.status_code == 429
    assert 60 < int(answer.headers["retry-after"]) <= 128
    assert re.search(r" [23] minutes", Page(answer).parts("notice")[0])
    assert cookies_of(answer) == []


@rows(
    "onward",
    [
        "https://evil.example/",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "http:evil.example",
        "javascript:alert(1)",
        "/people\r\nSet-Cookie: x=y",
        "/people\nX: y",
        "\t//evil.example",
        " //evil.example",
        "/\t/evil.example",
        "/..//evil.example",
        "/./login",
        "/%2e%2e/other",
        "/people//evil.example",
        "people",
        "@evil.example",
        "/login",
        "/login?next=/login",
        "/logout",
        "/api/v1/me",
        "/\u2028x",
        "x" * 3000,
    ],
)
def test_after_the_sign_in_nobody_is_led_elsewhere(served, onward):
    """Only pages of the console are redirect targets."""
    with served.client() as client:
        page = client.get("/login", params={"next": onward})
        assert re.search(r'name="next" value="([^"]*)"', page.text)[1] == "/"
    with served.signed_in() as client:
        again = client.get("/login", params={"next": onward})
        assert (again.status_code, again.headers["location"]) == (303, "/")


@rows("onward", ["//evil.example", "/\\evil.example", "/people\r\nSet-Cookie: x=y", "/login?next=/login", "x" * 3000])
def test_the_form_itself_leads_nobody_elsewhere(served, onward):
    """The hidden field is checked in the same way."""
    with served.client() as client:
        answer = client.post("/login", data={"name": served.admin, "password": served.password, "next": onward})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert len(cookies_of(answer)) == 1


def test_a_sign_in_begins_with_a_new_secret(served):
    """A cookie from before the sign-in is worthless (session fixation)."""
    served.person("fay")
    form = {"name": "fay", "password": PASSWORD}
    with served.client() as client:
        chosen = {"Cookie": "democrai_session=chosen-by-somebody-else"}
        answer = client.post("/login", data=form, headers=chosen)
        assert "chosen-by-somebody-else" not in cookies_of(answer)[0]
        first = served.accounts.sessions_of("fay")
        assert client.post("/login", data=form).status_code == 303
        second = served.accounts.sessions_of("fay")
    assert len(first) == len(second) == 1
    assert first[0].id != second[0].id


def test_two_cookies_of_one_name_are_none(served):
    """Two different cookies are both ignored (cookie tossing)."""
    with served.signed_in() as client:
        (ours,) = client.cookies.values()
    header = f"democrai_session={ours}"
    with served.client() as client:
        for cookie, status in (
            (header, 200),
            (f"{header}; {header}", 200),
            (f"other=1; {header}", 200),
            (f"democrai_session=x; {header}", 303),
            (f"{header}; democrai_session=x", 303),
            (f"{header}; democrai_session=", 303),
            (f"democrai_session=x; {header}; {header}", 303),
            (f"__Host-democrai={ours}", 303),
        ):
            assert client.get("/account", headers={"Cookie": cookie}).status_code == status, cookie


def test_a_token_in_an_address_or_a_cookie_opens_nothing(served):
    """Tokens are read from the header only, and do not open pages."""
    token = served.token(served.administrator())
    with served.client() as client:
        for address in (f"/api/v1/me?token={token}", f"/api/v1/me?access_token={token}&authorization=Bearer+{token}"):
            assert client.get(address).status_code == 401
        assert client.get("/api/v1/me", headers={"Cookie": f"democrai_session={token}"}).status_code == 401
        assert client.get("/account", headers={"Authorization": f"Bearer {token}"}).status_code == 303
        assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_signing_out_ends_the_session_for_good(served):
    """The cookie is deleted and invalid."""
    with served.signed_in(served.admin, served.password) as client:
        (ours,) = client.cookies.values()
        answer = client.post("/logout")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?done=signed_out")
        assert re.match(r'democrai_session=""; .*Max-Age=0', cookies_of(answer)[0])
    with served.client() as client:
        assert client.get("/account", headers={"Cookie": f"democrai_session={ours}"}).status_code == 303
        assert client.get("/logout").status_code == 405
        assert client.post("/logout").status_code == 303


def test_approvals_for_a_session_end_when_it_does(served):
    """Signing out ends the session approvals."""
    served.person("sue")
    with served.signed_in("sue") as hers, served.bearer(served.administrator()) as admin:
        request = served.stop_weather(hers, "/forecast/signing-out")
        admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()
        key = admin.get(f"/api/v1/requests/{request}").json()["request"]["origin"]["session_key"]

        def approved():
            return [one for one in admin.get("/api/v1/approvals").json()["items"] if one["session_key"] == key]

        assert len(approved()) == 1
        hers.post("/logout")
        assert approved() == []


def test_approvals_for_a_session_end_when_it_runs_out(served):
    """Expiry ends them without another visit."""
    served.person("zoe")
    with served.signed_in("zoe") as hers, served.bearer(served.administrator()) as admin:
        request = served.stop_weather(hers, "/forecast/running-out")
        admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()
    (session,) = served.accounts.sessions_of("zoe")
    with served.bearer(served.administrator()) as admin:

        def approved():
            return [one for one in admin.get("/api/v1/approvals").json()["items"] if one["session_key"] == session.id]

        assert len(approved()) == 1
        set_back(served, session.id, "last_seen")
        until(lambda: not approved(), "the end of the approval")


# ---- the account


def test_sessions_are_listed_and_ended_from_another_browser(served):
    """One, all others, or all; hostile browser names are escaped."""
    served.person("liz")
    hostile = "<script>alert(1)</script>\u202eevil".encode()
    with served.signed_in("liz") as here, served.signed_in("liz") as there, served.signed_in("liz") as third:
        with served.client() as fourth:
            form = {"name": "liz", "password": PASSWORD}
            assert fourth.post("/login", data=form, headers={"User-Agent": hostile}).status_code == 303
        page = here.get("/account").text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page
        ends = re.findall(r'action="(/account/sessions/[^"/]+/end)"', page)
        assert len(ends) == 3
        for end in ends:
            assert read(here, here.post(end).headers["location"]).done == "session_ended"
        assert (there.get("/account").status_code, third.get("/account").status_code) == (303, 303)
        assert here.post(ends[0]).status_code == 404
        assert here.get("/account").status_code == 200
        with served.signed_in("liz") as fifth:
            assert here.post("/account/sessions/end-others").headers["location"] == "/account?done=sessions_ended"
            assert fifth.get("/account").status_code == 303
        assert here.post("/account/sessions/end-all").headers["location"] == "/login?done=signed_out"
        assert here.get("/account").status_code == 303


def test_somebody_elses_session_or_token_is_not_there(served):
    """Ids of other users look unknown."""
    served.person("eve")
    administrator = served.administrator()
    served.token(administrator)
    with served.signed_in() as admin, served.signed_in("eve") as eve:
        session = served.accounts.sessions_of(administrator.id)[0].id
        token = served.accounts.tokens_of(administrator.id)[0].id
        answers = [
            eve.post(f"/account/sessions/{session}/end"),
            eve.post("/account/sessions/nonsense/end"),
            eve.post(f"/account/tokens/{token}/revoke"),
            eve.post("/account/tokens/nonsense/revoke"),
        ]
        assert [answer.status_code for answer in answers] == [404] * 4
        assert admin.get("/account").status_code == 200
    assert served.accounts.tokens_of(administrator.id)[0].ended_at is None


def test_a_password_is_changed_on_the_page(served):
    """Errors are shown at their fields; other sessions end."""
    served.person("pat")
    with served.signed_in("pat") as here, served.signed_in("pat") as there:
        for form, field, name in (
            ({"current": PASSWORD, "password": NEW, "again": NEW + "x"}, "again", "two passwords"),
            ({"current": PASSWORD, "password": "short", "again": "short"}, "password", "short password"),
            ({"current": "wrong wrong wrong", "password": NEW, "again": NEW}, "current", "wrong password"),
            ({}, "password", "no password"),
        ):
            page = Page(here.post("/account/password", data=form))
            assert page.status == 422
            assert len(page.parts("error")) == 1, form
            sentence(name, page.error(field))
        answer = here.post("/account/password", data={"current": PASSWORD, "password": NEW, "again": NEW})
        assert answer.headers["location"] == "/account?done=password_changed"
        assert read(here, answer.headers["location"]).done == "password_changed"
        assert there.get("/account").status_code == 303
    with served.client() as client:
        assert client.post("/login", data={"name": "pat", "password": PASSWORD}).status_code == 401
        assert client.post("/login", data={"name": "pat", "password": NEW}).status_code == 303


def test_a_token_is_shown_once_and_works(served):
    """It has the chosen scopes; the list has only its label."""
    served.person("tom")
    with served.signed_in("tom") as client:
        form = {"label": "<b>ci</b>", "scopes": ["tasks:read", "modules:run"], "days": "30"}
        answer = client.post("/account/tokens", data=form)
        secret = secret_of(answer)
        page = client.get("/account").text
        assert secret not in page
        assert "&lt;b&gt;ci" in page
        bearer = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=served.url, headers=bearer, **PLAIN, timeout=60) as machine:
            me = machine.get("/api/v1/me").json()
            assert (me["user_id"], me["scopes"], me["may_decide"]) == ("tom", ["modules:run", "tasks:read"], False)
            assert machine.get("/api/v1/tokens").status_code == 403
            client.post(re.search(r'action="(/account/tokens/[^"]+/revoke)"', page)[1])
            assert machine.get("/api/v1/me").status_code == 401


@rows(
    ("form", "place", "name"),
    [
        ({"scopes": ["tasks:read"], "days": "7"}, "field-label-error", "no label"),
        ({"label": "x", "days": "7"}, "scopes-error", "no scope"),
        ({"label": "x", "scopes": ["everything"], "days": "7"}, "scopes-error", "unknown scope"),
        ({"label": "x", "scopes": ["tasks:read"], "days": "100000"}, "", "/days"),
        ({"label": "x", "scopes": ["tasks:read"] * 100, "days": "7"}, "", "/scopes"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused_beside_its_field(served, form, place, name):
    """Each error is a 422 at its field, and no token is created."""
    served.person("tim")
    with served.signed_in("tim") as client:
        page = Page(client.post("/account/tokens", data=form))
    assert page.status == 422
    if place:
        sentence(name, page.part(place))
    else:
        assert page.code == "invalid_input"
        assert page.parts("lead")[0].startswith(name)
    assert served.accounts.tokens_of("tim") == ()


# ---- the people


def change(client, name, what, **more):
    """Open the list of users, and send a form of one user."""
    path = f"/people/{name}/{what}"
    return client.post(path, data={**form(client.get("/people"), path), **more})


def test_people_are_for_administrators(served):
    """Other users get the reason, and their forms have no effect."""
    served.person("una")
    served.person("org", role="super", organization_id="acme")
    for name in ("una", "org"):
        with served.signed_in(name) as client:
            for answer in (
                client.get("/people"),
                client.post("/people", data={"name": "mallory"}),
                client.post(f"/people/{name}/role", data={"role": "super"}),
                client.post("/people/admin/disable"),
                client.post("/people/admin/password"),
            ):
                assert answer.status_code == 403
                assert "external_access_admin_required" in answer.text
    assert "mallory" not in {person.name for person in served.accounts.people()}
    assert not any(served.accounts.person(name).may_decide for name in ("una", "org"))


def test_somebody_is_added_with_a_password_that_is_shown_once(served):
    """A generated password works at once; a given one is not shown."""
    with served.signed_in() as admin:
        answer = admin.post("/people", data={"name": "newcomer", "role": "super"})
        secret = secret_of(answer)
        assert secret not in admin.get("/people").text
        with served.signed_in("newcomer", secret) as client:
            assert client.get("/people").status_code == 200
        answer = admin.post("/people", data={"name": "second", "password": PASSWORD, "organization": " acme "})
        assert read(admin, answer.headers["location"]).done == "person_created"
    assert served.accounts.person("second").organization_id == "acme"


@rows(
    ("form", "status", "field", "told"),
    [
        ({"name": "<script>"}, 422, "name", ""),
        ({"name": "Ada Lovelace"}, 422, "name", "ada-lovelace"),
        ({"name": "admin"}, 409, "name", "admin"),
        ({"name": "fine", "role": "root"}, 422, "", ""),
        ({"name": "fine", "organization": "\u202e"}, 422, "organization", "100"),
        ({"name": "fine", "password": "short"}, 422, "password", "12"),
        ({}, 422, "name", ""),
    ],
)
def test_somebody_who_cannot_be_added_is_refused_beside_the_field(served, form, status, field, told):
    """The error is at its field, and the input is kept."""
    with served.signed_in() as admin:
        answer = admin.post("/people", data=form)
    assert answer.status_code == status
    if field:
        error = Page(answer).error(field)
        assert error
        assert told in error
    assert "<script>" not in answer.text.replace('<script src="', "")
    assert "fine" not in {person.name for person in served.accounts.people()}


def test_the_last_administrator_is_not_shut_out(served):
    """The button is disabled with the reason, and the form is refused."""
    others = [person for person in served.accounts.people() if person.may_decide and person.name != served.admin]
    for person in others:
        served.accounts.disable(person.name, actor="tests")
    try:
        with served.signed_in() as admin:
            sentence("last administrator", read(admin, "/people").parts("off")[0])
            for answer in (admin.post("/people/admin/disable"), change(admin, "admin", "role", role="")):
                assert answer.status_code == 409
                assert Page(answer).code == "account_conflict"
                sentence("last administrator, refused", Page(answer).parts("lead")[0])
            assert admin.get("/people").status_code == 200
    finally:
        for person in others:
            served.accounts.enable(person.name, actor="tests")


def test_somebody_is_shut_out_and_let_in_again(served):
    """Disabling applies at once; a new password is shown once."""
    served.person("gus")
    with served.signed_in() as admin, served.signed_in("gus") as client:
        signed_out = admin.post("/people/gus/sign-out").headers["location"]
        assert read(admin, signed_out).done == "person_signed_out"
        assert client.get("/account").status_code == 303
        disabled = admin.post("/people/gus/disable").headers["location"]
        assert read(admin, disabled).done == "person_disabled"
        assert client.get("/account").status_code == 303
        with served.client() as refused:
            assert refused.post("/login", data={"name": "gus", "password": PASSWORD}).status_code == 401
        assert admin.post("/people/gus/enable").status_code == 303
        assert read(admin, disabled).done == ""  # loaded again
        secret = secret_of(change(admin, "gus", "password"))
        assert change(admin, "gus", "role", role="super").status_code == 303
        assert admin.post("/people/nobody-there/disable").status_code == 404
        with served.signed_in("gus", secret) as again:
            assert again.get("/people").status_code == 200
        assert change(admin, "gus", "role", role="").status_code == 303


def test_somebody_who_loses_a_role_loses_it_in_the_open_session(served):
    """Roles are read for every HTTP request."""
    served.person("max", role="super")
    with served.signed_in("max") as client:
        assert client.get("/people").status_code == 200
        served.accounts.set_role("max", actor="tests")
        assert client.get("/people").status_code == 403


# ---- giving the password again


def test_acts_that_last_ask_for_the_password_again(served):
    """An old password must be confirmed; then the user returns to the page."""
    served.person("sid", role="super")
    with served.signed_in("sid") as admin:
        (session,) = served.accounts.sessions_of("sid")
        early = admin.post("/people", data={"name": "early", "password": PASSWORD})
        assert read(admin, early.headers["location"]).done == "person_created"
        set_back(served, session.id, "confirmed_at")
        answer = admin.post("/people", data={"name": "late", "password": PASSWORD})
        assert (answer.status_code, answer.headers["location"]) == (303, "/account/confirm?next=/people")
        token = admin.post("/account/tokens", data={"label": "x", "scopes": ["tasks:read"], "days": "7"})
        assert token.headers["location"] == "/account/confirm?next=/account"
        api = admin.post("/api/v1/tokens", json={"label": "x", "scopes": ["tasks:read"]})
        assert (api.status_code, api.json()["code"]) == (403, "confirmation_needed")
        page = admin.get(answer.headers["location"])
        assert 'name="next" value="/people"' in page.text
        wrong = admin.post("/account/confirm", data={"password": "wrong wrong wrong", "next": "/people"})
        assert wrong.status_code == 401
        sentence("confirmed wrongly", Page(wrong).parts("notice")[0])
        right = admin.post("/account/confirm", data={"password": PASSWORD, "next": "/people"})
        assert (right.status_code, right.headers["location"]) == (303, "/people")
        assert admin.post("/people", data={"name": "late", "password": PASSWORD}).status_code == 303
        for onward in ("https://evil.example", "//evil.example"):  # held to the same rules as at the sign-in
            answer = admin.post("/account/confirm", data={"password": PASSWORD, "next": onward})
            assert answer.headers["location"] == "/"
    assert {"early", "late"} <= {person.name for person in served.accounts.people()}
    assert served.accounts.tokens_of("sid") == ()


def test_a_machine_is_not_asked_for_a_password(served):
    """A token needs no confirmation."""
    with served.bearer(served.administrator(), Scope.ACCOUNTS_MANAGE) as machine:
        answer = machine.post("/api/v1/tokens", json={"label": "x", "scopes": ["accounts:manage"]})
    assert answer.status_code == 201


def set_back(served, session_id, name):
    """Move a time of a session into the past."""
    from sqlalchemy import update

    from democrai_sandbox.host.accounts.tables import sessions

    then = served.accounts._clock().replace(year=2020)
    changed = update(sessions).where(sessions.c.id == session_id).values({name: then})
    served.accounts._database.act(lambda connection: connection.execute(changed))


# ---- many at once


@pytest.fixture
def costly(tmp_path):
    """A server with the usual cost of password hashing."""
    with serving(tmp_path, extensions=False, before="") as found:
        yield found


def test_many_sign_ins_at_once_leave_room_for_pages(costly):
    """Pages are answered during sign-ins, and refused ones get a waiting time."""
    form = {"name": costly.admin, "password": costly.password}

    def sign_in(_):
        with costly.client() as client:
            return client.post("/login", data=form).status_code

    with ThreadPoolExecutor(CROWD) as pool, costly.client() as client:
        running = [pool.submit(sign_in, number) for number in range(CROWD)]
        assert client.get("/login").status_code == 200
        found = [one.result() for one in running]
    assert set(found) <= {303, 429}
    assert 303 in found
