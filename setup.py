"""The compiled part of the build; everything else about the package is declared in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

PACKAGE = Path("src/democrai_sandbox")
ARGUMENTS = [
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
]


def extension(place: str, *arguments: str) -> Extension:
    """Return the extension whose C sources are all that lies in a folder of its name."""
    folder = PACKAGE / place
    return Extension(
        ".".join(("democrai_sandbox", *Path(place).parts)),
        # Sorted, so that the same sources always link in the same order.
        sources=sorted(str(source) for source in folder.glob("*.c")),
        depends=sorted(str(header) for header in folder.glob("*.h")),
        extra_compile_args=[*ARGUMENTS, *arguments],
    )


extensions = [extension("guard/_core")]
if sys.platform == "linux":
    # Elsewhere there is nothing for it to call: the kernel layer then says that it is not supported.
    extensions.append(extension("kernel/_native", "-D_GNU_SOURCE"))

setup(ext_modules=extensions)
