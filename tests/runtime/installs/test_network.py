"""Package sources: pip's own hosts, declarations of the install section, and approvals. Nothing else."""

from __future__ import annotations

import pytest

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.runtime.installs.conftest import rule


def once(world):
    hosting = world.load(world.args[0])
    return hosting["install"](hosting["installer_of"](world.base, kind=(*world.args, "engine")[1]))


def by_approval(world):
    from democrai_sandbox.policy import AccessDecision, DecisionCode
    from democrai_sandbox.runtime.worker.process import CallIdentity

    hosting = world.load(world.args[0])
    asked = []

    class Office:
        def decide(self, question):
            asked.append(list(question))
            if question.target.startswith(world.args[1]):
                return AccessDecision(True, DecisionCode.PERMANENT_APPROVAL, False, "")
            if question.target.startswith("http"):
                return AccessDecision(False, DecisionCode.PENDING, True, "Waiting.", "r-7")
            return False

    installer = hosting["installer_of"](world.base, decider=Office())
    told = hosting["install"](installer, caller=CallIdentity("ada", "", "s1"))
    return {**told, "asked": [question for question in asked if question[3] == "network"]}


def test_a_file_from_another_host_is_refused_at_once(workshop, web, kind="extractor"):
    """The error names the denial; a declaration for the runtime phase does not help."""
    wheel = workshop.wheel("helper").name
    requirement = f"helper @ {web.url}/{wheel}"
    workshop.extension(requirement, kind=kind, runtime={"access": [rule("receive", web.url)]})
    told = workshop.host(once, kind)
    assert told["error"] == "InstallFailed"
    assert told["denials"] == [f"{EXTERNAL_URL_LOCKED} (sandbox_network_denied:demo:{web.url}/{wheel})"]
    assert web.asked == []
    workshop.extension(requirement, kind=kind, access=[rule("receive", f"{web.url}/{wheel}")])
    assert workshop.host(once, kind)["packages"] == ["helper==1.0"]


def test_links_of_an_index_to_another_host_need_to_be_known(workshop, web):
    """The index itself is allowed because it is configured; targets of its links only if they are configured too."""
    wheel = workshop.wheel("helper").name
    page = workshop.wheels / "simple" / "helper" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><a href="{web.other_url}/{wheel}">{wheel}</a>')
    workshop.extension("helper")
    index = {"PIP_INDEX_URL": f"{web.url}/simple", "PIP_CONFIG_FILE": "/dev/null"}
    told = workshop.host(once, network=index)
    assert told["error"] == "InstallFailed"
    assert told["denials"] == [f"{EXTERNAL_URL_LOCKED} (sandbox_network_denied:demo:{web.other_url}/{wheel})"]
    assert {path for _, path in web.asked} == {"/simple/helper/"}
    trusted = {**index, "PIP_TRUSTED_HOST": web.other_url.removeprefix("http://")}
    assert workshop.host(once, network=trusted)["packages"] == ["helper==1.0"]


def test_what_is_not_declared_is_put_to_the_access_service(workshop, web):
    """Ask for the extension itself, with the identity of the installing user; report a pending request as pending."""
    wheel = workshop.wheel("helper").name
    workshop.extension(f"helper @ {web.url}/{wheel}")
    told = workshop.host(by_approval, web.url)
    assert told["packages"] == ["helper==1.0"], told
    assert told["asked"] == [
        ["demo", "engine", ["engine:demo"], "network", "receive", f"{web.url}/{wheel}"]
        + [told["asked"][0][6], "ada", None, "s1", "", None]
    ]
    workshop.extension(f"helper @ {web.other_url}/{wheel}")
    told = workshop.host(by_approval, web.url)
    assert told["denials"] == [f"Waiting. (sandbox_network_denied:demo:{web.other_url}/{wheel})"]


def from_index(world):
    """Install from the index of pip's own configuration, if it is reachable."""
    import asyncio
    import os
    import ssl
    from pathlib import Path
    from urllib.request import urlopen

    from democrai_sandbox.runtime.installs.pip import find_pip, read_configuration
    from democrai_sandbox.runtime.worker.process import PlainStarter

    hosting = world.load(world.args[0])
    pip = find_pip(Path(world.base, "data", "installs", "tools"))
    configuration = asyncio.run(read_configuration(PlainStarter(), pip))
    authorities = configuration.cert or os.environ.get("REQUESTS_CA_BUNDLE")
    try:
        page = f"{configuration.index_url.rstrip('/')}/iniconfig/"
        urlopen(page, timeout=20, context=ssl.create_default_context(cafile=authorities)).close()
    except OSError as error:
        return {"unreachable": str(error)}
    return hosting["install"](hosting["installer_of"](world.base))


def test_a_package_from_the_index(workshop):
    """A small package comes from the index that this machine's pip is configured with."""
    workshop.extension("iniconfig")
    told = workshop.host(from_index, network=workshop.online())
    if "unreachable" in told:
        pytest.skip("no index can be reached from here")
    assert [name.partition("==")[0] for name in told["packages"]] == ["iniconfig"], told
