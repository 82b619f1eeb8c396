"""The packet filter: packets that its chains permit, and atomic changes."""

from __future__ import annotations

import os

import pytest

from democrai_sandbox.kernel.helper.iptables import (
    Allow,
    Commands,
    FilterChange,
    FilterTable,
    IpVersion,
    Owner,
    jump,
    parse,
    tables,
)
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.netlab import needs_netlab, shared_lab
from tests.services.golden import sentence
from tests.services.rows import rows

OWNER = Owner(4711, 99, 7)


def listing(*lines):
    return parse("\n".join(["*filter", ":OUTPUT ACCEPT [0:0]", *lines, "COMMIT"]))


def test_a_listing_tells_chains_jumps_and_owners():
    found = listing(
        ":DEMOCRAI_OS_4711_A - [0:0]",
        ":DEMOCRAI_OS_4711_S3 - [0:0]",
        ":DOCKER - [0:0]",
        '-A OUTPUT -m cgroup --path "a/b" -m comment --comment "democrai 4711 99 7" -j DEMOCRAI_OS_4711_S3',
        "-A OUTPUT -o lo -j ACCEPT",
        '-A OUTPUT -m cgroup --path a -m comment --comment "democrai 4711 99 7" -j DEMOCRAI_OS_4711_A',
        "-A DEMOCRAI_OS_4711_A -j REJECT",
        "-A DOCKER -j RETURN",
    )
    assert found.chains == {"DEMOCRAI_OS_4711_A": 1, "DEMOCRAI_OS_4711_S3": 0}
    assert [(each.chain, each.owner, each.foreign_before) for each in found.jumps] == [
        ("DEMOCRAI_OS_4711_S3", OWNER, False),
        ("DEMOCRAI_OS_4711_A", OWNER, True),
    ]


@rows(
    "line",
    [
        "-A OUTPUT -j DEMOCRAI_OS_x_A",
        "-A OUTPUT -j DEMOCRAI_OS_1_C",
        '-A OUTPUT -m comment --comment "democrai 1 2 3" -j ACCEPT',
        '-A OUTPUT -m comment --comment " -j DEMOCRAI_OS_1_A" -j ACCEPT',
        "-A OUTPUT",
        ":DEMOCRAI_OS_1_A_B - [0:0]",
    ],
)
def test_rules_that_only_look_like_ours_are_not_taken_for_ours(line):
    found = listing(line)
    assert not found.chains
    assert not found.jumps


def test_a_jump_without_a_comment_is_nobodys():
    assert listing("-A OUTPUT -m cgroup --path a -j DEMOCRAI_OS_1_A").jumps[0].owner is None


def test_chain_names_stay_within_what_the_filter_takes():
    assert len(Owner(4194304, 1, 1).chain("S999999")) <= 28


def test_without_iptables_the_error_names_the_program_and_the_fix(tmp_path):
    with pytest.raises(RequestRefused) as caught:
        tables(Commands(places=(str(tmp_path),)))
    assert caught.value.reason == "no_iptables"
    assert "iptables-save" in caught.value.error
    assert "install" in caught.value.fix


def only(tmp_path, *names):
    for name in names:
        os.symlink(Commands().find(name), tmp_path / name)
    return Commands(places=(str(tmp_path),))


def network(tmp_path, **states):
    for name, state in states.items():
        folder = tmp_path / "net" / "ipv6" / "conf" / name
        folder.mkdir(parents=True)
        (folder / "disable_ipv6").write_text(f"{state}\n")
    return tmp_path / "net"


@needs_netlab
def test_ipv6_without_ip6tables_is_refused_and_not_left_open(tmp_path):
    commands = only(tmp_path, "iptables-save", "iptables-restore")
    with pytest.raises(RequestRefused) as caught:
        tables(commands, network(tmp_path, all=1, default=1, lo=0))
    assert caught.value.reason == "no_ip6tables"
    assert "disable_ipv6" in caught.value.fix


@needs_netlab
def test_ipv6_turned_off_needs_no_ip6tables_and_is_reported(tmp_path):
    commands = only(tmp_path, "iptables-save", "iptables-restore")
    found, warnings = tables(commands, network(tmp_path, all=1, default=1, lo=1))
    assert [each.family for each in found] == [IpVersion.IPV4]
    sentence("IPv6 is turned off", *warnings)


@needs_netlab
def test_a_kernel_without_ipv6_is_reported(tmp_path):
    found, warnings = tables(Commands(), tmp_path)
    assert [each.family for each in found] == [IpVersion.IPV4]
    sentence("a kernel without IPv6", *warnings)


def test_a_program_that_hangs_is_ended_and_told(tmp_path):
    script = tmp_path / "iptables-save"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    with pytest.raises(RequestRefused) as caught:
        Commands(seconds=0.2).run([str(script)])
    assert caught.value.reason == "table_failed"
    assert "0.2" in caught.value.error


def test_programs_get_nothing_of_the_environment(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    commands = Commands()
    said = commands.run([commands.find("env")]).stdout.split()
    assert not any(word.startswith("LD_PRELOAD_X") for word in said)


@pytest.fixture(scope="module")
def lab():
    with shared_lab() as made:
        yield made


@needs_netlab
@pytest.mark.parametrize("family", list(IpVersion))
def test_a_bad_line_undoes_the_whole_change(lab, family):
    with lab.inside.entered():
        table = FilterTable(Commands(), family)
        before = lab.inside.rules(family.value).splitlines()[1:-1]
        change = FilterChange()
        change.define(OWNER.chain("A"), [Allow("tcp", "10.9.9.9" if family is IpVersion.IPV4 else "fd99::9", 443)])
        change.insert(jump("no_such_group", OWNER, OWNER.chain("A")))
        with pytest.raises(RequestRefused) as caught:
            table.commit(change)
    assert caught.value.reason == "table_failed"
    # wording: of iptables itself, here and below
    assert "Try `" not in caught.value.error
    assert [line for line in lab.inside.rules(family.value).splitlines()[1:-1] if "DEMOCRAI" in line] == [
        line for line in before if "DEMOCRAI" in line
    ]


@needs_netlab
def test_what_the_tool_refuses_is_told_in_its_own_words(lab):
    with lab.inside.entered():
        change = FilterChange()
        change.drop("DEMOCRAI_OS_1_A")
        with pytest.raises(RequestRefused) as caught:
            FilterTable(Commands(), IpVersion.IPV4).commit(change)
    assert caught.value.reason == "table_failed"
    assert (
        "DEMOCRAI_OS_1_A" in caught.value.error or "does not exist" in caught.value.error or "No chain" in str(caught)
    )


@needs_netlab
def test_without_rights_the_filter_says_so(lab, tmp_path):
    wrapper = tmp_path / "iptables-save"
    wrapper.write_text('#!/bin/sh\nexec setpriv --reuid 65534 --clear-groups --bounding-set -all iptables-save "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "iptables-restore").symlink_to("/bin/true")
    with lab.inside.entered(), pytest.raises(RequestRefused) as caught:
        FilterTable(Commands(places=(str(tmp_path),)), IpVersion.IPV4).read()
    assert caught.value.reason == "not_privileged"
    assert "root" in caught.value.fix
