"""orjson: fast JSON with dates, dataclasses and numpy arrays."""

from __future__ import annotations


def main(folder: str) -> object:
    import dataclasses
    import datetime
    import os
    import uuid

    import numpy as np
    import orjson

    Point = dataclasses.make_dataclass("Point", [("x", int), ("y", float)])
    data = {
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "id": uuid.UUID(int=5),
        "point": Point(1, 2.5),
        "array": np.arange(4),
        3: "key",
        "text": "caf\u00e9",
        "set": {1},
    }
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2
    encoded = orjson.dumps(data, default=list, option=options)
    path = os.path.join(folder, "data.json")
    with open(path, "wb") as file:
        file.write(encoded)
    with open(path, "rb") as file:
        loaded = orjson.loads(file.read())
    assert loaded["array"] == [0, 1, 2, 3] and loaded["point"] == {"x": 1, "y": 2.5}
    try:
        orjson.loads("{bad")
        error = ""
    except orjson.JSONDecodeError as problem:
        error = type(problem).__name__
    ordered = orjson.dumps({"b": 1, "a": 2}, option=orjson.OPT_SORT_KEYS).decode()
    return {"loaded": loaded, "error": error, "ordered": ordered}
