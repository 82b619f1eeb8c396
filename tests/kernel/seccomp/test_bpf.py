"""Assembler for filters."""

from __future__ import annotations

import pytest

from democrai_sandbox.kernel.seccomp.filters import ARCHITECTURE, NUMBER, Assembler, Instruction, argument
from tests.kernel.seccomp.interpreter import run
from tests.services.golden import sentence
from tests.services.rows import rows


def test_an_instruction_is_the_kernels_eight_bytes():
    assert Instruction(0x15, 1, 2, 0xC000003E).packed().hex() in {"150001023e0000c0", "00150102c000003e"}


def test_jumps_lead_to_their_labels():
    code = Assembler()
    code.load(NUMBER)
    code.if_equal(5, "five")
    code.if_at_least(100, "many", "few")
    code.label("five")
    code.give(55)
    code.label("few")
    code.load(argument(1))
    code.keep_bits(0xF0)
    code.if_any_bit(0x30, "bits")
    code.go("many")
    code.label("bits")
    code.give(3)
    code.label("many")
    code.load(ARCHITECTURE)
    code.if_equal(9, None, "other")
    code.give(9)
    code.label("other")
    code.give(1)
    program = code.assemble()
    assert run(program, 9, 5) == 55
    assert run(program, 9, 6, (0, 0x10)) == 3
    assert run(program, 9, 6, (0, 0x4F)) == 9
    assert run(program, 8, 100) == 1


def test_an_argument_is_looked_at_by_its_lower_half_only():
    code = Assembler()
    code.load(argument(5))
    code.if_equal(7, "seven")
    code.give(0)
    code.label("seven")
    code.give(1)
    assert run(code.assemble(), 0, 0, (0, 0, 0, 0, 0, 7 | 0xABCD << 32)) == 1


def _far(steps: int) -> Assembler:
    code = Assembler()
    code.if_equal(1, "end")
    for _ in range(steps):
        code.load(NUMBER)
    code.label("end")
    code.give(0)
    return code


def test_a_conditional_jump_reaches_255_instructions_and_refuses_more():
    assert _far(255).instructions()[0].jt == 255
    with pytest.raises(ValueError, match="255"):
        _far(256).assemble()


def test_a_plain_jump_reaches_any_distance():
    code = Assembler()
    code.go("end")
    for _ in range(1000):
        code.give(1)
    code.label("end")
    code.give(2)
    assert run(code.assemble(), 0, 0) == 2


def _backwards(code):
    code.label("start")
    code.give(0)
    code.go("start")


def _twice(code):
    code.label("a")
    code.label("a")


@rows(
    ("name", "build"),
    [
        ("a label that is missing", lambda code: code.go("nowhere")),
        ("a jump backwards", _backwards),
        ("a label that stands twice", _twice),
        ("nothing", lambda code: None),
        ("too much", lambda code: [code.give(0) for _ in range(4097)]),
    ],
)
def test_a_program_that_the_kernel_would_not_take_is_refused_by_name(name, build):
    code = Assembler()
    with pytest.raises(ValueError, match=r"\w") as refused:  # noqa: PT012 - either call raises it
        build(code)
        code.assemble()
    sentence(name, str(refused.value))
