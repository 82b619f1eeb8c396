"""Sources of the egress allowlist: all kinds, their changes, and the endpoints that stay permitted."""

from __future__ import annotations

import os

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")

MODULE = """
from democrai_sandbox import sdk

@sdk.action("reaches")
def reaches(url):
    import urllib.request
    return urllib.request.urlopen(url, timeout=10).read().decode()
"""


class Egress:
    """Replaces the control: builds the list after each change notification, and records the notifications."""

    def __init__(self):
        from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder, EndpointSource, ObservedEndpoints

        self.builder = AllowlistBuilder()
        self.observed = ObservedEndpoints()
        self.builder.add(EndpointSource("observed", self.observed.endpoints))
        self.policy_file = self.socket = "/nowhere/to/be/found"
        self.changes = 0
        self.seen = []
        self.sets = []
        self.released = []

    def observe(self, endpoint):
        self.seen.append([f"{endpoint.subject_kind}:{endpoint.subject}", endpoint.host, endpoint.port])
        self.observed.observe(endpoint)

    def changed(self):
        self.changes += 1

    def refresh(self, reason, *, wait=False):
        self.changed()

    def child(self, endpoints):
        from democrai_sandbox.kernel.egress.allowlist import ChildCgroup

        self.sets.append(sorted([one.host, one.port, one.protocol] for one in endpoints))
        read, write = os.pipe()  # replaces cgroup.procs
        os.set_blocking(write, False)
        self.kept = read
        return ChildCgroup(write, len(self.sets), "")

    def release(self, child):
        self.released.append(child.id)

    def places(self):
        return {f"{one.host}:{one.port}/{one.protocol}": one.source for one in self.builder.build().endpoints}


async def until(condition):
    import asyncio

    for _ in range(600):
        if condition():
            return True
        await asyncio.sleep(0.05)
    return False


def gathered(world):
    from datetime import UTC, datetime

    egress = Egress()
    lab = (parts := world.load(LAB))["Lab"](world, egress=egress)
    house, entry = lab.house, parts["entry"]
    house.extension("reports", MODULE, access=[entry("receive", "https://api.example.com/v1")])
    house.extension("patterns", MODULE, access=[entry("connect", "*.example.org"), entry("read", "/srv")])
    house.extension(
        "whisper",
        "",
        kind="engine",
        runtime={"access": [entry("connect", "10.1.1.1:9000")], "allowed_config_urls": ["url", "more"]},
        install={"access": [entry("receive", "https://models.example.com")]},
    )
    house.extension("pdf", "", kind="extractor", runtime={"access": [entry("receive", "http://pdf.example.com:81/x")]})

    async def story():
        store, now = house.runtime.store, datetime.now(UTC)
        begun = egress.changes
        first = egress.places()
        house.register("search", "https://mcp.example.com/mcp")
        house.register("off", "https://off.example.com/mcp", enabled=False)
        told = [begun > 0, await until(lambda: egress.changes > begun)]
        begun = egress.changes
        store.set_settings("engine", "whisper", {"url": "http://gpu.example.com:8080/x", "more": ["nonsense"]}, now=now)
        told.append(await until(lambda: egress.changes > begun))
        begun = egress.changes
        house.decide("approval", "module:reports", "network", "receive", "https://later.example.com/a")
        house.decide("approval", "module:reports", "network", "receive", "https://twice.example.com/a")
        house.decide("denial", "module:reports", "network", "receive", "https://twice.example.com")
        told.append(await until(lambda: egress.changes > begun))
        whole = egress.builder.build()
        patterns = sorted(item.target for item in whole.not_materialised)
        return [told, first, egress.places(), patterns, [item.name for item in whole.failed_sources]]

    return lab.serve(story)


def test_all_sources_are_gathered_and_followed(case):
    """Manifests of each kind and phase, the registry, configured URLs and approvals; denials win."""
    told, first, places, patterns, failed = case.run(gathered)
    assert told == [True] * 4
    declared = {
        "api.example.com:443/tcp": "module:reports",
        "10.1.1.1:9000/tcp": "engine:whisper",
        "10.1.1.1:9000/udp": "engine:whisper",
        "models.example.com:443/tcp": "engine:whisper",
        "pdf.example.com:81/tcp": "extractor:pdf",
    }
    assert first == declared
    assert places == {
        **declared,
        "mcp.example.com:443/tcp": "mcp:search",
        "gpu.example.com:8080/tcp": "engine:whisper",
        "later.example.com:443/tcp": "access_policy_approvals",
    }
    assert patterns == ["*.example.org", "nonsense"]
    assert failed == []


def observed(world):
    egress = Egress()
    lab = (parts := world.load(LAB))["Lab"](world, egress=egress)
    house, entry = lab.house, parts["entry"]
    port = int(house.web.url.rpartition(":")[2])
    house.extension("demo", MODULE)
    house.extension("apart", MODULE)

    async def story():
        told = []
        for name in ("demo", "apart"):
            house.decide("approval", f"module:{name}", "network", "receive", house.web.url)
        for name in ("demo", "apart"):
            told.append(await lab.action(name, "reaches", url=f"{house.web.url}/x"))
        seen = [[label, host, number == port] for label, host, number in egress.seen]
        place = f"localhost:{port}/tcp"
        told.append(sorted(egress.places()[place].split(",")))
        for decision in house.admin("approvals").items:
            house.admin("revoke", decision.id)
        told.append(await until(lambda: place not in egress.places()))
        return [told, seen]

    return lab.serve(story, isolation={"module:apart": "process"})


def test_connections_are_observed_in_process_and_from_workers_and_go_with_their_approval(case):
    """The kernel is updated before the connection is opened; without its permission it is refused again."""
    told, seen = case.run(observed)
    assert told[:2] == ["GET /x", "GET /x"]
    assert seen == [["module:demo", "127.0.0.1", True], ["module:apart", "127.0.0.1", True]]
    assert told[2] == ["access_policy_approvals", "observed:module:apart", "observed:module:demo"]
    assert told[3] is True


CHILD = """
from democrai_sandbox import sdk

@sdk.action("starts")
async def starts():
    return (await sdk.tasks.run_subprocess(["true"])).returncode
"""


def own_sets(world):
    egress = Egress()
    lab = (parts := world.load(LAB))["Lab"](world, egress=egress)
    house, entry = lab.house, parts["entry"]
    house.extension("demo", CHILD, access=[entry("receive", "https://api.example.com/v1")])
    house.extension("pattern", CHILD, access=[entry("connect", "*.example.org")])
    house.extension("none", CHILD)

    async def story():
        told = []
        for name in ("demo", "pattern", "none"):
            told.append(await lab.action(name, "starts"))
        house.decide("approval", "module:none", "network", "connect", "10.0.0.1:7000")
        told.append(await lab.action("none", "starts"))
        noted = house.runtime.confinement.unenforced
        return [told, egress.sets, sorted(egress.released), {name: len(texts) for name, texts in noted.items()}]

    return lab.serve(story)


def test_a_child_gets_a_cgroup_for_the_endpoints_of_its_subject_and_gives_it_back(case):
    """Approvals in force count; a pattern has no endpoints, which is reported."""
    told, sets, released, noted = case.run(own_sets)
    assert told == [0] * 4
    approved = [["10.0.0.1", 7000, "tcp"], ["10.0.0.1", 7000, "udp"]]
    assert sets == [[["api.example.com", 443, "tcp"]], [], approved]
    assert released == [1, 2, 3]
    assert noted["module:demo"] == noted["module:none"] == 0
    assert noted["module:pattern"] > 0


def permitted(world):
    from democrai_sandbox.kernel.egress.allowlist import SourceEntry
    from democrai_sandbox.manifests import ManifestKind
    from democrai_sandbox.runtime.confinement.allowlist_sources import PermittedSource
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry

    class Source:
        name = "given"

        def __init__(self, *targets):
            self.targets = targets

        def endpoints(self):
            return [SourceEntry(target, "test") for target in self.targets]

    registry = Registry({ManifestKind.MODULE: {"demo": RegisteredExtension(ManifestKind.MODULE, "demo", "/x")}})
    source = Source(
        "https://api.example.com/v1", "*.example.org:80", "10.0.0.0/8", "bare.example.com", "unix:/run/x", "localhost:5"
    )
    ask = PermittedSource(registry, [source])
    hosts = [
        ("api.example.com", 443),
        ("api.example.com", 80),
        ("a.example.org", 80),
        ("a.example.org", 81),
        ("example.org", 80),
        ("10.2.3.4", 1),
        ("11.2.3.4", 1),
        ("bare.example.com", 7),
        ("127.0.0.1", 5),
        ("::1", 5),
        ("127.0.0.1", 6),
    ]
    told = [ask("module", "demo", *host) for host in hosts]
    told += [
        ask("tool", "demo.part", "no.example", 1),
        ask("mcp", "x", "no.example", 1),
        ask("core", "x", "no.example", 1),
    ]
    source.targets = ()
    told.append(ask("module", "demo", "10.2.3.4", 1))
    ask.forget()
    told.append(ask("module", "demo", "10.2.3.4", 1))
    return told


def test_what_was_observed_is_permitted_as_long_as_a_target_covers_it(case):
    """By host, pattern, range and port; rights of subjects that the host invented are known only to their guard."""
    told = case.run(permitted)
    hosts = [True, False, True, False, False, True, False, True, True, True, False]
    assert told == [*hosts, False, False, True, True, False]


def broken(world):
    from democrai_sandbox.errors import HelperFailed

    class Broken(Egress):
        def observe(self, endpoint):
            raise HelperFailed("it is gone", reason="not_running")

        def child(self, endpoints):
            raise HelperFailed("it is gone", reason="not_running")

    egress = Broken()
    lab = (parts := world.load(LAB))["Lab"](world, egress=egress)
    house, entry = lab.house, parts["entry"]
    house.extension("demo", MODULE + CHILD, access=[entry("receive", house.web.url)])

    async def story():
        told = [await lab.action("demo", "reaches", url=house.web.url), await lab.action("demo", "starts")]
        return [told, house.web.asked]

    return lab.serve(story)


def test_a_helper_that_fails_is_a_failure_and_no_denial_and_nothing_gets_out(case):
    """Neither a connection that could not be permitted, nor a child that could not be confined."""
    (connection, child), asked = case.run(broken)
    assert connection[0] == "ExternalAccessCheckFailed"
    assert child[0] == "RuntimeServiceFailed"
    assert "os_sandbox_helper_failed" in child[1]
    assert asked == []


def nonsense(world):
    from democrai_sandbox.runtime.worker.host_requests import CallerCheck
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    check = CallerCheck(WorkerSpec("module", "demo", "/x", "/bin/python"))
    right = [
        ["demo", "module", "a.example", 443],
        ["demo.part", "tool", "a.example", 443],
    ]
    wrong = [
        None,
        [],
        ["demo", "module", "a.example"],
        ["other", "module", "a.example", 443],
        ["demo", "engine", "a.example", 443],
        ["other.part", "tool", "a.example", 443],
        ["demo", "module", "a.example", 0],
        ["demo", "module", "a.example", 65536],
        ["demo", "module", "a.example", True],
        ["demo", "module", "", 443],
        ["demo", "module", "a" * 300, 443],
        ["demo", "module", 7, 443],
        ["demo", "module", "a.example", 443, ["10.0.0.1"]],
    ]

    def read(fields):
        try:
            return list(check.connection(fields))
        except (TypeError, ValueError):
            return "refused"

    return [[read(fields) for fields in right], sorted({str(read(fields)) for fields in wrong})]


def test_a_worker_speaks_for_its_own_subject_and_chooses_no_addresses(case):
    """Any other report ends it: an address of its choice would be permitted for the whole application."""
    right, wrong = case.run(nonsense)
    assert right == [["demo", "module", "a.example", [], 443], ["demo.part", "tool", "a.example", [], 443]]
    assert wrong == ["refused"]
