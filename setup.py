"""The compiled part of the build; everything else about the package is declared in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

CORE = Path("src/democrai_sandbox/guard/_core")

setup(
    ext_modules=[
        Extension(
            "democrai_sandbox.guard._core",
            # Sorted, so that the same sources always link in the same order.
            sources=sorted(str(source) for source in CORE.glob("*.c")),
            depends=sorted(str(header) for header in CORE.glob("*.h")),
            extra_compile_args=[
                "-std=c11",
                "-O2",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                # Signatures are fixed by the C API, so an argument that goes unused is not a mistake.
                "-Wno-unused-parameter",
                # Method and type tables end in a short terminator on purpose.
                "-Wno-missing-field-initializers",
                # METH_FASTCALL and METH_KEYWORDS functions are stored as PyCFunction by design of the C API.
                "-Wno-cast-function-type",
            ],
        ),
    ],
)
