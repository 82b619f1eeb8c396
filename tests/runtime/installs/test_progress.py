"""Conversion of pip's output to steps of an installation."""

from __future__ import annotations

from democrai_sandbox.runtime.installs.environments import step_of
from tests.services.rows import rows


@rows(
    ("line", "stage"),
    [
        ("Collecting numpy>=2", "resolve"),
        ("Processing ./folder", "resolve"),
        ("  Downloading numpy-2.1.0.whl (16 MB)", "download"),
        ("  Using cached numpy-2.1.0.whl (16 MB)", "download"),
        ("  Preparing metadata (pyproject.toml): started", "build"),
        ("  Building wheel for thing (pyproject.toml): finished with status 'done'", "build"),
        ("Installing collected packages: a, b", "install"),
    ],
)
def test_each_kind_of_line_has_its_stage(line, stage):
    """The beginning of the line determines the stage; the fraction is unknown."""
    step = step_of(line)
    assert (step.stage, step.fraction) == (stage, None)


def test_raw_progress_gives_a_fraction():
    """Newer versions of pip count bytes; an invalid count gives no fraction above one."""
    assert step_of("Progress 50 of 200").fraction == 0.25
    assert step_of("Progress 300 of 200").fraction == 1.0
    assert step_of("Progress 300 of 0").fraction is None


def test_other_lines_are_no_steps():
    """Warnings and blank lines are ignored."""
    assert step_of("WARNING: something") is None
    assert step_of("") is None


def test_names_of_packages_cannot_command_a_terminal():
    """Control characters are replaced and long texts are cut."""
    step = step_of("Collecting \x1b[31mred\x07" + "x" * 1000)
    assert "\x1b" not in step.text
    assert "\x07" not in step.text
    assert len(step.text) == 300
