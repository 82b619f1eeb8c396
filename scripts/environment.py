"""Bring an environment to the state that this checkout needs, and show the progress.

    python scripts/environment.py VENV runtime|tests|development|torch-cpu|torch-cuda

``runtime`` is for `make run`, ``tests`` for the tests on another interpreter, ``development`` is both and the tools;
the last two have the packages of `make compat`, with one of two builds of torch. An environment grows: existing
packages stay. Each finished step leaves a stamp, so that nothing is done twice, and an interrupted setup continues.
Runs with the interpreter of the environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from installing import Failure, Progress, count, explain, install, mend

SETS = {
    "runtime": ("build", "product"),
    "tests": ("build", "product", "tests", "workload"),
    "development": ("build", "product", "tests", "workload", "dev"),
    "torch-cpu": ("build", "product", "compat", "torch-cpu"),
    "torch-cuda": ("build", "product", "compat", "torch-cuda"),
}
ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "compat": ROOT / "compat" / "requirements.txt",
    "torch-cpu": ROOT / "compat" / "torch-cpu.txt",
    "torch-cuda": ROOT / "compat" / "torch-cuda.txt",
}
"""Requirement files outside the folder of that name."""
SOURCES = ("src/democrai_sandbox/guard/_core", "src/democrai_sandbox/kernel/_native")


class Environment:
    """Environment with its finished steps."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.python = venv / "bin" / "python"
        self._stamps = venv / ".setup"

    def has(self, step: str, value: str) -> bool:
        """Return whether a step was finished for exactly this input."""
        try:
            return (self._stamps / step).read_text() == value
        except OSError:
            return False

    def finished(self, step: str, value: str) -> None:
        """Record that a step was finished."""
        self._stamps.mkdir(exist_ok=True)
        (self._stamps / step).write_text(value)

    def forget(self, step: str) -> None:
        """Mark a step to be repeated."""
        (self._stamps / step).unlink(missing_ok=True)

    def identity(self) -> str:
        """Identify the interpreter and the path: programs in an environment contain its path."""
        return f"{sys.version} {sys.base_prefix} {self.venv.absolute()}"

    def is_made(self) -> bool:
        """Return whether it is complete, and of this interpreter."""
        if self.has("venv", self.identity()):
            return self.python.exists()
        return self._is_usable()

    def _is_usable(self) -> bool:
        """Check an environment without a stamp, which another tool has created."""
        look = "import sys, pip; print(sys.version, sys.base_prefix)"
        try:
            said = subprocess.run([self.python, "-c", look], capture_output=True, text=True, check=True).stdout
            knows = str(self.venv.absolute()) in (self.venv / "bin" / "pip").read_text()
        except (OSError, subprocess.SubprocessError):
            return False
        return knows and said.strip() == f"{sys.version} {sys.base_prefix}"

    def missing(self, kind: str) -> list[str]:
        """Return the requirement files that are not installed in their current version."""
        return [name for name in SETS[kind] if not self.has(name, digest(requirements(name)))]

    def is_built(self) -> bool:
        """Return whether the extensions are compiled from the current sources."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        there = all((ROOT / f"{source}{suffix}").is_file() for source in SOURCES)
        return there and self.has("extensions", sources_digest())

    def is_installed(self) -> bool:
        """Return whether the package is installed."""
        return self.has("package", package_digest())


def requirements(name: str) -> Path:
    """Return the path of a requirement file."""
    return PLACES.get(name, ROOT / "requirements" / f"{name}.txt")


def digest(*paths: Path) -> str:
    """Return one digest of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def sources_digest() -> str:
    """Return the digest of the sources of the extensions."""
    found = [path for source in SOURCES for path in sorted((ROOT / source).rglob("*.[ch]"))]
    return digest(ROOT / "setup.py", *found)


def package_digest() -> str:
    """Return the digest of the installed package's inputs, without its long description."""
    return f"{digest(ROOT / 'pyproject.toml', ROOT / 'setup.py')} {ROOT}"


def bring(environment: Environment, kind: str) -> None:
    """Run the missing steps."""
    made, missing = environment.is_made(), environment.missing(kind)
    if made and not missing and environment.is_built() and environment.is_installed():
        return
    with only_one(f"{environment.venv}.lock", f"another setup of {environment.venv}"):
        made = environment.is_made()
        if not made:
            shutil.rmtree(environment.venv, ignore_errors=True)
        elif not environment.has("venv", environment.identity()):
            environment.finished("venv", environment.identity())
        missing = environment.missing(kind)
        built, installed = environment.is_built(), environment.is_installed()
        steps = [not made, bool(missing), not built, not (built and installed)]
        progress = Progress(sum(steps))
        if not made:
            make(environment, progress)
        fill(environment, kind, missing, progress, compiling=not built)
        if not (built and installed):
            with only_one(ROOT / "setup.py", "another setup in this folder"):  # it writes next to the sources
                put_package(environment, progress)
        progress.end()


def make(environment: Environment, progress: Progress) -> None:
    """Create an empty environment with pip."""
    version = ".".join(map(str, sys.version_info[:3]))
    progress.step(f"creating {environment.venv} with CPython {version}")
    run([sys.executable, "-m", "venv", "--without-pip", str(environment.venv)])
    run([str(environment.python), "-m", "ensurepip", "--default-pip"])  # the venv module would hide an error
    environment.finished("venv", environment.identity())


def fill(environment: Environment, kind: str, missing: list[str], progress: Progress, *, compiling: bool) -> None:
    """Install the missing packages, and compile in parallel."""
    if environment.has("installing", ""):
        mend(environment.venv)
    environment.finished("installing", "")
    if compiling and "build" in missing:  # setuptools first, so that the compiler can start
        progress.quietly("installing setuptools")
        install(environment.python, [requirements("build")], progress)
        environment.finished("build", digest(requirements("build")))
    job = start_compiling(environment) if compiling else None
    try:
        if missing:
            number = count([requirements(name) for name in missing])
            beside = " and compiling the extensions" if job else ""
            progress.step(f"installing {number} packages ({kind}){beside}", total=number)
            install(environment.python, [requirements(name) for name in missing], progress)
            for name in missing:
                environment.finished(name, digest(requirements(name)))
            environment.forget("package")
        environment.forget("installing")
        if job:
            progress.step("compiling the extensions")
            finish_compiling(environment, job)
    finally:
        if job and job.poll() is None:
            job.kill()


def start_compiling(environment: Environment) -> subprocess.Popen[str]:
    """Start the compiler for both extensions."""
    temporary = environment.venv.resolve() / "build"
    words = [str(environment.python.absolute()), "setup.py", "--quiet", "build_ext", "--inplace", "--force"]
    command = [*words, "--build-temp", str(temporary)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish_compiling(environment: Environment, job: subprocess.Popen[str]) -> None:
    """Wait for it; show its output when it fails."""
    wanted = sources_digest()
    said, _ = job.communicate()
    if job.returncode:
        raise Failure(f"the extensions could not be compiled ({explain(said)})", "see the lines above", said)
    environment.finished("extensions", wanted)


def put_package(environment: Environment, progress: Progress) -> None:
    """Install this checkout as editable."""
    progress.step("installing democrai-sandbox from this folder")
    os.environ["EXTENSIONS_ARE_COMPILED"] = "yes"  # for setup.py
    words = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--editable", str(ROOT)]
    install(environment.python, [], progress, words)
    environment.finished("package", package_digest())


def run(command: list[str]) -> None:
    """Run a command that shows output only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failure.of(done.stdout, f"{command[2]} failed")


@contextlib.contextmanager
def only_one(path: Path | str, what: str):  # noqa: ANN201 - a context manager
    """Wait for another setup, and say so meanwhile."""
    shared = Path(path).is_file() and not str(path).endswith(".lock")
    with open(path, "rb" if shared else "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"setup: waiting for {what}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Bring the environment to the required state; report a failure in one line."""
    venv, kind = Path(arguments[0]), arguments[1]
    os.chdir(ROOT)
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        bring(Environment(venv), kind)
    except Failure as failure:
        failure.tell(venv)
        return 1
    except OSError as error:
        Failure.of(str(error), "the environment cannot be created").tell(venv)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; run it again to continue", file=sys.stderr, flush=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
