"""The compiled part of the build; everything else about the package is declared in pyproject.toml."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = Path("src/democrai_sandbox")
ARGUMENTS = [
    "-std=c11",
    "-O2",
    "-fvisibility=hidden",
    # Calls into the interpreter go straight to their target, without a stub in between.
    "-fno-plt",
    "-Wall",
    "-Wextra",
    # Signatures are fixed by the C API, so an argument that goes unused is not a mistake.
    "-Wno-unused-parameter",
    # Method and type tables end in a short terminator on purpose.
    "-Wno-missing-field-initializers",
    # METH_FASTCALL and METH_KEYWORDS functions are stored as PyCFunction by design of the C API.
    "-Wno-cast-function-type",
]


def extension(place: str, *arguments: str) -> Extension:
    """Return the extension whose C sources are all that lies below a folder of its name."""
    folder = PACKAGE / place
    return Extension(
        ".".join(("democrai_sandbox", *Path(place).parts)),
        # Sorted, so that the same sources always link in the same order.
        sources=sorted(str(source) for source in folder.rglob("*.c")),
        include_dirs=[str(folder)],
        libraries=["m"],
        depends=sorted(str(header) for header in folder.rglob("*.h")),
        extra_compile_args=[*ARGUMENTS, *arguments],
    )


class Build(build_ext):
    """Compiles the sources of an extension side by side, as many as there are processors."""

    def build_extensions(self) -> None:
        """Have the compiler take one source at a time, from several threads."""
        one = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            objects = one(sources[:1], **options)  # alone, because it makes the folders
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for more in pool.map(lambda source: one([source], **options), sources[1:]):
                    objects += more
            return objects

        self.compiler.compile = compile_all
        super().build_extensions()


class CompileCommands(build_ext):
    """Writes compile_commands.json, which tells editors and clangd how each C source is compiled."""

    def build_extensions(self) -> None:
        """Write the commands instead of running them."""
        entries = [
            {"directory": str(Path.cwd()), "file": source, "arguments": self._arguments(one, source)}
            for one in self.extensions
            for source in one.sources
        ]
        Path("compile_commands.json").write_text(json.dumps(entries, indent=1) + "\n")

    def _arguments(self, one: Extension, source: str) -> list[str]:
        folders = [f"-I{folder}" for folder in (*one.include_dirs, *self.include_dirs)]
        return [*self.compiler.compiler_so, *folders, *one.extra_compile_args, "-c", source]


extensions = [extension("guard/_core")]
if sys.platform == "linux":
    # Elsewhere there is nothing for it to call: the kernel layer then says that it is not supported.
    extensions.append(extension("kernel/_native", "-D_GNU_SOURCE"))

# scripts/setup has compiled them beside their sources already, when it has the package installed from there.
compiled = "EXTENSIONS_ARE_COMPILED" in os.environ
setup(ext_modules=[] if compiled else extensions, cmdclass={"build_ext": Build, "compile_commands": CompileCommands})
