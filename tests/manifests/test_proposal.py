"""Smallest declarations for observed accesses: nothing is missing, and nothing is superfluous."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests import make_manifest
from democrai_sandbox.manifests.models import LONGEST_REMARK
from democrai_sandbox.manifests.proposal import ObservedUse, Proof, Proposal, propose, suggest
from democrai_sandbox.policy import (
    VALID_OPERATIONS,
    Operation,
    ResourceType,
    Subject,
    TargetKind,
    compile_policy,
    file_access,
    parse_request,
)

NAMES = st.sampled_from(["a", "b", "c", "d"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda parts: "/srv/" + "/".join(parts))
HOSTS = st.sampled_from(["a.example.com", "b.example.com", "127.0.0.1", "localhost", "10.1.2.3", "[::1]"])
PORTS = st.sampled_from(["", ":80", ":8443"])
URLS = st.builds(
    lambda scheme, host, port, path: f"{scheme}://{host}{port}" + "".join(f"/{part}" for part in path),
    st.sampled_from(["http", "https", "wss"]),
    HOSTS,
    PORTS,
    st.lists(NAMES | st.sampled_from(["..", "%2f"]), max_size=3),
)
TARGETS = {
    ResourceType.FILESYSTEM: PATHS,
    ResourceType.NETWORK: URLS | st.builds("{}{}".format, HOSTS, PORTS) | st.just("unix:/run/x.sock"),
    ResourceType.SYSTEM_DEPENDENCY: st.sampled_from(["ffmpeg", "git"]),
}
OBSERVED = st.sampled_from(list(ResourceType)).flatmap(
    lambda kind: st.builds(ObservedUse, st.just(kind), st.sampled_from(VALID_OPERATIONS[kind]), TARGETS[kind])
)
SEEN = st.lists(OBSERVED, max_size=12)
MOST = st.none() | st.integers(0, 4)


def allowed(rules, seen):
    """Return the observed accesses that rules allow, matched as in every check."""
    policy = compile_policy(subject=Subject("module", "x"), rules=rules)
    return [one for one in seen if allows(policy, one)]


def allows(policy, one):
    if one.resource_type == ResourceType.FILESYSTEM:
        return policy.paths.allows(one.target, file_access(Operation(one.operation)))
    if one.resource_type == ResourceType.NETWORK:
        target = parse_request(one.target)
        is_lookup = target.kind is TargetKind.HOST and target.port is None
        named = is_lookup and policy.network.find_name(target.host) is not None
        return named or policy.network.allows(Operation(one.operation), target)
    return any((rule.operation, rule.normalized_target) == (one.operation, one.target) for rule in policy.rules)


@given(SEEN, MOST)
def test_everything_that_was_seen_is_allowed(seen, most):
    """This applies to any observations and any merging."""
    proposal = propose(seen, most=most)
    assert proposal.unread == ()
    assert allowed(proposal.rules, seen) == seen
    assert all(map(proposal.allows, seen))


@given(SEEN, MOST)
def test_every_entry_is_needed(seen, most):
    """Without any one of them, an observed access would be denied."""
    proposal = propose(seen, most=most)
    for entry in proposal.entries:
        others = [rule for other in proposal.entries if other is not entry for rule in other.rules]
        assert allowed(others, seen) != seen, entry
        assert len(set(entry.operations)) == len(entry.operations)


@given(SEEN, MOST)
def test_a_proposal_from_a_proposal_is_the_same(seen, most):
    """A recorded run under the proposal proposes nothing new."""
    first = propose(seen, most=most)
    again = propose(
        [ObservedUse(rule.resource_type, rule.operation, rule.normalized_target) for rule in first.rules], most=most
    )
    assert [(entry.operations, entry.target) for entry in again.entries] == [
        (entry.operations, entry.target) for entry in first.entries
    ]


@given(SEEN)
def test_only_what_was_seen_is_allowed_where_no_note_says_otherwise(seen):
    """A target without a note is an observed one."""
    requests = {parse_request(one.target).normalized for one in seen if one.resource_type == ResourceType.NETWORK}
    others = {one.target for one in seen if one.resource_type != ResourceType.NETWORK}
    assert {entry.target for entry in propose(seen).entries if not entry.notes} <= requests | others


def entries(*seen, **options):
    return [
        (list(map(str, entry.operations)), entry.target, bool(entry.notes))
        for entry in propose([ObservedUse(*one) for one in seen], **options).entries
    ]


def test_operations_on_one_target_are_one_entry():
    """The operations are in the usual order of manifests."""
    seen = [("filesystem", act, "/srv/a") for act in ("modify", "read", "create")]
    assert entries(*seen) == [(["read", "create", "modify"], "/srv/a", False)]


def test_queries_are_no_part_of_a_target():
    """Rules have scheme, host, port and path."""
    seen = [("network", "receive", f"https://api.example.com/v1/x?page={page}") for page in range(3)]
    assert entries(*seen) == [(["receive"], "https://api.example.com/v1/x", True)]


def test_a_name_that_is_looked_up_needs_nothing_beside_a_rule_for_its_host():
    """Without such a rule, the lookup needs a separate entry."""
    lookup = ("network", "connect", "api.example.com")
    assert entries(lookup) == [(["connect"], "api.example.com", True)]
    request = ("network", "connect", "api.example.com:443")
    assert entries(lookup, request) == [(["connect"], "api.example.com:443", False)]


def test_an_entry_that_cannot_be_as_narrow_as_its_use_says_so():
    """A folder, known as one or by what lies below it, and a URL allow what is below."""
    folder = ("filesystem", "create", "/srv/out")
    assert entries(folder) == [(["create"], "/srv/out", False)]
    assert entries(folder, folders={"/srv/out"}) == [(["create"], "/srv/out", True)]
    file = ("filesystem", "modify", "/srv/out/a")
    assert entries(folder, file) == [(["create"], "/srv/out", True), (["modify"], "/srv/out/a", False)]
    assert entries(("network", "receive", "https://api.example.com/v1")) == [
        (["receive"], "https://api.example.com/v1", True)
    ]


def test_what_was_not_run_without_an_entry_is_marked():
    """Each operation and each import by itself; a proof takes the mark away, unless only the result differs."""
    seen = [ObservedUse("filesystem", act, "/srv/a") for act in ("read", "modify")]
    found = propose(seen, ["ctypes"])
    assert found.unverified == found.uses == (*seen, ObservedUse.of_import("ctypes"))
    assert len(found.review) == 3
    proofs = {seen[0]: Proof.FAILS, seen[1]: Proof.DIFFERS, ObservedUse.of_import("ctypes"): Proof.FAILS_AGAIN}
    proven = replace(found, proofs=proofs)
    assert (proven.unverified, len(proven.review)) == ((), 1)


def test_a_remark_fits_into_a_manifest():
    """Characters that cannot be seen are escaped, and long targets cut."""
    manifest = make_manifest({"name": "m"}, "module")
    found = suggest(manifest, [ObservedUse("filesystem", "read", "/srv/\u202e" + "x" * 3000)])
    [line] = found.manifest.review
    assert len(line) == LONGEST_REMARK and "\\u202e" in line and line.isascii()


def test_names_that_change_with_each_run_become_their_folder():
    """Names of the tempfile module and UUIDs are recognized; a note says so."""
    seen = [("filesystem", "create", f"/srv/out/{name}") for name in ("tmpab12cd3_", ".x.json.tmpzzzzzzzz")]
    assert entries(*seen) == [(["create"], "/srv/out", True)]
    assert entries(("filesystem", "read", "/srv/jobs/1b4e28ba-2fa1-11d2-883f-0016d3cca427/in")) == [
        (["read"], "/srv/jobs", True)
    ]
    assert entries(("filesystem", "read", "/srv/out/template")) == [(["read"], "/srv/out/template", False)]


def test_many_files_of_a_folder_become_the_folder_only_if_that_is_asked_for():
    """They are merged only above the limit, and never into a top-level folder."""
    seen = [("filesystem", "read", f"/srv/data/{number}.csv") for number in range(4)]
    assert len(entries(*seen)) == 4
    assert entries(*seen, most=4) == entries(*seen)
    assert entries(*seen, most=3) == [(["read"], "/srv/data", True)]
    top = [("filesystem", "read", f"/etc/{number}") for number in range(4)]
    assert len(entries(*top, most=0)) == 4


def test_a_path_that_servers_read_in_different_ways_needs_the_site():
    """Only a rule for the site covers it, and a note says so."""
    assert entries(("network", "receive", "https://a.example.com/x/../y")) == [
        (["receive"], "https://a.example.com", True)
    ]


def test_roots_of_imports_stand_for_their_native_halves():
    """ctypes includes _ctypes."""
    assert propose([], ["_ctypes", "ctypes", "_cffi_backend"]).allowed_imports == ("_cffi_backend", "ctypes")


def test_what_no_rule_can_say_is_kept_apart():
    """A recording comes from a subject's process and may contain anything."""
    odd = [
        ObservedUse("filesystem", "fly", "/x"),
        ObservedUse("network", "receive", "no host"),
        ObservedUse("what", "read", "/"),
    ]
    proposal = propose(odd)
    assert (proposal.entries, set(proposal.unread)) == ((), set(odd))
    assert not Proposal((), ()).allows(odd[0])
