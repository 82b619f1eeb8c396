"""Small assembler for the classic BPF programs of seccomp."""

from __future__ import annotations

import struct
from typing import NamedTuple

NUMBER = 0
"""Offset of the system call number in the data of a filter."""
ARCHITECTURE = 4
RET_ERRNO = 0x00050000
"""Return value that refuses a call, with the error number in its lower half."""

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_GO = 0x05  # BPF_JMP | BPF_JA
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_LONGEST = 4096  # BPF_MAXINSNS
_FARTHEST = 255  # a conditional jump has one byte per branch


class Instruction(NamedTuple):
    """One ``struct sock_filter``."""

    code: int
    jt: int
    jf: int
    k: int

    def packed(self) -> bytes:
        """Return its eight bytes."""
        return struct.pack("=HBBI", *self)


class _LabeledInstruction(NamedTuple):
    """Instruction with named jump targets; ``None`` continues with the next one."""

    code: int
    value: int
    then: str | None = None
    otherwise: str | None = None


def argument(index: int) -> int:
    """Return the offset of the lower half of an argument; both architectures are little-endian.

    Only that half is compared: the kernel uses these arguments as 32-bit numbers, so a 64-bit comparison could be
    bypassed by setting an upper bit.
    """
    return 16 + 8 * index


class Assembler:
    """Assembler that collects instructions and labels."""

    def __init__(self) -> None:
        self._steps: list[_LabeledInstruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Label the next instruction."""
        if name in self._labels:
            raise ValueError(f"duplicate label {name!r}")
        self._labels[name] = len(self._steps)

    def load(self, offset: int) -> None:
        """Load a word of the call's data."""
        self._steps.append(_LabeledInstruction(_LOAD, offset))

    def keep_bits(self, mask: int) -> None:
        """Clear all other bits of the loaded word."""
        self._steps.append(_LabeledInstruction(_AND, mask))

    def if_equal(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on equality."""
        self._steps.append(_LabeledInstruction(_EQUAL, value, then, otherwise))

    def if_at_least(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on an unsigned comparison: this value or greater."""
        self._steps.append(_LabeledInstruction(_AT_LEAST, value, then, otherwise))

    def if_any_bit(self, mask: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on whether one of the bits is set."""
        self._steps.append(_LabeledInstruction(_ANY_BIT, mask, then, otherwise))

    def go(self, label: str) -> None:
        """Jump over any distance."""
        self._steps.append(_LabeledInstruction(_GO, 0, label))

    def give(self, value: int) -> None:
        """Return this value."""
        self._steps.append(_LabeledInstruction(_RETURN, value))

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the program with numeric jumps; reject one that the kernel would not accept."""
        if not 0 < len(self._steps) <= _LONGEST:
            raise ValueError(f"a program has 1 to {_LONGEST} instructions, this one has {len(self._steps)}")
        return tuple(self._resolved(index, step) for index, step in enumerate(self._steps))

    def assemble(self) -> bytes:
        """Return the program in the kernel's binary format."""
        return b"".join(map(Instruction.packed, self.instructions()))

    def _resolved(self, index: int, step: _LabeledInstruction) -> Instruction:
        if step.then is None and step.otherwise is None:
            return Instruction(step.code, 0, 0, step.value)
        if step.code == _GO:
            return Instruction(step.code, 0, 0, self._distance(index, step.then))
        then, otherwise = (self._distance(index, label) for label in (step.then, step.otherwise))
        if max(then, otherwise) > _FARTHEST:
            raise ValueError(f"instruction {index} would jump over more than {_FARTHEST} others: use go()")
        return Instruction(step.code, then, otherwise, step.value)

    def _distance(self, index: int, label: str | None) -> int:
        """Return the number of instructions to skip; backward jumps are impossible."""
        if label is None:
            return 0
        if label not in self._labels:
            raise ValueError(f"instruction {index} jumps to {label!r}, which does not exist")
        distance = self._labels[label] - index - 1
        if distance < 0:
            raise ValueError(f"instruction {index} would jump backward to {label!r}")
        return distance
