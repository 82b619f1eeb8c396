"""A small assembler for the classic BPF programs that seccomp takes."""

from __future__ import annotations

import struct
from typing import NamedTuple

NUMBER = 0
"""Where the number of the call stands in the data that a filter sees."""
ARCHITECTURE = 4
RET_ERRNO = 0x00050000
"""The answer by which a call is refused, with the number of the error in its lower half."""

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_GO = 0x05  # BPF_JMP | BPF_JA
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_LONGEST = 4096  # BPF_MAXINSNS
_FARTHEST = 255  # a conditional jump has one byte for each way


class Instruction(NamedTuple):
    """One ``struct sock_filter``."""

    code: int
    jt: int
    jf: int
    k: int

    def packed(self) -> bytes:
        """Return its eight bytes."""
        return struct.pack("=HBBI", *self)


class _Step(NamedTuple):
    """An instruction whose jumps still have names; ``None`` goes on with the next one."""

    code: int
    value: int
    then: str | None = None
    otherwise: str | None = None


def argument(index: int) -> int:
    """Return where the lower half of an argument stands; both architectures are little-endian.

    Only that half is ever looked at: the kernel takes the inspected ones as 32-bit numbers, so a comparison of all 64
    bits would be passed by setting an upper one.
    """
    return 16 + 8 * index


class Assembler:
    """Collects steps and labels, and turns them into a program."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the place of the next step."""
        if name in self._labels:
            raise ValueError(f"label {name!r} stands at two places")
        self._labels[name] = len(self._steps)

    def load(self, offset: int) -> None:
        """Take a word of the call's data."""
        self._steps.append(_Step(_LOAD, offset))

    def keep_bits(self, mask: int) -> None:
        """Clear all other bits of what was taken."""
        self._steps.append(_Step(_AND, mask))

    def if_equal(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump by whether it is this value."""
        self._steps.append(_Step(_EQUAL, value, then, otherwise))

    def if_at_least(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump by whether it is this value or a greater one, without a sign."""
        self._steps.append(_Step(_AT_LEAST, value, then, otherwise))

    def if_any_bit(self, mask: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump by whether one of the bits is set."""
        self._steps.append(_Step(_ANY_BIT, mask, then, otherwise))

    def go(self, label: str) -> None:
        """Jump, however far."""
        self._steps.append(_Step(_GO, 0, label))

    def give(self, value: int) -> None:
        """End with this answer."""
        self._steps.append(_Step(_RETURN, value))

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the program with its jumps as numbers; refuse one that the kernel would not take."""
        if not 0 < len(self._steps) <= _LONGEST:
            raise ValueError(f"a program has 1 to {_LONGEST} instructions, this one has {len(self._steps)}")
        return tuple(self._resolved(index, step) for index, step in enumerate(self._steps))

    def assemble(self) -> bytes:
        """Return the program as the kernel reads it."""
        return b"".join(map(Instruction.packed, self.instructions()))

    def _resolved(self, index: int, step: _Step) -> Instruction:
        if step.then is None and step.otherwise is None:
            return Instruction(step.code, 0, 0, step.value)
        if step.code == _GO:
            return Instruction(step.code, 0, 0, self._distance(index, step.then))
        then, otherwise = (self._distance(index, label) for label in (step.then, step.otherwise))
        if max(then, otherwise) > _FARTHEST:
            raise ValueError(f"instruction {index} would jump over more than {_FARTHEST} others: lead it by a go()")
        return Instruction(step.code, then, otherwise, step.value)

    def _distance(self, index: int, label: str | None) -> int:
        """Return how many instructions lie between; a program cannot go back."""
        if label is None:
            return 0
        if label not in self._labels:
            raise ValueError(f"instruction {index} jumps to {label!r}, which is nowhere")
        distance = self._labels[label] - index - 1
        if distance < 0:
            raise ValueError(f"instruction {index} would jump back to {label!r}")
        return distance
