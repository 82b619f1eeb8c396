"""pydantic: models, validation, JSON and a schema."""

from __future__ import annotations


def main(folder: str) -> object:
    import dataclasses
    import datetime
    import json
    import os
    from typing import Annotated, Optional

    from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, computed_field, field_validator

    class Address(BaseModel):
        city: str
        zip_code: str = Field(alias="zip", pattern=r"^\d{4}$")

    class User(BaseModel):
        model_config = ConfigDict(extra="forbid")

        id: int
        name: Annotated[str, Field(min_length=2)]
        born: Optional[datetime.date] = None
        addresses: list[Address] = []

        @field_validator("name")
        @classmethod
        def title(cls, value: str) -> str:
            return value.title()

        @computed_field
        @property
        def label(self) -> str:
            return f"{self.id}:{self.name}"

    user = User.model_validate(
        {"id": "7", "name": "ann lee", "born": "2000-02-29", "addresses": [{"city": "Bern", "zip": "3000"}]}
    )
    assert user.id == 7 and user.born == datetime.date(2000, 2, 29)
    path = os.path.join(folder, "user.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(user.model_dump_json(by_alias=True, exclude={"label"}))
    with open(path, encoding="utf-8") as file:
        assert User.model_validate_json(file.read()) == user

    try:
        User(id="x", name="a", extra=1)
        problems = []
    except ValidationError as error:
        problems = [[list(e["loc"]), e["type"]] for e in error.errors()]

    Point = dataclasses.make_dataclass("Point", [("x", int), ("y", float)])
    point = TypeAdapter(Point).validate_python({"x": "3", "y": 1})
    numbers = TypeAdapter(list[int]).validate_python(["1", 2, 3.0])
    return {
        "dump": user.model_dump(mode="json"),
        "problems": problems,
        "schema": json.loads(json.dumps(User.model_json_schema(), sort_keys=True)),
        "point": [point.x, point.y],
        "numbers": numbers,
    }
