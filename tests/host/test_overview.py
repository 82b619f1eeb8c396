"""Overview of subjects and extensions."""

from __future__ import annotations

import os

import pytest

from tests.services.forks import HostCase as Case

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")
CODE = '''
import urllib.request

@sdk.action("fetch")
def fetch(url):
    """Fetch a page.

    More about it.
    """
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()

@sdk.action("say")
def say(text, *, loud=False):
    print(text)

@sdk.task("tidy", every=3600)
def tidy():
    return None
'''


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def looked_at(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    url = app.web.url
    access = [
        {"resource_type": "network", "operation": "receive", "target": f"{url}/declared"},
        {"resource_type": "network", "operation": "receive", "target": "https://never.example.com"},
        {"resource_type": "filesystem", "operation": "read", "target": "/srv"},
    ]
    app.module("demo", CODE, version="2.1", access=access, limits={"open_files": 100})
    (app.modules / "broken").mkdir()
    (app.modules / "broken" / "manifest.json").write_text('{\n"name": "broken",\n"acess": []}')

    async def story(app):
        import asyncio

        from democrai_sandbox.access.values import DecisionEffect
        from democrai_sandbox.errors import ExtensionUnknown
        from democrai_sandbox.host.overview import (
            extension_profile,
            known_subjects,
            line_of,
            list_extensions,
            subject_profile,
        )
        from democrai_sandbox.policy import Subject
        from democrai_sandbox.runtime.access_environment import serving

        demo = Subject.parse("module:demo")
        await app.action("demo", "fetch", url=f"{url}/declared/1")
        await app.action("demo", "fetch", url=f"{url}/other")
        await app.action("demo", "say", text="hello")
        about = {"resource_type": "network", "operation": "send", "effect": DecisionEffect.APPROVAL}
        app.as_ada("decide_unasked", demo, target="https://unused.example.com", **about)

        def look():
            sandbox = app.sandbox
            with serving(app.caller("ada")):
                found = subject_profile(sandbox, demo)
                try:
                    subject_profile(sandbox, Subject.parse("module:demi"))
                except ExtensionUnknown as error:
                    unknown = str(error)
            with serving(app.caller("uma")):
                try:
                    subject_profile(sandbox, demo)
                except PermissionError as error:
                    refused = error.code
            whole, broken = extension_profile(sandbox, "module", "demo"), extension_profile(sandbox, "module", "broken")
            return {
                "survey": {
                    str(one.subject): [one.source, one.declared, *one.counts[:3]] for one in known_subjects(sandbox)
                },
                "declared": [
                    [one.rule.target, one.line, one.is_observable, bool(one.times_seen)] for one in found.declared
                ],
                "never": [one.rule.target for one in found.never_observed],
                "undeclared": sorted({one.observed.target for one in found.not_declared}),
                "unused": [one.decision.access.target for one in found.unused],
                "requests": [one.access.target for one in found.requests],
                "unknown": unknown,
                "refused": refused,
                "overview": {one.name: [one.state, one.version, len(one.problems)] for one in list_extensions(sandbox)},
                "offers": [[one.kind, one.name, list(one.parameters), one.hint, one.every] for one in whole.offers],
                "printed": whole.printed.text,
                "limits": whole.limits,
                "lines": len(whole.lines),
                "wrong": [line_of(problem) for problem in broken.overview.problems],
                "findings": sorted(one.code for one in whole.overview.findings),
            }

        return await asyncio.to_thread(look)

    return {"url": url, **app.play(story)}


def test_a_subject_in_three_accounts(case):
    """Declared, approved and observed accesses are compared; extensions are listed with functions and problems."""
    told = case.run(looked_at)
    url = told["url"]
    assert told["survey"]["module:demo"] == ["extension", 3, 1, 1, 1]
    assert told["survey"]["module:broken"][0] == "extension"
    assert told["declared"] == [
        [f"{url}/declared", 1, True, True],
        ["https://never.example.com", 1, True, False],
        ["/srv", 1, False, False],
    ]
    assert told["never"] == ["https://never.example.com"]
    assert told["undeclared"] == [f"{url}/other"]
    assert told["unused"] == ["https://unused.example.com"]
    assert told["requests"] == [f"{url}/other"]
    assert "'demo'" in told["unknown"]
    assert told["refused"] == "external_access_admin_required"

    assert told["overview"] == {"broken": ["broken", "", 1], "demo": ["ok", "2.1", 0]}
    assert told["offers"] == [
        ["action", "fetch", ["url"], "Fetch a page.", None],
        ["action", "say", ["text", "loud"], "", None],
        ["task", "tidy", [], "", 3600.0],
    ]
    assert told["printed"] == "hello\n"
    assert told["limits"] == [["manifest", "open_files", 100]]
    assert told["lines"] == 1
    assert told["wrong"] == [3]
    assert told["findings"] == ["broad_root"]


def reasons(world):
    """Run the same accesses of a module under changing decisions; return the observations by target."""
    app = world.load(EMBEDDED)["Embedded"](world.base)
    url = app.web.url
    secret = os.path.join(world.base, "secret")
    code = (
        CODE
        + """
@sdk.action("open")
def open_it(path):
    open(path)
"""
    )
    access = [{"resource_type": "network", "operation": "receive", "target": f"{url}/declared"}]
    app.module("demo", code, access=access)
    app.module("approved", code)

    async def story(app):
        import asyncio

        from democrai_sandbox.access.values import DecisionEffect
        from democrai_sandbox.host.overview import subject_profile
        from democrai_sandbox.policy import Subject
        from democrai_sandbox.runtime.access_environment import serving

        def decide(module, effect, target, operation="receive", kind="network"):
            about = {"resource_type": kind, "operation": operation, "target": target, "effect": effect}
            return app.as_ada("decide_unasked", Subject.parse(f"module:{module}"), **about).decision.id

        def observed(module):
            with serving(app.caller("ada")):
                found = subject_profile(app.sandbox, Subject.parse(f"module:{module}")).observed
            return sorted(
                [
                    one.observed.target.replace(url, ""),
                    one.observed.result,
                    one.observed.reason.value,
                    one.observed.count,
                ]
                for one in found
            )

        await app.action("demo", "fetch", url=f"{url}/declared")
        await app.action("demo", "fetch", url=f"{url}/page")
        before = observed("demo")
        approval = decide("demo", DecisionEffect.APPROVAL, f"{url}/page")
        after = observed("demo")
        app.as_ada("revoke", approval)
        decide("demo", DecisionEffect.DENIAL, f"{url}/page")
        await app.action("demo", "fetch", url=f"{url}/page")
        denied = observed("demo")

        given = decide("approved", DecisionEffect.APPROVAL, f"{url}/page")
        await app.action("approved", "fetch", url=f"{url}/page")
        allowed = observed("approved")
        app.as_ada("revoke", given)
        decide("approved", DecisionEffect.DENIAL, f"{url}/page")
        revoked = observed("approved")

        await app.action("approved", "open", path=secret)
        decide("approved", DecisionEffect.DENIAL, secret, "read", "filesystem")
        await app.action("approved", "open", path=secret)
        files = [one[1:] for one in observed("approved") if one[0] == secret]
        return [before, after, denied, allowed, revoked, files]

    return app.play(story)


def test_a_result_keeps_the_reason_that_it_had(case):
    """A later decision does not explain earlier accesses; later accesses are separate entries."""
    before, after, denied, allowed, revoked, files = case.run(reasons)
    declared = ["allowed", "declared", 1]
    assert [one[1:] for one in before if one[0] != "/page"] == [declared]
    assert [one for one in before if one[0] == "/page"] == [["/page", "denied", "pending", 1]]
    assert after == before
    assert [one for one in denied if one not in before] == [["/page", "denied", "denied", 1]]
    assert [one[1:] for one in allowed] == [["allowed", "approved", 1]]
    assert revoked == allowed
    assert files == [["denied", "denied", 1], ["denied", "not_declared", 1]]
