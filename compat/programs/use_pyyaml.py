"""pyyaml: load and dump documents, with a custom tag."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import yaml

    items = [{"id": 1, "price": 2.5}, {"id": 2, "price": None}]
    data = {"name": "shop", "items": items, "open": True, "text": "a\nb\n"}
    path = os.path.join(folder, "data.yaml")
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(data, file, sort_keys=False)
    with open(path, encoding="utf-8") as file:
        assert yaml.safe_load(file) == data
    if yaml.__with_libyaml__:
        with open(path, encoding="utf-8") as file:
            assert yaml.load(file, Loader=yaml.CSafeLoader) == data

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!twice", lambda loader, node: int(loader.construct_scalar(node)) * 2)
    custom = yaml.load("a: !twice 21\nb: &x [1, 2]\nc: *x\n", Loader=Loader)
    documents = list(yaml.safe_load_all("--- 1\n--- [2]\n--- {a: 2024-01-02}\n"))
    try:
        yaml.safe_load("a: [1, 2")
        error = ""
    except yaml.YAMLError as problem:
        error = type(problem).__name__
    try:
        yaml.safe_load("!!python/object/apply:os.getcwd []")
        unsafe = "loaded"
    except yaml.constructor.ConstructorError:
        unsafe = "refused"
    return {"custom": custom, "documents": str(documents), "error": error, "unsafe": unsafe, "dump": yaml.dump(data)}
