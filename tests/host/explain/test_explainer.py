"""Explanations: each layer answers, the verdict follows from the answers, and asking changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.errors import ErrorUnknown
from democrai_sandbox.host.explain.explainer import explain, explain_line
from democrai_sandbox.host.explain.explanation import AccessToExplain, AccessVerdict, LayerEffect
from democrai_sandbox.host.settings import HostSettings
from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel
from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder, SourceEntry
from democrai_sandbox.kernel.landlock.ruleset import ApplicationPaths
from democrai_sandbox.kernel.settings import OsSettings
from democrai_sandbox.kernel.status import ControlState, ControlStatus
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.ai.runtime import AiRuntime
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
from democrai_sandbox.runtime.store import RuntimeStore
from tests.access.conftest import Desk
from tests.services.golden import sentence

URL = "https://api.example.com/v1/reports"
MANIFESTS = {
    "modules/reports": {
        "name": "reports",
        "access": [
            {"resource_type": "network", "operation": "receive", "target": URL},
            {"resource_type": "network", "operation": "connect", "target": "db.example.com:5432"},
            {"resource_type": "filesystem", "operation": ["read", "modify"], "target": "/srv/reports"},
            {"resource_type": "system_dependency", "operation": "execute", "target": "ffmpeg"},
        ],
    },
    "engines/voice": {
        "name": "voice",
        "runtime": {
            "access": [{"resource_type": "network", "operation": "receive", "target": "https://models.example.com"}],
            "allowed_config_urls": ["endpoint"],
        },
        "install": {
            "access": [{"resource_type": "network", "operation": "receive", "target": "https://install.example.com"}]
        },
    },
    "extractors/scan": {
        "name": "scan",
        "runtime": {"access": [{"resource_type": "filesystem", "operation": "read", "target": "/srv/scans"}]},
    },
    "modules/broken": {"name": "broken", "surprise": 1},
}


class House:
    """Parts of a sandbox that explanations read, without a runtime, which would seal the guard."""

    def __init__(self, base, prepared):
        for place, manifest in MANIFESTS.items():
            folder = base / place
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(json.dumps(manifest))
            (folder / f"{place.split('s/')[0]}.py").write_text("")
        for name in ("state", "data"):
            (base / name).mkdir()
        shutil.copy(prepared, base / "state" / "access.db")
        self.base = base
        self.desk = Desk(f"sqlite:///{base}/state/access.db")
        settings = RuntimeSettings(
            data_dir=f"{base}/data",
            modules_path=f"{base}/modules",
            engines_path=f"{base}/engines",
            extractors_path=f"{base}/extractors",
        )
        self.settings = HostSettings(
            state_dir=f"{base}/state",
            data_dir=f"{base}/data",
            database="sqlite:////nowhere/x.db",
            key_file=f"{base}/keys",
        )
        self.ai = AiRuntime()
        self.runtime = SimpleNamespace(
            settings=settings,
            registry=discover(settings),
            store=RuntimeStore(self.desk.store.database),
            ai=self.ai,
            confinement=SimpleNamespace(protected=()),
        )
        self.access = SimpleNamespace(store=self.desk.store, node=self.desk.node)
        self.kernel = Kernel(OsSettings(), ApplicationPlaces(f"{base}/data", f"{base}/state"))

    def explain(self, target, operation="receive", kind="network", subject="module:reports", **more):
        return explain(self, AccessToExplain(Subject.parse(subject), kind, operation, target, **more))

    def read(self, target, operation="read", **more):
        return self.explain(target, operation, "filesystem", **more)

    def says(self, name, *texts):
        """Compare texts with the golden entry of a name."""
        sentence(name, "\n".join(texts), folder=self.base)


@pytest.fixture
def house(tmp_path, prepared_file):
    """A separate house, for a test that changes it."""
    found = House(tmp_path, prepared_file)
    yield found
    found.desk.close()


@pytest.fixture(scope="module")
def same_house(tmp_path_factory, prepared_file):
    """One house for all tests that only ask."""
    found = House(tmp_path_factory.mktemp("house"), prepared_file)
    yield found
    found.desk.close()


def layer(explanation, name):
    return next(found for found in explanation.layers if found.layer == name)


def deciding(explanation):
    return [found.layer for found in explanation.layers if found.decides]


def decide(house, act, target, operation="receive", kind="network", subject="module:reports", **more):
    """File a request, and decide as an administrator."""
    asked = house.desk.check(target, operation=operation, kind=kind, subject=Subject.parse(subject), **more)
    return house.desk.decide(act, asked.request_id).decision


class TestTarget:
    """First layer: normalization of the target."""

    @pytest.fixture
    def house(self, same_house):
        """Nothing is changed here."""
        return same_house

    def test_what_cannot_be_a_target_is_refused(self, house):
        """With the reason, and without other layers."""
        words = []
        for target in ("https://user@api.example.com/", "", "*.example.com", "x" * 9000):
            found = house.explain(target)
            assert found.verdict is AccessVerdict.REFUSED
            assert [one.layer for one in found.layers] == ["target"]
            assert found.access is None
            words.append(found.words)
        assert "network_target_missing" in words[1]
        house.says("refused targets", *words)
        assert house.explain("https://a.example/", operation="red").verdict is AccessVerdict.REFUSED
        assert house.read("not/absolute").verdict is AccessVerdict.REFUSED

    def test_what_was_read_is_told(self, house, tmp_path):
        """The query is dropped, the host is lower-cased, a link is followed."""
        found = house.explain("HTTPS://API.Example.com/v1/reports/7?key=1")
        assert found.access.target == f"{URL}/7"
        assert f"{URL}/7" in layer(found, "target").text
        house.says("target that is read", layer(found, "target").text)
        (tmp_path / "link").symlink_to("/srv/reports")
        assert house.read(f"{tmp_path}/link/x").access.target == "/srv/reports/x"

    def test_a_pattern_is_told_from_a_name(self, house):
        """The answer is about a file with exactly that name, and the shown entry can be declared."""
        found = house.read("/srv/other/*.csv")
        assert found.access.target == "/srv/other/*.csv"
        assert found.entry["target"] == "/srv/other/./*.csv"
        house.says("target that looks like a pattern", layer(found, "target").text)

    def test_a_path_that_goes_up_is_answered_for_where_it_leads(self, house):
        """The answer says so, and the folders before the dots must be readable: the guard checks them first."""
        found = house.read("/srv/reports/../reports/x")
        assert (found.verdict, found.access.target) == (AccessVerdict.ALLOWED, "/srv/reports/x")
        house.says("target that goes up", layer(found, "target").text)
        found = house.read("/srv/../srv/reports/x")
        assert (found.verdict, found.access.target) == (AccessVerdict.NEEDS_APPROVAL, "/srv")
        assert found.advice[0].endswith(" /srv/reports/x")
        house.says("target that goes up too far", found.words, found.advice[0])


class TestDeclared:
    """Second layer: the manifest, and the paths from the runtime."""

    @pytest.fixture
    def house(self, same_house):
        """Nothing is changed here."""
        return same_house

    def test_a_rule_that_covers_it_allows(self, house):
        """The rule is described in words, and this layer decides."""
        found = house.explain(f"{URL}/7")
        assert found.verdict is AccessVerdict.ALLOWED
        assert found.rule.normalized_target == URL
        assert deciding(found) == ["declared"]
        assert (found.hint, found.entry, found.nearest) == ("", None, None)
        house.says("rule that covers it", layer(found, "declared").text, found.words)
        assert found.file == f"{house.base}/modules/reports/manifest.json"

    def test_the_nearest_rule_says_what_it_lacks(self, house):
        """Scheme, port, path, operation, or a socket where only HTTP requests are declared."""
        told = []
        for target, operation, nearest in [
            ("http://api.example.com/v1/reports", "receive", URL),
            ("https://api.example.com:8443/v1/reports", "receive", URL),
            ("https://api.example.com/v1/other", "receive", URL),
            ("https://api.example.com/v1/reportsx", "receive", URL),
            (f"{URL}/7", "send", URL),
            ("api.example.com:443", "connect", URL),
            ("db.example.com:5433", "connect", "db.example.com:5432"),
            ("https://api.exampel.com/v1/reports", "receive", URL),
        ]:
            found = house.explain(target, operation)
            assert found.verdict is AccessVerdict.NEEDS_APPROVAL
            assert found.nearest.rule.normalized_target == nearest, target
            assert found.nearest.why in layer(found, "declared").text
            told.append(f"{operation} {target}: {found.nearest.why}")
        house.says("nearest rules", *told)

    def test_nearest_paths_and_programs(self, house):
        """A missing operation, a neighboring folder, a misspelled name; nothing for distant rules."""
        missing, beside = house.read("/srv/reports/x", "delete").nearest, house.read("/srv/reports2/x").nearest
        program = house.explain("ffmpg", "execute", "system_dependency").nearest
        assert missing.rule.normalized_target == beside.rule.normalized_target == "/srv/reports"
        assert program.rule.normalized_target == "ffmpeg"
        house.says("nearest paths and programs", missing.why, beside.why, program.why)
        assert house.read("/elsewhere/x").nearest is None
        assert house.explain("ffmpeg", "execute", "system_dependency").verdict is AccessVerdict.ALLOWED
        assert house.explain("https://far.test/").nearest is None

    def test_the_hint_is_that_of_the_denial(self, house):
        """The entry, its file, and the call that requests approval."""
        found = house.explain("https://new.example.com/x", "send")
        entry = {"resource_type": "network", "operation": "send", "target": "https://new.example.com/x"}
        assert found.entry == entry
        assert json.dumps(entry) in found.hint
        assert "manifest.json" in found.hint
        assert "sdk.access.check_external_access" in found.hint
        house.says("hint", found.hint)
        assert "system_dependency" in house.explain("git", "execute", "system_dependency").hint
        assert '"filesystem"' in house.read("/elsewhere/x").hint

    def test_places_of_its_own(self, house):
        """Its folder to read, its data to write; those of others are denied, regardless of declarations."""
        own = f"{house.base}/modules/reports/module.py"
        assert house.read(own).verdict is AccessVerdict.ALLOWED
        assert house.read(f"{house.base}/data/modules/reports/x", "create").verdict is AccessVerdict.ALLOWED
        for path in (f"{house.base}/data/modules/other/x", f"{house.base}/state/access.db", f"{house.base}/keys"):
            found = house.read(path)
            assert (found.verdict, deciding(found)) == (AccessVerdict.DENIED, ["declared"])
            house.says("place of the host", layer(found, "declared").text)
            assert (found.hint, found.entry) == ("", None)
        assert house.read(own, "modify").verdict is AccessVerdict.DENIED

    def test_what_lies_around_a_protected_place_stays(self, house):
        """Deleting a folder would also delete the host's files in it."""
        found = house.read(f"{house.base}", "delete")
        assert (found.verdict, found.entry) == (AccessVerdict.DENIED, None)
        house.says("folder around a place of the host", layer(found, "declared").text)
        assert house.read(f"{tempfile.gettempdir()}/free", "delete").verdict is AccessVerdict.ALLOWED

    def test_paths_of_the_runtime(self, house):
        """Every subject reads the system's libraries, but an MCP server has no file access."""
        assert house.read("/usr/lib").verdict is AccessVerdict.ALLOWED
        house.says("place of the runtime", layer(house.read("/usr/lib"), "declared").text)
        assert house.read("/usr/lib", "create").verdict is AccessVerdict.NEEDS_APPROVAL
        assert house.read("/usr/lib", subject="mcp:files").verdict is AccessVerdict.NEEDS_APPROVAL


class TestSubjects:
    """Each kind of subject has its declarations in another place."""

    def test_engines_and_extractors_have_sections(self, house):
        """Rules of the install phase do not hold in the runtime phase; configured URLs do."""
        assert house.explain("https://models.example.com/x", subject="engine:voice").verdict is AccessVerdict.ALLOWED
        install = house.explain("https://install.example.com/x", subject="engine:voice")
        assert install.verdict is AccessVerdict.NEEDS_APPROVAL
        house.says("declared for the installation", layer(install, "declared").text)
        assert '"runtime" section' in install.hint
        configured = "https://configured.example.com/"
        assert house.explain(configured, subject="engine:voice").verdict is AccessVerdict.NEEDS_APPROVAL
        house.runtime.store.set_settings("engine", "voice", {"endpoint": configured}, now=datetime.now(UTC))
        assert house.explain(configured, subject="engine:voice").verdict is AccessVerdict.ALLOWED
        assert house.read("/srv/scans/a", subject="extractor:scan").verdict is AccessVerdict.ALLOWED

    def test_mcp_servers_have_their_endpoint(self, house):
        """A recorded denial takes precedence over the registry."""
        entry = {"name": "files", "transport": "sse", "endpoint_url": "https://mcp.example.com/sse"}
        house.runtime.store.add_mcp_server(entry, now=datetime.now(UTC))
        target = "https://mcp.example.com/sse"
        assert house.explain(target, "send", subject="mcp:files").verdict is AccessVerdict.ALLOWED
        assert house.explain(target, "connect", subject="mcp:files").verdict is AccessVerdict.NEEDS_APPROVAL
        decide(house, "deny_external_access", target, "send", subject="mcp:files")
        found = house.explain(target, "send", subject="mcp:files")
        assert (found.verdict, deciding(found)) == (AccessVerdict.DENIED, ["denial"])
        house.says("unknown server", layer(house.explain(target, subject="mcp:none"), "declared").text)

    def test_tools_run_under_their_own_rules_or_what_encloses_them(self, house):
        """A host's tool with rules, and one without."""

        def look(what: str) -> str:
            return what

        rules = [{"resource_type": "network", "operation": "receive", "target": "https://tool.example.com"}]
        house.ai.register("tool", look, name="look", description="x", access=rules)
        house.ai.register("tool", look, name="bare", description="x")
        assert house.explain("https://tool.example.com/x", subject="tool:look").verdict is AccessVerdict.ALLOWED
        assert house.explain(URL, subject="tool:look").verdict is AccessVerdict.NEEDS_APPROVAL
        house.says("tool without rules", layer(house.explain(URL, subject="tool:bare"), "declared").text)

    def test_a_skill_has_what_the_host_gives_it(self, house):
        """It has no module manifest, and the hint names the call that runs it; decisions count."""
        found = house.explain(URL, subject="skill:reports.summarise")
        assert found.verdict is AccessVerdict.NEEDS_APPROVAL
        assert "process_guard_context" in found.hint
        assert "manifest.json" not in found.hint + layer(found, "declared").text
        decide(house, "approve_permanently", URL, subject="skill:reports.summarise")
        assert house.explain(URL, subject="skill:reports.summarise").verdict is AccessVerdict.ALLOWED

    def test_others(self, house):
        """A task has the rights of its module, the host has no guard; unknown and broken ones are reported."""
        assert house.explain(URL, subject="task:reports.nightly").verdict is AccessVerdict.ALLOWED
        host = house.explain(URL, subject="core:host")
        others = [house.explain(URL, subject=name) for name in ("module:none", "module:broken")]
        assert [found.verdict for found in others] == [AccessVerdict.NEEDS_APPROVAL] * 2
        house.says("other subjects", *(layer(found, "declared").text for found in (host, *others)))


class TestRecorded:
    """Denials, approvals and requests, in the order of a check."""

    def test_a_request_that_waits(self, house):
        """It is shown, the user's own request first, and the hint names it."""
        ann, bob = Caller(user_id="ann", session_key="s-1"), Caller(user_id="bob", session_key="s-2")
        target = "https://new.example.com/x"
        first = house.desk.check(target, user=ann, subject=Subject.parse("module:reports")).request_id
        second = house.desk.check(target, user=bob, subject=Subject.parse("module:reports")).request_id
        found = house.explain(target, user_id="ann")
        assert (found.verdict, deciding(found)) == (AccessVerdict.PENDING, ["request"])
        assert layer(found, "request").request.id == first
        assert first in found.hint
        assert layer(house.explain(target, user_id="bob"), "request").request.id == second
        assert re.search(r"\b2\b", layer(house.explain(target), "request").text)

    def test_approvals_and_denials(self, house):
        """Each in its layer with its decision; a session approval only in that session."""
        session = Caller(user_id="ann", session_key="s-1")
        made = decide(house, "approve_for_session", "https://s.example.com/x", user=session)
        mine = house.explain("https://s.example.com/x/y", session_key="s-1")
        assert (mine.verdict, layer(mine, "session_approval").decision) == (AccessVerdict.ALLOWED, made)
        other = house.explain("https://s.example.com/x/y", session_key="s-2")
        assert other.verdict is AccessVerdict.NEEDS_APPROVAL
        assert re.search(r"\b1\b", layer(other, "session_approval").text)
        house.says("approved in another session", layer(other, "session_approval").text)
        made = decide(house, "approve_permanently", "https://p.example.com/x")
        found = house.explain("https://p.example.com/x")
        assert (found.verdict, deciding(found)) == (AccessVerdict.ALLOWED, ["permanent_approval"])
        assert layer(found, "permanent_approval").decision == made
        assert "ada" in layer(found, "permanent_approval").text
        house.says("approved for good", layer(found, "permanent_approval").text)
        decide(house, "deny_external_access", "https://d.example.com/x")
        found = house.explain("https://d.example.com/x/y")
        assert (found.verdict, layer(found, "denial").answer) == (AccessVerdict.DENIED, LayerEffect.DENIES)
        house.says("denied", layer(found, "denial").text)

    def test_a_declared_rule_stands_before_a_denial(self, house):
        """As in a check: the service is asked only about undeclared access."""
        decide(house, "deny_external_access", f"{URL}/7")
        found = house.explain(f"{URL}/7")
        assert (found.verdict, deciding(found)) == (AccessVerdict.ALLOWED, ["declared"])
        assert layer(found, "denial").answer is LayerEffect.DENIES

    def test_a_path_that_servers_read_differently(self, house):
        """It cannot be approved, and is not confused with an approved one."""
        found = house.explain("https://new.example.com/a/..%2fb")
        assert (found.verdict, deciding(found)) == (AccessVerdict.DENIED, ["target"])

    def test_it_agrees_with_the_check(self, house):
        """For undeclared access the verdict is the answer of the service."""
        for act, name in (
            ("deny_external_access", "yes.example.com/a/b"),
            ("approve_permanently", "yes.example.com/a"),
            ("deny_external_access", "no.example.com/a"),
            ("approve_for_session", "session.example.com/a"),
        ):
            decide(house, act, f"https://{name}")
        for host in ("yes", "no", "session", "other"):
            for path in ("", "/a", "/a/b", "/a/b/c", "/ab"):
                target = f"https://{host}.example.com{path}"
                said = house.explain(target, session_key="s1").verdict is AccessVerdict.ALLOWED
                checked = house.desk.check(target, register_request=False, subject=Subject.parse("module:reports"))
                assert said is checked.allowed, target

    def test_nothing_is_changed_by_asking(self, house):
        """No request, no use, no count, no record."""
        decide(house, "approve_permanently", "https://p.example.com/x")
        before = (house.desk.store.pulse(), house.desk.service.answers(), len(house.desk.pending()))
        for target in ("https://p.example.com/x", "https://new.example.com/", URL):
            house.explain(target)
        house.desk.service._deferred.write_uses()
        after = (house.desk.store.pulse(), house.desk.service.answers(), len(house.desk.pending()))
        assert after == before
        assert house.desk.decide("approvals").items[0].last_used is None


class TestKernel:
    """Last layer: the result of the kernel, and whether both agree."""

    def test_without_one_the_guard_decides(self, house):
        """Both controls report that they are not in force."""
        found = (house.explain(URL), house.read("/srv/reports/x"), house.explain("git", "execute", "system_dependency"))
        assert {layer(one, "kernel").answer for one in found} == {LayerEffect.SILENT}
        assert {one.kernel for one in found} == {""}
        house.says("without a kernel layer", *(layer(one, "kernel").text for one in found))

    def test_landlock_keeps_from_what_the_guard_allows(self, house):
        """The difference is reported, with the setting to change."""
        paths = ApplicationPaths(read=("/usr", "/srv/reports/late"), write=("/srv/data",))
        status = {
            "landlock": ControlStatus("landlock", ControlState.ACTIVE, details={"missing": ("/srv/reports/late",)})
        }
        house.kernel = SimpleNamespace(baseline=paths, spawn=None, status=lambda: status)
        found = house.read("/srv/reports/x")
        assert found.verdict is AccessVerdict.ALLOWED
        assert layer(found, "kernel").answer is LayerEffect.DENIES
        assert "extra_read_paths" in found.kernel
        assert "extra_write_paths" in house.read("/srv/reports/x", "modify").kernel
        late = house.read("/srv/reports/late/x").kernel
        assert "extra_read_paths" not in late
        house.says("path that was not there at the start", late)
        fine = house.read("/usr/lib")
        assert (layer(fine, "kernel").answer, fine.kernel) == (LayerEffect.ALLOWS, "")
        denied = house.read("/elsewhere/x")
        assert (layer(denied, "kernel").answer, denied.kernel) == (LayerEffect.DENIES, "")

    def filtered(self, house, state=ControlState.ACTIVE, **details):
        """Set up a packet filter that permits one host, for another module."""
        wanted = [SourceEntry("https://open.example.com/x", "module:other")]
        source = SimpleNamespace(name="test", endpoints=lambda: wanted)
        status = ControlStatus("egress", state, "the helper is gone", "start it", details)
        egress = SimpleNamespace(builder=AllowlistBuilder([source]), status=lambda: status)
        house.kernel = SimpleNamespace(egress=egress, baseline=None)

    def test_the_packet_filter_and_who_wants_it_open(self, house):
        """A host that is open for others only is reported; a permitted one is opened by its first connection."""
        self.filtered(house)
        other = house.explain("https://open.example.com/y")
        assert layer(other, "kernel").answer is LayerEffect.ALLOWS
        assert "module:other" in layer(other, "kernel").text
        allowed, socket = house.explain(URL), house.explain("unix:/run/x", "connect")
        assert allowed.kernel == ""
        assert layer(house.explain("https://shut.example.com/"), "kernel").answer is LayerEffect.DENIES
        assert layer(socket, "kernel").answer is LayerEffect.SILENT
        house.says("packet filter", other.kernel, *(layer(one, "kernel").text for one in (other, allowed, socket)))

    def test_the_guard_allows_and_the_packet_filter_does_not(self, house):
        """The layers disagree, and the reason for the blocked packets is given."""
        told = []
        for details in (
            {"unresolved": ["api.example.com"]},
            {"withheld": ["api.example.com"]},
            {"failed_sources": [{"name": "approvals"}]},
        ):
            self.filtered(house, **details)
            found = house.explain(URL)
            assert (found.verdict, layer(found, "kernel").answer) == (AccessVerdict.ALLOWED, LayerEffect.DENIES)
            told.append(found.kernel)
        assert len(set(told)) == 3
        house.says("kept by the packet filter", *told)

    def test_a_packet_filter_that_is_less_than_active(self, house):
        """It is reported with its reason and its fix; so is an enabled control that is unavailable."""
        self.filtered(house, ControlState.PARTIAL)
        partial = house.explain(URL).kernel
        assert all(part in partial for part in ("partial", "the helper is gone", "start it"))  # from the control
        settings = OsSettings(enabled=True)
        house.kernel = Kernel(settings, ApplicationPlaces(f"{house.base}/data", f"{house.base}/state"))
        house.says("less than active", partial, layer(house.explain(URL), "kernel").text)


class TestChains:
    """Subject in a call chain: guards merge, and a subject with its own list inherits nothing."""

    @pytest.fixture(autouse=True)
    def tools(self, house):
        def look(what: str) -> str:
            return what

        rules = [{"resource_type": "network", "operation": "receive", "target": "https://tool.example.com"}]
        house.ai.register("tool", look, name="look", description="x", access=rules)
        house.ai.register("tool", look, name="bare", description="x")

    def inside(self, house, target, subject, *around, **more):
        return house.explain(target, subject=subject, ancestors=tuple(map(Subject.parse, around)), **more)

    def test_what_declares_nothing_has_what_is_around_it(self, house):
        """The owner of the rule is named; decisions concern the innermost subject only."""
        found = self.inside(house, f"{URL}/7", "tool:bare", "module:reports")
        assert (found.verdict, deciding(found)) == (AccessVerdict.ALLOWED, ["declared"])
        house.says("rule of what is around it", layer(found, "declared").text)
        assert [(str(link.subject), link.counts) for link in found.links] == [
            ("tool:bare", True),
            ("module:reports", True),
        ]
        assert house.explain(f"{URL}/7", subject="tool:bare").verdict is AccessVerdict.NEEDS_APPROVAL
        decide(house, "approve_permanently", "https://p.example.com/x")
        assert self.inside(house, "https://p.example.com/x", "tool:bare", "module:reports").verdict is not (
            AccessVerdict.ALLOWED
        )

    def test_what_declares_its_own_takes_nothing(self, house):
        """Engines and MCP servers inherit nothing either; members that do not count are listed with the reason."""
        found = self.inside(house, f"{URL}/7", "tool:look", "module:reports")
        assert found.verdict is AccessVerdict.NEEDS_APPROVAL
        assert [link.counts for link in found.links] == [True, False]
        house.says("chain", layer(found, "chain").text)
        for subject in ("engine:voice", "mcp:files"):
            assert self.inside(house, f"{URL}/7", subject, "module:reports").verdict is AccessVerdict.NEEDS_APPROVAL
        deep = self.inside(house, "https://tool.example.com/x", "tool:bare", "module:reports", "tool:look")
        assert deep.verdict is AccessVerdict.ALLOWED
        assert [link.counts for link in deep.links] == [True, True, False]

    def test_a_task_is_a_place_in_the_chain(self, house):
        """It declares nothing, and its module decides as usual."""
        assert self.inside(house, URL, "module:reports", "task:reports.nightly").verdict is AccessVerdict.ALLOWED

    def test_the_installation_has_its_own_section(self, house):
        """Its rules hold in that phase only, and the hint names the section."""
        found = house.explain("https://install.example.com/x", subject="engine:voice", installing=True)
        assert found.verdict is AccessVerdict.ALLOWED
        found = house.explain("https://models.example.com/x", subject="engine:voice", installing=True)
        assert found.verdict is AccessVerdict.NEEDS_APPROVAL
        house.says("not declared for the installation", layer(found, "declared").text)
        assert '"install" section' in found.hint
        assert any('"install" section' in step for step in found.advice)


class TestAdvice:
    """Next steps, and who can take them."""

    def test_each_verdict_has_its_steps(self, house):
        """Allowed access has none; a denial is revoked; a request is pending; the rest is declared or requested."""
        assert house.explain(URL).advice == ()
        plain = house.explain("https://new.example.com/x").advice
        assert "check_external_access" in " ".join(plain)
        path, kept = house.read("/elsewhere/x").advice, house.read(f"{house.base}/keys").advice
        made = decide(house, "deny_external_access", "https://d.example.com/x")
        found = house.explain("https://d.example.com/x")
        assert made.id in found.advice[0]
        assert "ada" in found.advice[0]
        asked = house.desk.check("https://w.example.com/x", subject=Subject.parse("module:reports")).request_id
        waiting = house.explain("https://w.example.com/x").advice
        assert asked in waiting[0]
        odd = house.explain("https://new.example.com/a/..%2fb").advice
        house.says("advice", *("\n".join(steps) for steps in (plain, path, kept, found.advice, waiting, odd)))


class TestLines:
    """Error line, explained on its node."""

    @pytest.fixture
    def house(self, same_house):
        """Nothing is changed here."""
        return same_house

    def test_a_denial_that_tells_everything(self, house):
        """Call chain, subject and operation come from the line."""
        line = "sandbox_filesystem_denied:reports:/etc/x\n  module:reports asked for: delete /etc/x"
        found = explain_line(house, line)
        assert [one.question.operation for one in found.explanations] == ["delete"]
        assert found.explanations[0].verdict is AccessVerdict.NEEDS_APPROVAL

    def test_what_changed_since(self, house):
        """Access that would be allowed now is marked."""
        document = {
            "code": "sandbox_network_denied",
            "subject": "module:reports",
            "operation": "receive",
            "target": URL,
        }
        found = explain_line(house, json.dumps(document))
        house.says("allowed since", found.note)
        assert found.explanations[0].verdict is AccessVerdict.ALLOWED

    def test_what_is_about_no_access(self, house):
        """It is explained by its catalogue entry; unknown lines are rejected."""
        assert explain_line(house, "network_target_missing").explanations == ()
        assert explain_line(house, "sandbox_network_denied:reports:socket:foreign").explanations == ()
        with pytest.raises(ErrorUnknown):
            explain_line(house, "hello")


def test_hostile_subjects_and_targets_are_explained_like_others(house):
    """Names that look like markup, other writing directions, very long paths: text in, text out."""
    for subject in ("module:<script>alert(1)</script>", "tool:..\u00e9", "engine:" + "x" * 255):
        for target in ("https://api.example.com/<b>", "https://api.example.com/" + "a/" * 3000):
            assert house.explain(target, subject=subject).verdict in tuple(AccessVerdict)
        assert house.read("/srv/\u202ereports", subject=subject).verdict in tuple(AccessVerdict)
