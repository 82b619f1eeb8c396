"""Installation of engines and extractors: exclusive across all processes, and all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import time
import venv
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from democrai_sandbox import policy
from democrai_sandbox.errors import InstallFailed, NotInstalled
from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.guard import AccessQuestion, Decider, child_environment
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.manifests.limits import NO_LIMITS, Limits
from democrai_sandbox.runtime.access_environment import question_of
from democrai_sandbox.runtime.child_process import BASE_INTERPRETER, host_environment
from democrai_sandbox.runtime.confinement.process_paths import ProcessRights
from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
from democrai_sandbox.runtime.worker.process import PlainStarter, WorkerStarter

from . import environments, runner
from .environments import InstalledEnvironment, InstallReporter, InstallStage, InstallState, InstallStatus, InstallStep
from .guard import InstallFacts, write_start_files
from .pip import InstallProcess, PipConfiguration, find_pip, package_rules, pip_variables, read_configuration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from democrai_sandbox.manifests import EngineManifest, Install, Manifest, ManifestKind
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.policy.subjects import CallIdentity
    from democrai_sandbox.runtime.confinement.confinement import Confinement

_log = logging.getLogger(__name__)
_PATIENCE = 5.0
_PAUSE = 0.1


@dataclass(eq=False, repr=False)
class Installer:
    """Installs one extension, and reads its installed state. Belongs to one loop.

    An environment is created, filled by pip under the guard of the install phase, verified, and then used.
    """

    extension: RegisteredExtension
    """Its manifest has to be sound."""
    _settings: RuntimeSettings
    starter: WorkerStarter
    _: KW_ONLY
    decider: Decider | None = None
    protected: tuple[str, ...] = ()
    confinement: Confinement | None = None
    timeout: float = 1800.0
    progress: InstallStep | None = field(default=None, init=False)
    """Last step of the current or latest installation."""
    _running = False
    _problem = ""

    def __post_init__(self) -> None:
        self.extension.require_sound()
        self.subject = self.extension.subject
        self.place = environments.EnvironmentFolder(self._settings.data_dir, self.subject)
        self.protected = self.protected or self._settings.protected

    @property
    def declared(self) -> Install:
        """Install section of the manifest; it has the same fields for engines and extractors."""
        return cast("EngineManifest", self.extension.manifest).install

    def plan(self) -> environments.EnvironmentPlan:
        """Return the current installation plan. Reads local packages, which takes time."""
        return environments.make_plan(self.declared.requirements, self.extension.folder)

    def status(self) -> InstallStatus:
        """Return the installed state, and the progress of an installation in this process."""
        installed = self.place.installed()
        if self._running or self.place.is_busy():
            state = InstallState.INSTALLING
        elif installed is None:
            state = InstallState.MISSING
        elif installed.fingerprint == self.plan().fingerprint:
            state = InstallState.READY
        else:
            state = InstallState.OUTDATED
        folder, packages = (None, ()) if installed is None else (installed.folder, installed.packages)
        return InstallStatus(state, folder, packages, self.progress, self._problem)

    def require(self) -> InstalledEnvironment:
        """Return the environment for the current manifest; raise ``NotInstalled`` if it is missing or outdated."""
        installed = self.place.installed()
        subject = self.subject
        fix = f"install it with 'democrai-sandbox extensions install {subject}', or on its page in the console"
        if installed is None:
            raise NotInstalled(f"{subject} is not installed; {fix}")
        if installed.fingerprint != self.plan().fingerprint:
            message = "was installed for other requirements, other local packages or another interpreter"
            raise NotInstalled(f"{subject} {message}; {fix}")
        return installed

    async def install(
        self, report: InstallReporter | None = None, *, caller: CallIdentity | None = None, again: bool = False
    ) -> InstalledEnvironment:
        """Build the environment for the manifest, unless it exists; ``again`` builds it in any case.

        The previous environment stays in use until the new one is verified and current. An interrupted installation
        leaves nothing behind, or leftovers that the next installation or ``recover`` removes.
        """
        if self._running:
            raise InstallBusy(f"{self.subject} is being installed")
        self._running, self._problem = True, ""
        reporter = self._reporter(report)
        try:
            async with self._lock() as lock:
                return await self._install(reporter, caller, lock, again=again)
        except (InstallFailed, policy.InvalidInputError) as error:
            self._problem = error.diagnostics()
            reporter(InstallStep(InstallStage.FAILED.value, str(error)))
            raise
        finally:
            self._running = False

    async def _install(
        self, report: InstallReporter, caller: CallIdentity | None, lock: int, *, again: bool
    ) -> InstalledEnvironment:
        await asyncio.to_thread(self.place.sweep)
        plan = await asyncio.to_thread(self.plan)
        installed = self.place.installed()
        if installed is None or installed.fingerprint != plan.fingerprint or again:
            limits = NO_LIMITS if self.confinement is None else self.confinement.install_limits(self.extension)
            timeout = min(self.timeout, limits.wall_seconds or self.timeout)
            installed = await EnvironmentBuilder(self, plan, lock, report, limits, timeout, caller).build()
            self.place.finish(installed)
            await asyncio.to_thread(self.place.sweep)
        report(InstallStep(InstallStage.DONE.value, f"{len(installed.packages)} packages", 1.0))
        return installed

    async def recover(self) -> list[str]:
        """Remove and return the leftovers of an interrupted installation, unless another process is installing."""
        if not await asyncio.to_thread(self.place.root.is_dir):
            return []
        try:
            with self.place.locked():
                return await asyncio.to_thread(self.place.sweep)
        except InstallBusy:
            return []

    @contextlib.asynccontextmanager
    async def _lock(self) -> AsyncIterator[int]:
        """Wait a few seconds for the lock, because a stopped process may need a moment to end."""
        until = time.monotonic() + _PATIENCE
        with contextlib.ExitStack() as stack:
            lock = None
            while lock is None:
                try:
                    lock = stack.enter_context(self.place.locked())
                except InstallBusy:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(_PAUSE)
            yield lock

    def _reporter(self, report: InstallReporter | None) -> InstallReporter:
        def keep(progress: InstallStep) -> None:
            self.progress = progress
            if report is not None:
                try:
                    report(progress)
                except Exception:  # noqa: BLE001 - a failed report must not fail the installation
                    _log.exception("the progress reporter of %s failed", self.subject)

        return keep


_ATTEMPTS = 3


@dataclass(eq=False, repr=False)
class Installations:
    """One installer per extension, and one installation of it at a time."""

    _kind: ManifestKind
    _registry: Registry
    _make: Callable[[RegisteredExtension], Installer]
    _installers: dict[str, Installer] = field(default_factory=dict)
    _going_on: dict[str, asyncio.Task[InstalledEnvironment]] = field(default_factory=dict)

    def of(self, name: str) -> Installer:
        """Return the installer of a sound extension; raise the error of an unknown or broken one."""
        extension = self._registry.get(self._kind, name)
        extension.require_sound()
        known = self._installers.get(name)
        if known is None:
            known = self._installers[name] = self._make(extension)
        return known

    def status(self, name: str) -> InstallStatus:
        """Return the status; an installation that was just requested counts as installing."""
        found = self.of(name).status()
        if name in self._going_on and found.state is not InstallState.INSTALLING:
            return replace(found, state=InstallState.INSTALLING, problem="")
        return found

    def take(self, name: str) -> tuple[InstalledEnvironment, contextlib.ExitStack]:
        """Return the current environment, locked, because another process may replace it at any time."""
        installer = self.of(name)
        for _ in range(_ATTEMPTS):
            installed = installer.require()
            try:
                use = environments.hold_environment(installed.folder)
            except (FileNotFoundError, BlockingIOError):
                continue
            if installer.place.installed() == installed:
                return installed, use
            use.close()
        raise NotInstalled(f"{installer.subject} is being reinstalled; try again")

    async def recover(self) -> dict[str, list[str]]:
        """Remove and return the leftovers of interrupted installations."""
        names = [each.name for each in self._registry if each.kind is self._kind and not each.is_broken]
        removed: dict[str, list[str]] = {}
        for name in names:
            try:
                if folders := await self.of(name).recover():
                    removed[name] = folders
            except Exception:  # noqa: BLE001 - one failed cleanup must not stop the others
                _log.exception("leftovers of an installation of %s %s could not be removed", self._kind, name)
        return removed

    async def install(
        self, name: str, report: InstallReporter | None, *, caller: CallIdentity, again: bool
    ) -> InstalledEnvironment:
        """Install an extension. Concurrent callers wait for the same installation."""
        installer = self.of(name)
        task = self._going_on.get(name)
        if task is None:
            work = installer.install(report, caller=caller, again=again)
            task = self._going_on[name] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._going_on.pop(name, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def stop(self) -> None:
        """Stop all running installations."""
        going_on = tuple(self._going_on.values())
        for task in going_on:
            task.cancel()
        if going_on:
            await asyncio.wait(going_on)


def install_once(
    manifest: Manifest,
    folder: str,
    data_dir: str,
    *,
    decider: Decider | None = None,
    protected: tuple[str, ...] = (),
    timeout: float = 1800.0,
) -> str:
    """Install an engine or extractor under its install section; return the environment's folder."""
    extension = RegisteredExtension(manifest.kind, manifest.name, folder, manifest)
    settings = RuntimeSettings(data_dir=data_dir)
    Path(data_dir).mkdir(mode=0o700, exist_ok=True)
    installer = Installer(
        extension,
        settings,
        PlainStarter(),
        decider=decider,
        protected=(*settings.protected, *protected),
        timeout=timeout,
    )
    return asyncio.run(installer.install()).folder


def without_requests(manifest: Any) -> Manifest:
    """Return a manifest without network rules for its installation, so that every HTTP request is asked about."""
    kept = tuple(rule for rule in manifest.install.access if rule.resource_type is not policy.ResourceType.NETWORK)
    found: Manifest = replace(manifest, install=replace(manifest.install, access=kept))
    return found


_PACKAGE = Path(__file__).parents[2]
_KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")
"""Variables of the host that an installation inherits; all others may contain secrets."""
_TELLING = ("sandbox_network_denied", "sandbox_subprocess_denied", "sandbox_module_denied")
_MOST_PACKAGES = 10_000
_QUESTION_FIELDS = 12


@dataclass(slots=True)
class EnvironmentBuilder:
    """Builds one environment for an installer. The caller holds the lock on its place."""

    installer: Installer
    plan: environments.EnvironmentPlan
    lock: int
    report: InstallReporter
    limits: Limits
    timeout: float
    caller: CallIdentity | None
    _packages: list[str] = field(default_factory=list)
    _folder: Path = field(init=False)
    _work: Path = field(init=False)
    """Temporary files, home and copies of local packages; removed at the end."""

    def __post_init__(self) -> None:
        """Choose the folders of this build."""
        self._folder = self.installer.place.new_environment(self.plan)
        self._work = self._folder.with_name(self._folder.name + ".work")

    async def build(self) -> InstalledEnvironment:
        """Return a finished environment; after a failure, remove it."""
        try:
            self.report(InstallStep(InstallStage.PREPARE.value, "Creating an environment"))
            await asyncio.to_thread(self._prepare)
            if self.plan.requirements:
                await self._fill()
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(environments.remove, self._folder))
            if isinstance(error, OSError):
                raise InstallFailed(
                    f"{self.installer.subject}: the environment could not be created: {error}"
                ) from error
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(environments.remove, self._work))
        return InstalledEnvironment(self.plan.fingerprint, str(self._folder), tuple(self._packages))

    async def _fill(self) -> None:
        """Install the requirements with pip and verify them. The start files exist only while pip runs."""
        pip = await asyncio.to_thread(find_pip, self.installer.place.tools)
        configuration = await read_configuration(self.installer.starter, pip)
        facts = self._facts(pip)
        # The last ones are for the environment's interpreter, and for programs that a build installs.
        programs = (
            policy.AccessRule(policy.ResourceType.FILESYSTEM, policy.Operation.EXECUTE, folder, folder)
            for folder in facts["own_write"][:2]
        )
        rules = (*self.installer.declared.access, *package_rules(configuration), *programs)
        environment = self._environment(configuration, rules, facts)
        packages = environments.site_packages(self._folder)
        start_files = write_start_files(packages, facts)
        # The host's interpreter: installed packages can replace that of the environment, which only pip uses.
        start_pip = [BASE_INTERPRETER, "-I", "-S", "-X", "utf8", runner.__file__, json.dumps(facts)]
        # All other options are variables, which the pip of a build reads too.
        version = tuple(int(part) for part in configuration.version.split(".")[:2] if part.isdecimal())
        bar = "raw" if version >= (24, 1) else "off"
        install = ["install", "--no-warn-script-location", "--progress-bar", bar, "--", *self.plan.requirements]
        async with self._starting(rules, facts) as starter:
            await self._run(starter, [*start_pip, *install], environment)
            self.report(InstallStep(InstallStage.VERIFY.value, "Checking that the packages are compatible"))
            await self._run(starter, [*start_pip, "verify"], environment)
        # A build could have replaced a folder by a link, which would redirect readers elsewhere.
        place = self.installer.place.environments.resolve()
        if packages.resolve() != place / packages.relative_to(self.installer.place.environments):
            raise InstallFailed(f"{self.installer.subject}: the build moved the environment to another folder")
        for file in start_files:
            file.unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Create the folders. Local packages are copied, because building one writes beside its sources."""
        for name in ("tmp", "home", "sources"):
            (self._work / name).mkdir(parents=True, mode=0o700)
        self.installer.place.cache.mkdir(exist_ok=True, mode=0o700)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self._folder)
        for package in self.plan.packages:
            source, copy = Path(self.plan.folder, package), self._work / "sources" / package
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, copy)

    def _facts(self, pip: Path) -> InstallFacts:
        packages = {"democrai_sandbox": str(_PACKAGE), "pip": str(pip)}
        if (_PACKAGE.parent / "idna").is_dir():
            packages["idna"] = str(_PACKAGE.parent / "idna")
        return InstallFacts(
            runner=runner.__file__,
            environment=str(self._folder),
            packages=packages,
            code=[*packages.values(), str(pip.parent)],
            protected=list(self.installer.protected),
            own_write=[str(self._folder), str(self._work), str(self.installer.place.cache)],
            allowed_imports=list(self.installer.declared.allowed_imports),
            temporary=str(self._work / "tmp"),
            asks=self.installer.decider is not None,
        )

    def _starting(
        self, rules: tuple[policy.AccessRule, ...], facts: InstallFacts
    ) -> AbstractAsyncContextManager[WorkerStarter]:
        """Return the starter of the installation's processes, with confinement where enabled."""
        if self.installer.confinement is None:
            return contextlib.nullcontext(self.installer.starter)
        rights = ProcessRights(
            label=str(self.installer.subject),
            rules=rules,
            read=tuple(facts["code"]),
            write=tuple(facts["own_write"]),
            protected=self.installer.protected,
            limits=self.limits,
        )
        return self.installer.confinement.installing(rights, self.installer.starter)

    def _environment(
        self, configuration: PipConfiguration, rules: tuple[policy.AccessRule, ...], facts: InstallFacts
    ) -> dict[str, str]:
        """Return the variables of the child: pip's configuration, ``DEMOCRAI_*`` from guard state, and few others."""
        user, organization, session = self._identity()
        guard = make_guard(
            subject=self.installer.subject.name,
            subject_kind=self.installer.subject.kind.value,
            access=(*rules, *policy.rules_for_paths(facts["own_write"])),
            allow_subprocess=True,
            user_id=user,
            organization_id=organization,
            session_key=session,
        )
        kept = {name: value for name, value in host_environment().items() if name in _KEPT or name.startswith("LC_")}
        return {
            **kept,
            **pip_variables(configuration),
            "PIP_CACHE_DIR": str(self.installer.place.cache),
            "HOME": str(self._work / "home"),
            "TMPDIR": facts["temporary"],
            **guard.run(child_environment),
        }

    async def _run(self, starter: WorkerStarter, command: list[str], env: dict[str, str]) -> None:
        child, folder = InstallProcess(self._hear, self._decide), str(self._work / "sources")
        code = await child.run(starter, command, env, folder=folder, lock=self.lock, timeout=self.timeout)
        if code != 0:
            raise _failure(self.installer.subject, "verify" if command[-1] == "verify" else "install", code, child)

    def _hear(self, line: str) -> None:
        if line.startswith(runner.PACKAGE) and len(self._packages) < _MOST_PACKAGES:
            self._packages.append(line.removeprefix(runner.PACKAGE)[:200])
        step = environments.step_of(line)
        if step is not None:
            self.report(step)

    async def _decide(self, asked: list[Any]) -> list[Any] | bool | None:
        """Answer the child's guard, only on behalf of the installed subject."""
        question = self._question(asked)
        if self.installer.decider is None or question is None:
            return None
        decision = await asyncio.to_thread(self.installer.decider.decide, question)
        return list(decision) if isinstance(decision, policy.AccessDecision) else decision is True

    def _question(self, asked: list[Any]) -> AccessQuestion | None:
        """Return the child's question with the identity that the host knows; the child's own claims are ignored."""
        if len(asked) != _QUESTION_FIELDS:
            return None
        resource, operation, target, register = asked[3:7]
        if not all(type(text) is str for text in (resource, operation, target)) or type(register) is not bool:
            return None
        actor, what = (self.installer.subject.kind.value, self.installer.subject.name), (resource, operation, target)
        return question_of(actor, (str(self.installer.subject),), what, self._identity(), register=register)

    def _identity(self) -> tuple[str | None, str | None, str | None]:
        who = self.caller
        return (None, None, None) if who is None else (who[0] or None, who[1] or None, who[2] or None)


def _failure(subject: Subject, step: str, code: int, child: InstallProcess) -> InstallFailed:
    """Return the error of a failed step with the relevant denials, without probes of libraries."""
    said = "\n".join(child.lines)
    telling = [text for kind, text in child.denials if kind in _TELLING or text in said]
    what = {
        "verify": "the packages are not compatible with each other",
        "install": "pip could not install the requirements",
    }[step]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return InstallFailed(f"{subject}: {what} ({how})", lines=tuple(child.lines), denials=tuple(dict.fromkeys(telling)))
