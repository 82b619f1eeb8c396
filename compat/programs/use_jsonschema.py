"""jsonschema: validation, errors, references, formats and a custom keyword."""

from __future__ import annotations


def main(folder: str) -> object:
    import json
    import os

    from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validate, validators
    from jsonschema.exceptions import SchemaError, best_match
    from referencing import Registry, Resource

    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 2},
            "age": {"type": "integer", "minimum": 0},
            "mail": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
        },
        "required": ["name"],
        "additionalProperties": False,
        "$defs": {"tag": {"enum": ["a", "b"]}},
    }
    path = os.path.join(folder, "schema.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(schema, file)
    with open(path, encoding="utf-8") as file:
        loaded = json.load(file)
    Draft202012Validator.check_schema(loaded)
    validate({"name": "Ann", "age": 5, "tags": ["a"]}, loaded)
    checker = Draft202012Validator(loaded, format_checker=FormatChecker())
    bad = {"name": "A", "age": -1, "mail": "x", "tags": ["c", "c"], "more": 1}
    errors = sorted([list(error.absolute_path), error.validator] for error in checker.iter_errors(bad))
    try:
        validate({}, loaded)
        message = ""
    except ValidationError as error:
        message = error.message
    try:
        Draft202012Validator.check_schema({"type": "nothing"})
        wrong = ""
    except SchemaError as error:
        wrong = error.validator

    registry = Registry().with_resource(
        "urn:address", Resource.from_contents({"$schema": schema["$schema"], "required": ["city"]})
    )
    remote = Draft202012Validator({"properties": {"address": {"$ref": "urn:address"}}}, registry=registry)

    def even(validator: object, value: bool, instance: int, schema: dict) -> object:
        if value and instance % 2:
            yield ValidationError(f"{instance} is odd")

    Even = validators.extend(Draft202012Validator, {"even": even})
    return {
        "errors": [[str(part) for part in error[0]] + [error[1]] for error in errors],
        "message": message,
        "wrong": wrong,
        "best": best_match(checker.iter_errors({"name": 5})).message,
        "remote": [remote.is_valid({"address": {"city": "x"}}), remote.is_valid({"address": {}})],
        "even": [error.message for error in Even({"even": True}).iter_errors(3)],
    }
