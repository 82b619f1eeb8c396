"""JSON Schema from signatures, and validation of arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.runtime.ai.schema import check_arguments, check_schema, fits, signature_shape
from tests.services.golden import sentence
from tests.services.rows import rows


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Point:
    x: int
    y: float = 0.0


class Place(TypedDict):
    name: str
    at: Point
    note: NotRequired[str]


def everything(
    text: str,
    count: int,
    share: float,
    on: bool,
    nothing: None,
    words: list[str],
    table: dict[str, int],
    pair: tuple[int, str],
    many: tuple[Point, ...],
    mode: Literal["fast", "slow", 3],
    colour: Colour,
    size: Size,
    either: int | str | None,
    maybe: Optional[Union[Colour, Point]],
    place: Place,
    anything: Any,
    said: Annotated[str, "What was said."] = "hello",
    later: Size = Size.LARGE,
) -> str:
    """Take everything.

    What follows is not for a model.
    """
    return text


def refused(function):
    """Return the problems of a function, each with its location."""
    with pytest.raises(InvalidInputError) as caught:
        signature_shape(function)
    return {problem.pointer: problem.message for problem in caught.value.problems}


class TestDerived:
    def test_every_supported_type_has_its_schema(self):
        """A model reads the schema, so it is spelled out here."""
        schema = signature_shape(everything).schema
        assert schema["description"] == "Take everything."
        assert schema["additionalProperties"] is False
        assert schema["required"][-1] == "anything"
        point = {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        }
        assert schema["properties"] == {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "on": {"type": "boolean"},
            "nothing": {"type": "null"},
            "words": {"type": "array", "items": {"type": "string"}},
            "table": {"type": "object", "additionalProperties": {"type": "integer"}},
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
            "many": {"type": "array", "items": point},
            "mode": {"enum": ["fast", "slow", 3]},
            "colour": {"enum": ["red", "blue"]},
            "size": {"enum": [1, 2]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            "maybe": {"anyOf": [{"enum": ["red", "blue"]}, point, {"type": "null"}]},
            "place": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "at": point, "note": {"type": "string"}},
                "required": ["name", "at"],
                "additionalProperties": False,
            },
            "anything": {},
            "said": {"type": "string", "description": "What was said.", "default": "hello"},
            "later": {"enum": [1, 2], "default": 2},
        }
        check_schema(schema)
        json.dumps(schema)

    def test_arguments_become_what_the_annotations_say(self):
        """An enumeration gets its member, a dataclass its instance, a tuple stays a tuple."""
        shape = signature_shape(everything)
        given = {
            **{"text": "a", "count": 1, "share": 2, "on": True, "nothing": None, "words": [], "table": {}},
            **{"pair": [1, "a"], "many": [{"x": 1}], "mode": 3, "colour": "red", "size": 2, "either": None},
            **{"maybe": {"x": 5}, "place": {"name": "a", "at": {"x": 1, "y": 2.5}}, "anything": [1]},
        }
        check_arguments(given, shape.schema)
        made = shape.build(given)
        assert made["pair"] == (1, "a")
        assert made["many"] == (Point(1),)
        assert (made["colour"], made["size"]) == (Colour.RED, Size.LARGE)
        assert made["maybe"] == Point(5)
        assert made["place"] == {"name": "a", "at": Point(1, 2.5)}

    def test_all_that_is_wrong_is_said_at_once(self):
        """Each with its parameter."""

        def wrong(untyped, data: bytes, keys: dict[int, str], own: object, *rest: int, **more: int): ...

        said = refused(wrong)
        assert set(said) == {"/untyped", "/data", "/keys", "/own", "/rest", "/more"}
        sentence("untyped", said["/untyped"])
        sentence("bytes", said["/data"])

    def test_an_annotation_that_cannot_be_evaluated_is_a_problem_not_a_crash(self):
        """It may even raise an error other than NameError."""

        def unknown(value: "Nowhere"): ...  # noqa: F821

        def hostile(value: "1 / 0"): ...

        @dataclass
        class Odd:
            inner: "Nowhere"  # noqa: F821

        assert "NameError" in refused(unknown)[""]
        odd = refused(function_of(Odd))
        assert set(odd) == {"/value"}
        assert "Odd" in odd["/value"]
        assert "ZeroDivisionError" in refused(hostile)[""]

    def test_a_type_that_contains_itself_is_refused(self):
        """Its schema would be infinite."""

        @dataclass
        class Node:
            inner: "Node"

        Node.__annotations__["inner"] = Node

        sentence(
            "contains itself", "\n".join(f"{place} {message}" for place, message in refused(function_of(Node)).items())
        )


class TestChecked:
    def problems(self, given, schema):
        with pytest.raises(InvalidInputError) as caught:
            check_arguments(given, schema)
        return {problem.pointer: problem for problem in caught.value.problems}

    def test_every_problem_has_its_place(self):
        """And a suggestion, where possible."""
        schema = signature_shape(everything).schema
        found = self.problems(
            {"text": 1, "count": True, "share": "1", "words": [1, "a"], "pair": [1], "mode": "fsat", "plase": {}},
            schema,
        )
        assert {"/text", "/count", "/share", "/words/0", "/pair", "/mode", "/plase", ""} == set(found)
        assert found["/mode"].suggestion == "fast"
        assert found["/plase"].suggestion == "place"
        sentence("true is no number", found["/count"].message)

    def test_true_is_no_number_and_one_is_not_true(self):
        """They are equal in Python, but not for a tool."""

        def flags(choice: Literal[1, 2], number: int, on: bool): ...

        schema = signature_shape(flags).schema
        assert set(self.problems({"choice": True, "number": False, "on": 1}, schema)) == {"/choice", "/number", "/on"}

    def test_the_problems_are_bounded(self):
        """Stop after twenty, even if more items are invalid."""

        def take(items: list[str]): ...

        with pytest.raises(InvalidInputError) as caught:
            check_arguments({"items": [1] * 1000}, signature_shape(take).schema)
        assert len(caught.value.problems) == 20

    def test_a_schema_without_end_is_refused(self):
        """Before Python exceeds its stack."""
        schema = {}
        for _ in range(2000):
            schema = {"items": schema}
        with pytest.raises(InvalidInputError):
            check_schema(schema)


@rows(
    "schema",
    [
        None,
        [],
        {"type": "widget"},
        {"$ref": "#"},
        {"pattern": "(a+)+$"},
        {"properties": {"a": 1}},
        {"anyOf": {}},
        {"items": []},
        {"required": [1]},
        {"enum": [[1]]},
    ],
)
def test_a_schema_that_was_not_derived_is_refused(schema):
    """A module could pass in any schema, and a pattern or a reference would be evaluated outside the guard."""
    with pytest.raises(InvalidInputError):
        check_schema(schema)


# ---- properties ------------------------------------------------------------------------------------------------------

SCALARS = st.sampled_from([str, int, float, bool, type(None), Colour, Size, Point, Literal["a", 1, True]])
HINTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: tuple[hint, ...]),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        st.tuples(inner, inner).map(lambda pair: Union[pair]),
    ),
    max_leaves=6,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.sampled_from(["", "a", "red"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xya"), inner, max_size=3)),
    max_leaves=8,
)


def function_of(hint):
    def function(value): ...

    function.__annotations__ = {"value": hint}
    return function


@given(HINTS)
def test_what_is_derived_is_always_a_schema_of_ours(hint):
    """For every combination."""
    schema = signature_shape(function_of(hint)).schema
    check_schema(schema)
    json.dumps(schema)


@given(HINTS, JSON)
def test_the_validator_agrees_with_jsonschema(hint, value):
    """Except that 1.0 is not an integer here: a tool that takes an int would get a float."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = signature_shape(function_of(hint)).schema
    ours = fits({"value": value}, schema)
    theirs = jsonschema.Draft202012Validator(schema).is_valid({"value": value})
    if ours != theirs:
        assert theirs
        assert ".0" in json.dumps(value)


@given(HINTS, JSON)
def test_arguments_are_refused_unless_they_fit_and_what_fits_can_be_built(hint, value):
    """The check of arguments and the comparison of alternatives agree."""
    shape = signature_shape(function_of(hint))
    fitting = fits({"value": value}, shape.schema)
    try:
        check_arguments({"value": value}, shape.schema)
    except InvalidInputError as error:
        assert not fitting
        assert error.problems
    else:
        assert fitting
        if shape.build is not None:
            assert set(shape.build({"value": value})) == {"value"}
