"""Where packages may come from: pip's own hosts, what the install section declares, what was approved. Nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runtime.installs.conftest import rule


def once(world):
    hosting = world.load(world.args[0])
    return hosting["install"](hosting["installer_of"](world.base, kind=(*world.args, "engine")[1]))


def by_approval(world):
    from democrai_sandbox.policy import AccessDecision, DecisionCode
    from democrai_sandbox.runtime.worker.interface import Identity

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
    told = hosting["install"](installer, caller=Identity("ada", "", "s1"))
    return {**told, "asked": [question for question in asked if question[3] == "network"]}


def test_a_file_from_another_host_is_refused_at_once(workshop, web, kind="extractor"):
    """The error says what was refused; declared for the runtime phase it still is."""
    wheel = workshop.wheel("helper").name
    requirement = f"helper @ {web.url}/{wheel}"
    workshop.extension(requirement, kind=kind, runtime={"access": [rule("receive", web.url)]})
    told = workshop.host(once, kind)
    assert told["error"] == "InstallFailed"
    assert told["denials"] == [f"External URL is locked. (sandbox_network_denied:demo:{web.url}/{wheel})"]
    assert web.asked == []
    workshop.extension(requirement, kind=kind, access=[rule("receive", f"{web.url}/{wheel}")])
    assert workshop.host(once, kind)["packages"] == ["helper==1.0"]


def test_links_of_an_index_to_another_host_need_to_be_known(workshop, web):
    """The index itself is allowed because it is configured; where its pages lead only if that is configured too."""
    wheel = workshop.wheel("helper").name
    page = workshop.wheels / "simple" / "helper" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<!DOCTYPE html><a href="{web.other_url}/{wheel}">{wheel}</a>')
    workshop.extension("helper")
    index = {"PIP_INDEX_URL": f"{web.url}/simple", "PIP_CONFIG_FILE": "/dev/null"}
    told = workshop.host(once, network=index)
    assert told["error"] == "InstallFailed"
    assert told["denials"] == [f"External URL is locked. (sandbox_network_denied:demo:{web.other_url}/{wheel})"]
    assert {path for _, path in web.asked} == {"/simple/helper/"}
    trusted = {**index, "PIP_TRUSTED_HOST": web.other_url.removeprefix("http://")}
    assert workshop.host(once, network=trusted)["packages"] == ["helper==1.0"]


def test_what_is_not_declared_is_put_to_the_access_service(workshop, web):
    """For the extension itself, with the identity of whoever installs; what is pending is told as pending."""
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


def test_a_package_from_the_index(workshop):
    """A small package comes from the index that this machine's pip is configured with."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(workshop.base),
        "iniconfig",
    ]
    if subprocess.run(command, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("no index can be reached from here")
    workshop.extension("iniconfig")
    told = workshop.host(once, network=workshop.online())
    assert [name.partition("==")[0] for name in told["packages"]] == ["iniconfig"], told
