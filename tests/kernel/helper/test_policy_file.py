"""The policy file: opened once with its owner's rights, checked on that descriptor, and fully validated."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.kernel.helper import policy as policies
from democrai_sandbox.kernel.helper.policy import PolicyEndpoint, parse_policy, read_policy
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.helper_process import Stage, needs_root
from tests.services.golden import sentence
from tests.services.rows import rows

GOOD = (
    b'{"version": 1, "endpoints": [{"host": "api.example.com", "port": 443, "protocol": "tcp", "source": "module:x"}]}'
)


def _opened(path):
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _reason(call, *arguments):
    with pytest.raises(RequestRefused) as caught:
        call(*arguments)
    assert caught.value.error and caught.value.fix
    return caught.value.reason


def _read(path):
    return read_policy(str(path), os.getuid(), _opened)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "policy.json"
    path.write_bytes(GOOD)
    path.chmod(0o600)
    return path


def test_a_good_file_is_read_with_the_digest_of_its_bytes(file):
    """The result contains the endpoints and the digest of the content."""
    found = _read(file)
    assert found.endpoints == (PolicyEndpoint("api.example.com", 443, "tcp", "module:x", ()),)
    assert found.digest == hashlib.sha256(GOOD).hexdigest()


def test_what_is_no_plain_private_file_is_refused(file, tmp_path):
    """Links, folders, pipes, hard links, writable and oversized files each have their reason."""
    link = tmp_path / "link"
    link.symlink_to(file)
    assert _reason(_read, link) == "policy_type"
    assert _reason(_read, tmp_path) == "policy_type"
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert _reason(_read, tmp_path / "pipe") == "policy_type"
    assert _reason(_read, "/dev/null") in {"policy_type", "policy_owner"}
    assert _reason(_read, tmp_path / "none") == "policy_missing"
    for mode in (0o620, 0o602, 0o666):
        file.chmod(mode)
        assert _reason(_read, file) == "policy_mode"
    file.chmod(0o644)
    assert _read(file).endpoints
    os.link(file, tmp_path / "second")
    assert _reason(_read, file) == "policy_type"
    (tmp_path / "second").unlink()
    os.truncate(file, policies.LARGEST_FILE + 1)
    assert _reason(_read, file) == "policy_too_large"
    assert _reason(read_policy, str(file), os.getuid() + 1, _opened) == "policy_owner"


def test_a_torn_file_is_refused_whole(file):
    """A truncated file, an empty one and one that changes while it is read permit nothing."""
    for cut in (0, 1, 20, len(GOOD) - 1):
        file.write_bytes(GOOD[:cut])
        assert _reason(_read, file) == "policy_torn"
    file.write_bytes(GOOD)

    original = policies._read

    def meanwhile(descriptor):
        data = original(descriptor)
        with file.open("ab") as other:
            other.write(b" ")
        return data

    policies._read = meanwhile
    try:
        assert _reason(_read, file) == "policy_torn"
    finally:
        policies._read = original


def test_a_file_that_is_replaced_after_it_was_opened_is_not_the_one_that_counts(file, tmp_path):
    """If the file is replaced meanwhile, the newer one is read."""
    replaced = []

    def opened(path):
        descriptor = _opened(path)
        if not replaced:
            fresh = tmp_path / "fresh"
            fresh.write_bytes(GOOD.replace(b"443", b"444"))
            fresh.chmod(0o600)
            fresh.rename(path)
            replaced.append(path)
        return descriptor

    assert read_policy(str(file), os.getuid(), opened).endpoints[0].port == 444

    def always(path):
        replaced.clear()
        return opened(path)

    assert _reason(read_policy, str(file), os.getuid(), always) == "busy"


@rows(
    "text",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"version": 2, "endpoints": []}',
        b'{"version": true, "endpoints": []}',
        b'{"version": 1.0, "endpoints": []}',
        b'{"version": 1}',
        b'{"version": 1, "endpoints": {}}',
        b'{"version": 1, "endpoints": [], "more": 1}',
        b'{"version": 1, "endpoints": [1]}',
        b'{"version": 1, "endpoints": [{}]}',
    ],
)
def test_another_shape_is_invalid(text):
    """An unknown version, missing and unknown keys, and wrong types are reported as such."""
    assert _reason(parse_policy, text) == "policy_invalid"


@rows(
    "text",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version": 1, "version": 1, "endpoints": []}',
        b'{"version": NaN, "endpoints": []}',
        b'{"version": ' + b"9" * 10_000 + b"}",
        GOOD + GOOD,
    ],
)
def test_what_is_not_json_is_torn(text):
    """Also deep nesting, duplicate keys, and JavaScript constants."""
    assert _reason(parse_policy, text) == "policy_torn"


def _one(**changes):
    entry = {"host": "api.example.com", "port": 443, "protocol": "tcp", **changes}
    return parse_policy(json.dumps({"version": 1, "endpoints": [entry]}).encode()).endpoints[0]


@rows(
    "changes",
    [
        {"host": "*.example.com"},
        {"host": ""},
        {"host": "."},
        {"host": "a..b"},
        {"host": "-a.example"},
        {"host": "a b"},
        {"host": "api.example.com/24"},
        {"host": "10.0.0.0/8"},
        {"host": "10.0.0.1 -j ACCEPT"},
        {"host": "a\n-A OUTPUT -j ACCEPT"},
        {"host": "münchen.example"},
        {"host": "\ud800"},
        {"host": "1.2.3"},
        {"host": "2130706433"},
        {"host": "0x7f.1"},
        {"host": "127.0.0.01"},
        {"host": "[::1]"},
        {"host": "fe80::1%eth0"},
        {"host": "a" * 64 + ".example"},
        {"host": "a." * 127 + "example"},
        {"host": 5},
        {"host": None},
        {"port": 0},
        {"port": 65536},
        {"port": -1},
        {"port": "443"},
        {"port": True},
        {"port": 443.0},
        {"port": None},
        {"protocol": "icmp"},
        {"protocol": ["tcp"]},
        {"protocol": None},
        {"source": 1},
        {"source": "x" * 2000},
        {"addresses": "1.2.3.4"},
        {"addresses": ["example.com"]},
        {"addresses": ["0.0.0.0/0"]},
        {"addresses": [1]},
        {"addresses": ["1" * 100]},
        {"addresses": ["1.2.3.4"] * 257},
        {"extra": 1},
    ],
)
def test_an_endpoint_that_is_not_one_host_and_one_port_is_refused(changes):
    """Input that could widen a rule is rejected, with its place."""
    with pytest.raises(RequestRefused, match="/endpoints/0") as caught:
        _one(**changes)
    assert caught.value.reason == "policy_invalid" and caught.value.error.isascii()


def test_hosts_and_addresses_come_out_in_one_notation():
    """Case, a trailing dot, long forms and mapped addresses are normalized; "any address" becomes loopback."""
    assert _one(host="API.Example.com.").host == "api.example.com"
    assert _one(host="my_service").host == "my_service"
    assert _one(host="0:0:0:0:0:0:0:1").host == "::1"
    assert _one(host="::ffff:10.0.0.1").host == "10.0.0.1"
    assert _one(host="0.0.0.0").host == "127.0.0.1" and _one(host="::").host == "::1"
    found = _one(addresses=["10.0.0.1", "::ffff:10.0.0.1", "2001:DB8::0001", "0.0.0.0", "::"], protocol="udp")
    assert found.addresses == ("10.0.0.1", "2001:db8::1") and found.protocol == "udp"


def test_all_problems_are_told_at_once_and_not_without_end():
    """The first ten problems, and the number of the others."""
    entries = [{"host": "*", "port": 0}] * 20
    with pytest.raises(RequestRefused) as caught:
        parse_policy(json.dumps({"version": 1, "endpoints": entries}).encode())
    assert "/endpoints/4/port" in caught.value.error and "/endpoints/5/" not in caught.value.error
    assert " 30 " in caught.value.error
    many = [{"host": "a.example", "port": 1}] * (policies.MOST_ENDPOINTS + 1)
    assert _reason(parse_policy, json.dumps({"version": 1, "endpoints": many}).encode()) == "policy_invalid"


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
_entries = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("host", "port", "protocol", "source", "addresses", "other"), _values)
)


@given(st.binary(max_size=200) | st.builds(lambda found: json.dumps(found).encode(), _values))
def test_no_bytes_make_it_fail_otherwise(data):
    """Any file content gives a policy or a refusal."""
    try:
        parse_policy(data)
    except RequestRefused:
        pass


@given(st.lists(_entries, max_size=4))
def test_no_entries_make_it_fail_otherwise(entries):
    """Any entry gives an endpoint or a refusal."""
    try:
        found = parse_policy(json.dumps({"version": 1, "endpoints": entries}).encode())
    except RequestRefused as refused:
        assert refused.reason in {"policy_invalid", "policy_torn"}
    else:
        assert len(found.endpoints) == len(entries)


@pytest.fixture(scope="module")
def stage():
    with Stage("nobody") as found:
        found.helper()
        yield found


def _applied(stage):
    return stage.ask("apply").get("reason", "ok")


@needs_root
def test_root_opens_nothing_that_the_user_could_not(stage):
    """A file of another user, a file in a closed folder, a link and a device are refused, as for the user."""
    stage.write_policy(("api.example.com", 443))
    assert _applied(stage) == "ok"
    os.chown(stage.policy, 0, 0)
    assert _applied(stage) == "policy_mode"  # owned by root, and private
    stage.policy.chmod(0o644)
    assert _applied(stage) == "policy_owner"
    stage.policy.unlink()
    assert _applied(stage) == "policy_missing"
    closed = stage.folder / "closed"
    closed.mkdir(mode=0o700)
    stage.write_policy(("api.example.com", 443), path=closed / "policy.json")
    stage.policy.symlink_to(closed / "policy.json")
    assert _applied(stage) == "policy_type"
    stage.policy.unlink()
    aside = stage.home.rename(stage.folder / "aside")
    try:
        stage.home.symlink_to(closed)  # the folder with the policy is a link to a folder that the user cannot enter
        with_link = stage.application.run(f"result = ask({str(aside / 'helper.sock')!r}, 'apply')")
        assert with_link["reason"] == "policy_mode"
    finally:
        stage.home.unlink()
        aside.rename(stage.home)
    os.mkfifo(stage.policy, 0o600)
    os.chown(stage.policy, stage.uid, stage.gid)
    before = time.monotonic()
    assert _applied(stage) == "policy_type" and time.monotonic() - before < 15
    stage.policy.unlink()
    stage.policy.mkdir()
    os.chown(stage.policy, stage.uid, stage.gid)
    assert _applied(stage) == "policy_type"
    stage.policy.rmdir()


@needs_root
def test_a_giant_and_a_torn_file_are_answered_and_nothing_is_applied(stage):
    """The helper continues, and the previous rules stay in force."""
    stage.write_policy(text=b" " * (5 * 1024 * 1024))
    before = len(stage.calls("apply"))
    assert _applied(stage) == "policy_too_large"
    stage.write_policy(text=GOOD[:40])
    assert _applied(stage) == "policy_torn"
    stage.write_policy(text=b"[" * 1_000_000)
    assert _applied(stage) == "policy_torn"
    stage.write_policy(text=b'{"version": 1, "endpoints": [{"host": "*", "port": 1}]}')
    assert _applied(stage) == "policy_invalid"
    assert len(stage.calls("apply")) == before
    stage.write_policy(("api.example.com", 443))
    assert _applied(stage) == "ok"


@needs_root
def test_a_user_whose_file_system_hangs_hangs_only_the_errand():
    """A file operation that hangs is killed; the helper reports it instead of hanging."""
    with Stage("nobody") as stage:
        folder = os.open(stage.home, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # stands for a folder that blocks each opener
            refusal = stage.helper(ready=False).refusal()
        finally:
            os.close(folder)
        assert refusal["reason"] == "socket_refused"
        sentence("a folder that hangs", refusal["error"], stage.folder)
