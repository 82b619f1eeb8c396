"""How the fuzzers are compiled: with the parsers of the core, and little else of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CORE = ROOT / "src/democrai_sandbox/guard/_core"
NATIVE = ROOT / "src/democrai_sandbox/kernel/_native"
PARSERS = (
    *("chain_rules", "hosts", "hpack", "http2", "network_rules", "paths", "plain_data", "policy", "reader", "requests"),
    *("shared_values", "tls_records", "urls", "wire", "worker_messages"),
)
NAMES = tuple(sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c")))
INCLUDES = {"paths": "paths"}
"""Which fuzzer has which of the parsers' files in itself."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
FLAGS = ("-std=c11", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers")
OPTIONS = {
    # The interpreter keeps some memory until its end; parsers do not leak it.
    # Every new stack of an allocation is kept for good: those of deep recursion would fill the memory.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:malloc_context_size=8",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
}


class BuildError(Exception):
    """The compiler's own words."""


def unavailable(compiler: str) -> str | None:
    """Return why fuzzers cannot be compiled here; nothing when they can."""
    if shutil.which(compiler) is None:
        return f"there is no {compiler}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of CPython are missing"
    return None if _library() else "CPython comes without a library to link with"


def _library() -> Path | None:
    folders = [sysconfig.get_config_var(name) for name in ("LIBDIR", "LIBPL")]
    name = f"python{sysconfig.get_config_var('LDVERSION')}"
    found = (Path(folder) / f"lib{name}{suffix}" for folder in folders if folder for suffix in (".so", ".a"))
    return next((path for path in found if path.exists()), None)


def _linking() -> list[str]:
    libraries = f"{sysconfig.get_config_var('LIBS') or ''} {sysconfig.get_config_var('SYSLIBS') or ''}".split()
    library = _library()
    return [str(library), f"-Wl,-rpath,{library.parent}", "-Wl,--export-dynamic", *libraries, "-lm"]


def build(compiler: str, names: tuple[str, ...] = NAMES) -> dict[str, Path]:
    """Compile fuzzers, by gcc for the corpus alone and by clang with an engine; return where they are."""
    engine = compiler != "gcc"
    folder = ROOT / "build" / "fuzz" / compiler
    flags = [*FLAGS, *SANITIZERS, *(["-O2", "-fsanitize=fuzzer-no-link"] if engine else ["-O0"])]
    flags += [f"-I{path}" for path in (sysconfig.get_path("include"), CORE, NATIVE, HERE)]
    sources = {path for path in CORE.rglob("*.c") if path.stem in PARSERS}
    sources |= {HERE / f"{name}.c" for name in ("readers", "surroundings")}
    sources.add(NATIVE / "order.c")
    own = {name: HERE / f"fuzz_{name}.c" for name in names}
    if not engine:
        sources.add(HERE / "standalone.c")
    mark = folder / "mark"
    digest = _digest([compiler, sys.version, *flags])
    if not mark.exists() or mark.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    programs = {name: folder / name for name in names}
    if all(path.exists() for path in programs.values()) and mark.exists():
        return programs

    def compile_one(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        _run([compiler, *flags, "-c", str(source), "-o", str(made)])
        return made

    def link(name: str) -> None:
        shared = [str(made) for source, made in objects.items() if INCLUDES.get(name) != source.stem]
        with_engine = [f"{SANITIZERS[0]}{',fuzzer' if engine else ''}"]
        _run([compiler, *with_engine, *shared, str(harnesses[name]), *_linking(), "-o", str(programs[name])])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip(sorted(sources), pool.map(compile_one, sorted(sources)), strict=True))
        harnesses = dict(zip(own, pool.map(compile_one, own.values()), strict=True))
        list(pool.map(link, names))
    mark.write_text(digest)
    return programs


def _digest(words: list[str]) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for folder in (CORE, NATIVE, HERE):
        for path in sorted(folder.rglob("*.[ch]")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")
