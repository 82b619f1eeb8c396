"""Observed accesses of subjects: counted, limited, and recorded without side effects."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from democrai_sandbox.errors import FilesystemDenied, NetworkDenied, SandboxDenied, SubprocessDenied
from democrai_sandbox.guard import DenialRecorder, EndpointObserver, ObservedEndpoint
from democrai_sandbox.host.observations import Observations
from democrai_sandbox.policy import Subject

REPORTS = Subject.parse("module:reports")


def denied(target="/srv/a", *, kind=FilesystemDenied, subject="reports", operation="read"):
    return kind(target, subject=subject, subject_kind="module", operations=(operation,))


def endpoint(host="api.example.com", port=443, addresses=("192.0.2.7",), subject="reports"):
    return ObservedEndpoint((subject, "module", host, addresses, port))


def test_the_guard_takes_it_for_both():
    """It implements the interfaces of the denial recorder and the endpoint observer."""
    assert isinstance(Observations(), DenialRecorder)
    assert isinstance(Observations(), EndpointObserver)


def test_the_same_is_one_entry_with_a_count():
    """With the time of the first and the last; another operation or target is another entry."""
    seen, before = Observations(), datetime.now(UTC)
    for _ in range(3):
        seen.record(denied())
    seen.record(denied(operation="delete"))
    seen.observe(endpoint())
    seen.observe(endpoint())
    found = {(one.resource_type, one.operation, one.target, one.result): one for one in seen.of(REPORTS)}
    assert {key: one.count for key, one in found.items()} == {
        ("filesystem", "read", "/srv/a", "denied"): 3,
        ("filesystem", "delete", "/srv/a", "denied"): 1,
        ("network", "connect", "api.example.com:443", "allowed"): 2,
    }
    assert all(before <= one.first <= one.last <= datetime.now(UTC) for one in found.values())
    assert seen.of(Subject.parse("module:other")) == ()
    assert seen.subjects() == (REPORTS,)


def test_the_latest_comes_first():
    """Also for an access that was seen before."""
    seen = Observations()
    for target in ("/a", "/b", "/a"):
        seen.record(denied(target))
    assert seen.of(REPORTS)[0].last >= seen.of(REPORTS)[1].last
    assert {one.target for one in seen.of(REPORTS)} == {"/a", "/b"}


def test_a_connection_to_an_address_is_written_as_one():
    """A host without a name is its address; an IPv6 address is in brackets."""
    seen = Observations()
    seen.observe(endpoint(host=""))
    seen.observe(endpoint(host="2001:db8::1"))
    assert {one.target for one in seen.of(REPORTS)} == {"192.0.2.7:443", "[2001:db8::1]:443"}


def test_what_no_rule_is_about_has_a_word():
    """Every denial is recorded, even of an unknown type."""
    seen = Observations()
    seen.record(denied("ls", kind=SubprocessDenied, operation=""))
    seen.record(denied("https://x.example/", kind=NetworkDenied, operation="send"))
    seen.record(denied("?", kind=SandboxDenied))
    assert {one.resource_type for one in seen.of(REPORTS)} == {"process", "network", "other"}


def test_what_the_host_tries_itself_is_no_observation():
    """Its canaries are denied on purpose."""
    seen = Observations()
    seen.record(FilesystemDenied("/x", subject="canary", subject_kind="core", operations=("read",)))
    assert (seen.subjects(), seen.totals()) == ((), {})


def test_totals_count_by_layer_and_result():
    """They include entries that were already dropped."""
    seen = Observations()
    for number in range(450):
        seen.record(denied(f"/{number}"))
    seen.observe(endpoint())
    assert seen.totals() == {("guard", "denied"): 450, ("guard", "allowed"): 1}


def test_memory_is_bounded():
    """Many subjects, many targets and long targets do not exceed the limits; the latest stay."""
    seen = Observations()
    for number in range(700):
        seen.record(denied(subject=f"m{number}"))
    for number in range(300):
        seen.record(denied(f"/{number}/" + "x" * 100_000))
    assert len(seen.subjects()) == 500
    found = seen.of(REPORTS)
    assert len(found) == 200
    assert {one.target.split("/")[1] for one in found} == {str(number) for number in range(100, 300)}
    assert max(len(one.target) for one in found) <= 2000
    assert seen.of(Subject.parse("module:m0")) == ()
    assert seen.of(Subject.parse("module:m699")) != ()


def test_hostile_names_are_kept_as_they_are_and_never_raise():
    """Invalid subject names are counted, but not returned as subjects."""
    seen = Observations()
    for subject in ("", "a\nb", "\u202e", "x" * 10_000, "\udcff"):
        seen.record(denied("\udcff\x00\u202e", subject=subject))
    seen.record(denied(None))
    assert REPORTS in seen.subjects()
    assert not {"module:", "module:a\nb", "module:\u202e"} & set(map(str, seen.subjects()))
    assert seen.totals() == {("guard", "denied"): 6}


def test_many_threads_lose_nothing():
    """Counts are exact with several threads."""
    seen = Observations()

    def tell():
        for _ in range(500):
            seen.record(denied())

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.count for one in seen.of(REPORTS)] == [2000]
