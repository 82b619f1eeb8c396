"""Native code through cffi, imported by the subject or already loaded."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import MODULE, SANDBOX, Ground, attacks_of


def use_cffi(cffi) -> bool:
    ffi = cffi.FFI()
    ffi.cdef("int getpid(void);")
    return ffi.dlopen(None).getpid() == os.getpid()


def import_cffi(ground: Ground) -> bool:
    import cffi

    return use_cffi(cffi)


def import_backend(ground: Ground) -> bool:
    import _cffi_backend

    return "getpid" in str(_cffi_backend.load_library(None, 0)) or True


attacks_of(
    {"import": import_cffi, "backend": import_backend},
    "cffi is imported: {}",
    expect=MODULE,
    group="cffi_",
    needs=("cffi",),
)


def load_cffi(ground: Ground) -> None:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef("int getpid(void); int open(const char *, int);")
    ground.held.ffi, ground.held.lib = ffi, ffi.dlopen(None)
    ground.held.getpid = ground.held.lib.getpid


attacks_of(
    {
        "loaded_import": import_cffi,
        "loaded_backend": import_backend,
        "sys_modules": lambda ground: use_cffi(sys.modules["cffi"]),
        "load_library": lambda ground: sys.modules["_cffi_backend"].load_library(None, 0) is not None,
        "held_function": lambda ground: ground.held.getpid() == os.getpid(),
        "held_library": lambda ground: os.read(ground.held.lib.open(ground.outside.encode(), 0), 99),
        "held_cast": lambda ground: ground.held.ffi.cast("char *", id(ground))[0] is not None,
        "held_dlopen": lambda ground: ground.held.ffi.dlopen(None).getpid() == os.getpid(),
    },
    "cffi, which the host loaded before, is used: {}",
    expect=SANDBOX,
    group="cffi_",
    prepare=load_cffi,
    needs=("cffi",),
)
