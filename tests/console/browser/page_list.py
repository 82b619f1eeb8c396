"""Every page of the console with content, by name."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property, partial

from tests.console.pages.asking import decide
from tests.console.sessions import enter

HOSTILE = (
    "https://xn--e1afmkfd.example/v1/a",
    "https://" + ".".join(["a-very-long-label-of-a-host"] * 8) + ".example/" + "long/" * 60,
    "https://safe.example/\u202egpj.exe/\u200bhidden",
    "/srv/data/\u202etxt.exe\n<script>alert(1)</script>",
)
SUBJECT = "module:gallery"
ORGANIZATION = "every"
LOOKING = "eva"
"""Whose requests are on these pages, and who looks at them: nobody else's, so that no test makes the pages longer."""


class Everything:
    """Creates one object of each kind, once, and knows the pages."""

    def __init__(self, house):
        self._house = house
        self.seen = set()
        """Kinds of elements whose colours were looked at."""

    @cached_property
    def ids(self):
        """Ids in the addresses of pages."""
        desk, served = self._house.desk, self._house.served
        ask = partial(desk.ask, subject=SUBJECT, organization=ORGANIZATION)
        cookies, _ = enter(served.accounts, served.person(LOOKING, role="super").id)
        with served.client(cookies=cookies) as client:
            for number in range(4):
                ask(f"https://many.example/v1/item-{number}/of/a/rather/deep/path", user=f"user-{number % 7}")
            for target in HOSTILE:
                ask(target, subject="tool:<b>reader</b>", session="")
            raw = "HTTPS://Waiting.Example/v1/items?of=today"
            ids = {"waiting": ask("https://waiting.example/v1/items", raw=raw)}
            ids["risky"] = ask("http://risky.example/v1/items", operation="send")
            for act in ("session", "permanent", "deny"):
                asked = ask(f"https://{act}.example/v1/things")
                done = decide(client, asked, act, reason="So that there is one.")
                ids[act] = done.headers["location"].rpartition("=")[2]
                ids[f"{act} request"] = asked
            asked = ask("https://revoked.example/v1")
            done = decide(client, asked, "permanent")
            ids["revoked"] = done.headers["location"].rpartition("=")[2]
            client.post(f"/decisions/{ids['revoked']}/revoke")
            ids["stopped"] = served.stop_weather(client, "/forecast/everything")
            client.post("/extensions/module/reports/run/action/write", data={"params": "{}"})
            started = client.post("/extensions/module/digest/run/task/collect", data={"params": "{}"})
            ids["task"] = started.headers.get("location", "").partition("?")[0]
            candidate = '{"name": "weather", "access": []}'
            done = client.post("/shadows", data={"subject": "module:weather", "manifest": candidate})
            ids["shadow"] = done.headers["location"].partition("?")[0]
            client.post("/audit/verify")
        return ids

    def pages(self):
        """Names and paths of pages; ``forms`` creates those that follow an action."""
        return {name: path if isinstance(path, str) else path(self) for name, path in PAGES.items()}


def _of(kind, path):
    return lambda every: path.format(every.ids[kind])


PAGES = {
    "sign in": "/login",
    "queue": f"/requests?organization={ORGANIZATION}",
    "queue, decided": f"/requests?state=all&organization={ORGANIZATION}",
    "queue, wrong filter": "/requests?state=pending&subject=nonsense",
    "queue, nothing": "/requests?text=there-is-no-such-thing",
    "request": _of("waiting", "/requests/{}"),
    "request, decided": _of("deny request", "/requests/{}"),
    "request, done": lambda every: (
        f"/requests/{every.ids['session request']}?done=approved_for_session&about={every.ids['session']}"
    ),
    "request, with resume": _of("stopped", "/requests/{}"),
    "approvals": f"/approvals?subject={SUBJECT}",
    "approvals, ended": f"/approvals?live=ended&subject={SUBJECT}",
    "denials": f"/denials?subject={SUBJECT}",
    "decision": _of("permanent", "/decisions/{}"),
    "decision, denial": _of("deny", "/decisions/{}"),
    "decision, ended": _of("revoked", "/decisions/{}"),
    "revoke": _of("session", "/decisions/{}/revoke"),
    "undo": _of("permanent", "/decisions/{}/undo"),
    "approve instead": _of("deny", "/decisions/{}/approve"),
    "subjects": "/subjects",
    "subject": "/subjects/module/gallery",
    "subject, declared": "/subjects/module/reports",
    "subject, hostile": "/subjects/tool/%3Cb%3Ereader%3C%2Fb%3E",
    "extensions": "/extensions",
    "module": "/extensions/module/reports",
    "module, broken": "/extensions/module/broken",
    "engine": "/extensions/engine/wordcount",
    "extractor": "/extensions/extractor/plaintext",
    "run": "/extensions/module/weather/run/action/fetch",
    "shadows": "/shadows?subject=module%3Areports",
    "shadow": lambda every: every.ids["shadow"],
    "tasks": "/tasks",
    "task": lambda every: every.ids["task"],
    "audit": f"/audit?subject={SUBJECT}",
    "audit record": "/audit/1",
    "audit record, decision": "/audit/14",
    "status": "/status",
    "error code": "/errors/sandbox_network_denied",
    "error code with words": "/errors/os_sandbox_helper_failed",
    "explain": "/explain",
    "explained": "/explain?subject=module%3Agallery&operation=receive&target=https%3A%2F%2Fsession.example%2Fv1",
    "explained, chain": "/explain?subject=tool%3Ax&operation=read&target=%2Fetc%2Fhosts&chain=module%3Areports",
    "explained, line": "/explain?line=sandbox_filesystem_denied%3Areports%3A%2Fetc%2F" + "long" * 30,
    "account": "/account",
    "confirm": "/account/confirm?next=/requests",
    "people": "/people",
    "not there": "/requests/00000000000000000000000000",
}


def _decide(page, every):
    page.goto(f"/requests/{every.ids['waiting']}")
    page.get_by_role("radio").last.check()
    page.get_by_role("button", name="Approve permanently").click()


def _password(page, every):
    page.goto(f"/requests/{every.ids['risky']}")
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_label("Your password").fill("wrong")
    page.get_by_role("button", name="Approve this rule permanently").click()
    page.locator(".error").wait_for()


def _conflict(page, every):
    page.goto("/requests")
    page.evaluate(
        """(path) => {
            const form = Object.assign(document.createElement("form"), { method: "post", action: path });
            document.body.append(form);
            form.submit();
        }""",
        f"/requests/{every.ids['deny request']}/decide",
    )


def _bulk(page, every):
    assert every.ids  # they are made on first use, which may be this one
    page.goto("/requests?text=many.example")
    for number in range(3):
        page.get_by_role("checkbox").nth(number).check()
    page.get_by_role("button", name="Approve permanently…").click()


def _bulk_done(page, every):
    desk = every._house.desk
    for number in range(2):
        desk.ask(f"https://done-{datetime.now(UTC):%H%M%S%f}.example/{number}")
    page.goto("/requests?text=done-")
    for number in range(2):
        page.get_by_role("checkbox").nth(number).check()
    page.get_by_role("button", name="Deny…").click()
    page.get_by_role("button", name="Deny").click()


def _stopped(page, every):
    page.goto("/extensions/module/weather/run/action/fetch")
    page.get_by_label("Parameters").fill(f'{{"url": "{every._house.served.web.url}/forecast/everything"}}')
    page.get_by_role("button", name="Run").click()


def _ran(page, every):
    del every
    page.goto("/extensions/module/weather/run/render/render")
    page.get_by_role("button", name="Run").click()


def _token(page, every):
    del every
    page.goto("/account")
    page.get_by_label("Label").fill("of every page")
    page.get_by_label("requests:read").check()
    page.get_by_role("button", name="Create the token").click()


FORMS = {
    "confirm a broad approval": (_decide, "Approve this permanently?"),
    "confirm with the password": (_password, "Approve this permanently?"),
    "conflict": (_conflict, "Already denied"),
    "bulk": (_bulk, "3 requests?"),
    "bulk, done": (_bulk_done, "2 of 2 requests"),
    "run, stopped": (_stopped, "Action fetch"),
    "run, ran": (_ran, "Render"),
    "token": (_token, "token"),
}
"""Pages that an act leads to: the act, and what is in the heading then."""
