"""Return values of extensions, and their conversion: the same in the host and in a worker."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from democrai_sandbox.errors import ResultInvalid
from democrai_sandbox.runtime.calls.outcome import plain_result

STAGE = os.path.join(os.path.dirname(__file__), "separate_host.py")

MODULE = """
import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import typing
import uuid

from democrai_sandbox.guard import current_guard
from democrai_sandbox.policy import DecisionCode

seen = []

class Color(enum.Enum):
    RED = "red"

class Level(enum.IntEnum):
    HIGH = 3

class Right(enum.Flag):
    READ = 1
    WRITE = 2

@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    color: Color
    more: tuple = ()

class Pair(typing.NamedTuple):
    left: Color
    right: int

@dataclasses.dataclass
class Circle:
    inner: object = None

class Nosy(enum.Enum):
    ITEM = 1

    @property
    def value(self):
        look()
        return "nosy"

class NosyDate(datetime.date):
    def isoformat(self):
        look()
        return "nosy"

@dataclasses.dataclass
class NosyPoint:
    x: int = 1

    def __getattribute__(self, name):
        look()
        return object.__getattribute__(self, name)

def look():
    guard = current_guard()
    seen.append(guard and guard.subject)

def values():
    utc = datetime.timezone.utc
    return {
        "code": DecisionCode.PENDING,
        "enum": Color.RED,
        "int enum": Level.HIGH,
        "flag": Right.READ | Right.WRITE,
        "dataclass": Point(1, Color.RED, (Level.HIGH,)),
        "named tuple": Pair(Color.RED, 2),
        "moment": datetime.datetime(2026, 5, 4, 12, 30, tzinfo=utc),
        "day": datetime.date(2026, 5, 4),
        "time": datetime.time(12, 30),
        "span": datetime.timedelta(minutes=1, milliseconds=500),
        "uuid": uuid.UUID(int=5),
        "decimal": decimal.Decimal("1.10"),
        "path": pathlib.Path("/srv/x"),
        "pure": pathlib.PurePosixPath("a/b"),
        Color.RED: [None, True, 1, 1.5, "text", b"bytes", (1, 2)],
    }

@sdk.action("values")
def plain_values(): return values()

@sdk.action("values later")
async def later(): return values()

@sdk.action("decision")
def decision():
    return sdk.access.check_external_access(
        resource_type="network", operation="receive", target="https://a.test", register_request=False
    )

@sdk.action("deep")
def deep():
    found = []
    for _ in range(100): found = [found]
    return found

@sdk.action("circle")
def circle():
    made = Circle()
    made.inner = made
    return made

@sdk.action("object")
def thing(): return {"a": [1, object()]}

@sdk.action("class")
def a_class(): return {"a": Point}

@sdk.action("set")
def a_set(): return {1}

@sdk.action("keys")
def keys(): return {Color.RED: 1, "red": 2}

@sdk.action("nan")
def nan(): return float("nan")

@sdk.action("raises")
def raises():
    @dataclasses.dataclass
    class Odd:
        @property
        def x(self): raise SystemExit(3)
    Odd.__dataclass_fields__ = {"x": Point.__dataclass_fields__["x"]}
    return Odd()

@sdk.action("nosy")
def nosy(): return [Nosy.ITEM, NosyDate(2026, 5, 4), NosyPoint()]

@sdk.action("seen")
def what_was_seen(): return sorted(map(str, set(seen)))
"""
NAMES = ("values", "values later", "decision", "deep", "circle", "object", "class", "set", "keys", "nan", "raises")


def played(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("near", MODULE)
    stage.module("far", MODULE)

    async def story(stage):
        told = {}
        for module in ("near", "far"):
            told[module] = {name: await stage.action(module, name) for name in (*NAMES, "nosy", "seen")}
        values = [told[name].pop(way) for name in told for way in ("values", "values later")]
        for found in values:
            found["red"][5] = found["red"][5].decode()  # the report is JSON
        return told, values

    return stage.play(story, isolation={"module:far": "process"})


@pytest.fixture
def told(case):
    return case.run(played)


def test_values_of_the_usual_types_are_converted(told):
    """Enums become their values, records objects, times ISO texts, durations seconds, and the others their texts."""
    _, values = told
    assert values == [values[0]] * 4
    assert values[0] == {
        "code": "pending",
        "enum": "red",
        "int enum": 3,
        "flag": 3,
        "dataclass": {"x": 1, "color": "red", "more": [3]},
        "named tuple": {"left": "red", "right": 2},
        "moment": "2026-05-04T12:30:00+00:00",
        "day": "2026-05-04",
        "time": "12:30:00",
        "span": 60.5,
        "uuid": "00000000-0000-0000-0000-000000000005",
        "decimal": "1.10",
        "path": "/srv/x",
        "pure": "a/b",
        "red": [None, True, 1, 1.5, "text", "bytes", [1, 2]],
    }


def test_an_answer_of_the_sdk_can_be_returned(told):
    """An access decision becomes an object of its fields."""
    for found in told[0].values():
        assert found["decision"]["code"] == "not_enabled"
        assert found["decision"]["allowed"] is False


def test_other_results_are_a_fault_of_the_extension(told):
    """Objects, classes, sets, loops, deep nesting, ambiguous keys: each with its location, and not a caller error."""
    places = {"deep": "", "circle": "", "object": "/a/1", "class": "/a", "set": "", "keys": "", "nan": ""}
    for found in told[0].values():
        for name, place in places.items():
            kind, text = found[name]
            assert kind == "ResultInvalid", name
            assert place in text
        assert found["raises"][0] == "ExtensionFailed"
        assert "SystemExit" in found["raises"][1]


def test_a_result_that_grows_without_end_is_refused():
    """The number of its values exceeds the limit long before its end."""

    @dataclass
    class Twice:
        inner: object = None

    made = Twice()
    made.inner = [made, made]
    with pytest.raises(ResultInvalid):
        plain_result(made)


def test_conversion_runs_as_the_subject(told):
    """Methods of an extension's own classes run in its guard, never in the host."""
    for module, found in told[0].items():
        assert found["nosy"] == ["nosy", "nosy", {"x": 1}]
        assert found["seen"] == [module]
