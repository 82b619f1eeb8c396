"""Interpreter for filters: classic BPF over ``struct seccomp_data``, as far as our assembler uses it."""

from __future__ import annotations

import struct

_INSTRUCTION = struct.Struct("=HBBI")
_DATA = struct.Struct("<IIQ6Q")  # both architectures are little-endian


def decoded(program: bytes) -> list[tuple[int, int, int, int]]:
    """Return the instructions, after the kernel's checks."""
    assert len(program) % 8 == 0
    steps = list(_INSTRUCTION.iter_unpack(program))
    assert 0 < len(steps) <= 4096
    for index, (code, jt, jf, k) in enumerate(steps):
        assert code in {0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06}, hex(code)
        if code == 0x20:
            assert k % 4 == 0 and k < _DATA.size
        farthest = k if code == 0x05 else max(jt, jf)
        if code != 0x06:
            assert index + 1 + farthest < len(steps), "a jump past the end"
    assert steps[-1][0] == 0x06
    return steps


def run(program: bytes, arch: int, number: int, args: tuple[int, ...] = (), *, pointer: int = 0x1000) -> int:
    """Return the filter's result for one call."""
    return run_steps(decoded(program), arch, number, args, pointer=pointer)[0]


def run_steps(steps, arch: int, number: int, args: tuple[int, ...] = (), *, pointer: int = 0x1000) -> tuple[int, int]:
    """Return the result, and the number of executed instructions."""
    padded = tuple(value & 0xFFFFFFFFFFFFFFFF for value in args) + (0,) * (6 - len(args))
    data = _DATA.pack(number & 0xFFFFFFFF, arch, pointer, *padded)
    accumulator = place = taken = 0
    while True:
        code, jt, jf, k = steps[place]
        place += 1
        taken += 1
        match code:
            case 0x20:
                accumulator = int.from_bytes(data[k : k + 4], "little")
            case 0x54:
                accumulator &= k
            case 0x05:
                place += k
            case 0x15:
                place += jt if accumulator == k else jf
            case 0x35:
                place += jt if accumulator >= k else jf
            case 0x45:
                place += jt if accumulator & k else jf
            case 0x06:
                return k, taken
