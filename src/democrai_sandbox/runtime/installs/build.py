"""Build of an environment: created, filled by pip under the guard of the install phase, verified, then used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import InstallFailed
from democrai_sandbox.guard import AccessQuestion, child_environment
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.manifests.limits import NO_LIMITS, Limits
from democrai_sandbox.policy import AccessDecision, AccessRule, Operation, ResourceType, rules_for_paths
from democrai_sandbox.runtime.child_process import BASE_INTERPRETER, host_environment
from democrai_sandbox.runtime.confinement.process_paths import ProcessRights

from . import runner
from .environments import EnvironmentFolder, EnvironmentPlan, InstalledEnvironment, remove, site_packages
from .guard import InstallFacts, write_start_files
from .pip import InstallProcess, PipConfiguration, find_pip, package_rules, pip_variables, read_configuration
from .status import InstallReporter, InstallStage, InstallStep, step_of

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from democrai_sandbox.guard import Decider
    from democrai_sandbox.manifests import Install
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime.confinement.confinement import Confinement
    from democrai_sandbox.runtime.worker.process import CallIdentity, WorkerStarter

_PACKAGE = Path(__file__).parents[2]
_KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")
"""Variables of the host that an installation inherits; all others may contain secrets."""
_TELLING = ("sandbox_network_denied", "sandbox_subprocess_denied", "sandbox_module_denied")
_MOST_PACKAGES = 10_000
_QUESTION_FIELDS = 12


@dataclass(frozen=True, slots=True)
class Site:
    """Folders of one build."""

    environment: Path
    work: Path
    """Temporary files, home and copies of local packages; removed at the end."""

    @property
    def packages(self) -> Path:
        """Folder in which pip installs packages."""
        return site_packages(self.environment)


@dataclass(slots=True)
class EnvironmentBuilder:
    """Builds one environment of one subject. The caller holds the lock on its place."""

    subject: Subject
    declared: Install
    place: EnvironmentFolder
    starter: WorkerStarter
    report: InstallReporter
    protected: tuple[str, ...] = ()
    decider: Decider | None = None
    confinement: Confinement | None = None
    limits: Limits = NO_LIMITS
    timeout: float = 1800.0
    caller: CallIdentity | None = None
    _packages: list[str] = field(default_factory=list)

    async def build(self, plan: EnvironmentPlan, lock: int) -> InstalledEnvironment:
        """Return a finished environment; after a failure, remove it."""
        environment = self.place.new_environment(plan)
        site = Site(environment, environment.with_name(environment.name + ".work"))
        try:
            self.report(InstallStep(InstallStage.PREPARE.value, "Creating an environment"))
            await asyncio.to_thread(self._prepare, plan, site)
            if plan.requirements:
                await self._fill(plan, site, lock)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(remove, site.environment))
            if isinstance(error, OSError):
                raise InstallFailed(f"{self.subject}: the environment could not be created: {error}") from error
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(remove, site.work))
        return InstalledEnvironment(plan.fingerprint, str(site.environment), tuple(self._packages))

    async def _fill(self, plan: EnvironmentPlan, site: Site, lock: int) -> None:
        """Install the requirements with pip and verify them. The start files exist only while pip runs."""
        pip = await asyncio.to_thread(find_pip, self.place.tools)
        configuration = await read_configuration(self.starter, pip)
        facts = self._facts(pip, site)
        # The last ones are for the environment's interpreter, and for programs that a build installs.
        programs = (
            AccessRule(ResourceType.FILESYSTEM, Operation.EXECUTE, folder, folder) for folder in facts["own_write"][:2]
        )
        rules = (*self.declared.access, *package_rules(configuration), *programs)
        environment = self._environment(configuration, rules, facts, site)
        start_files = write_start_files(site.packages, facts)
        # The host's interpreter: installed packages can replace that of the environment, which only pip uses.
        start_pip = [BASE_INTERPRETER, "-I", "-S", "-X", "utf8", runner.__file__, json.dumps(facts)]
        # All other options are variables, which the pip of a build reads too.
        version = tuple(int(part) for part in configuration.version.split(".")[:2] if part.isdecimal())
        bar = "raw" if version >= (24, 1) else "off"
        install = ["install", "--no-warn-script-location", "--progress-bar", bar, "--", *plan.requirements]
        async with self._starting(rules, facts) as starter:
            await self._run(starter, [*start_pip, *install], environment, site, lock)
            self.report(InstallStep(InstallStage.VERIFY.value, "Checking that the packages are compatible"))
            await self._run(starter, [*start_pip, "verify"], environment, site, lock)
        # A build could have replaced a folder by a link, which would redirect readers elsewhere.
        place = self.place.environments.resolve()
        if site.packages.resolve() != place / site.packages.relative_to(self.place.environments):
            raise InstallFailed(f"{self.subject}: the build moved the environment to another folder")
        for file in start_files:
            file.unlink(missing_ok=True)

    def _prepare(self, plan: EnvironmentPlan, site: Site) -> None:
        """Create the folders. Local packages are copied, because building one writes beside its sources."""
        for name in ("tmp", "home", "sources"):
            (site.work / name).mkdir(parents=True, mode=0o700)
        self.place.cache.mkdir(exist_ok=True, mode=0o700)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(site.environment)
        for package in plan.packages:
            source, copy = Path(plan.folder, package), site.work / "sources" / package
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, copy)

    def _facts(self, pip: Path, site: Site) -> InstallFacts:
        packages = {"democrai_sandbox": str(_PACKAGE), "pip": str(pip)}
        if (_PACKAGE.parent / "idna").is_dir():
            packages["idna"] = str(_PACKAGE.parent / "idna")
        return InstallFacts(
            runner=runner.__file__,
            environment=str(site.environment),
            packages=packages,
            code=[*packages.values(), str(pip.parent)],
            protected=list(self.protected),
            own_read=[],
            own_write=[str(site.environment), str(site.work), str(self.place.cache)],
            allowed_imports=list(self.declared.allowed_imports),
            temporary=str(site.work / "tmp"),
            asks=self.decider is not None,
        )

    def _starting(
        self, rules: tuple[AccessRule, ...], facts: InstallFacts
    ) -> AbstractAsyncContextManager[WorkerStarter]:
        """Return the starter of the installation's processes, with confinement where enabled."""
        if self.confinement is None:
            return contextlib.nullcontext(self.starter)
        rights = ProcessRights(
            label=str(self.subject),
            rules=rules,
            read=(*facts["code"], *facts["own_read"]),
            write=tuple(facts["own_write"]),
            protected=self.protected,
            limits=self.limits,
        )
        return self.confinement.installing(rights, self.starter)

    def _environment(
        self, configuration: PipConfiguration, rules: tuple[AccessRule, ...], facts: InstallFacts, site: Site
    ) -> dict[str, str]:
        """Return the variables of the child: pip's configuration, ``DEMOCRAI_*`` from guard state, and few others."""
        user, organization, session = self._identity()
        guard = make_guard(
            subject=self.subject.name,
            subject_kind=self.subject.kind.value,
            access=(*rules, *rules_for_paths(facts["own_write"])),
            allow_subprocess=True,
            user_id=user,
            organization_id=organization,
            session_key=session,
        )
        kept = {name: value for name, value in host_environment().items() if name in _KEPT or name.startswith("LC_")}
        return {
            **kept,
            **pip_variables(configuration),
            "PIP_CACHE_DIR": str(self.place.cache),
            "HOME": str(site.work / "home"),
            "TMPDIR": facts["temporary"],
            **guard.run(child_environment),
        }

    async def _run(
        self, starter: WorkerStarter, command: list[str], env: dict[str, str], site: Site, lock: int
    ) -> None:
        child = InstallProcess(self._hear, self._decide)
        code = await child.run(
            starter,
            command,
            env,
            folder=str(site.work / "sources"),
            lock=lock,
            timeout=self.timeout,
        )
        if code != 0:
            raise _failure(self.subject, "verify" if command[-1] == "verify" else "install", code, child)

    def _hear(self, line: str) -> None:
        if line.startswith(runner.PACKAGE) and len(self._packages) < _MOST_PACKAGES:
            self._packages.append(line.removeprefix(runner.PACKAGE)[:200])
        step = step_of(line)
        if step is not None:
            self.report(step)

    async def _decide(self, asked: list[Any]) -> list[Any] | bool | None:
        """Answer the child's guard, only on behalf of the installed subject."""
        question = self._question(asked)
        if self.decider is None or question is None:
            return None
        decision = await asyncio.to_thread(self.decider.decide, question)
        return list(decision) if isinstance(decision, AccessDecision) else decision is True

    def _question(self, asked: list[Any]) -> AccessQuestion | None:
        """Return the child's question with the identity that the host knows; the child's own claims are ignored."""
        if len(asked) != _QUESTION_FIELDS:
            return None
        resource, operation, target, register = asked[3:7]
        if not all(type(text) is str for text in (resource, operation, target)) or type(register) is not bool:
            return None
        subject = self.subject
        who = (subject.name, subject.kind.value, (str(subject),))
        what = (resource, operation, target, register)
        return AccessQuestion((*who, *what, *self._identity(), "", None))  # type: ignore[call-arg, arg-type] # native

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
