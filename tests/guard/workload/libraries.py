"""Ordinary work with installed third-party libraries. A missing one is reported as skipped."""

from __future__ import annotations

import os


def numpy_arrays(w):
    import numpy as np

    path = os.path.join(w.root, "a.npy")
    values = np.arange(12.0).reshape(3, 4)
    np.save(path, values)
    assert np.load(path).sum() == values.sum()
    np.savez(os.path.join(w.root, "b.npz"), a=values, b=values * 2)
    with np.load(os.path.join(w.root, "b.npz")) as both:
        assert (both["b"] == values * 2).all()
    mapped = np.memmap(os.path.join(w.root, "m.dat"), dtype="f8", mode="w+", shape=(4,))
    mapped[:] = 3
    mapped.flush()
    del mapped
    assert np.fromfile(os.path.join(w.root, "m.dat")).tolist() == [3.0] * 4
    np.savetxt(os.path.join(w.root, "t.txt"), values)
    assert np.loadtxt(os.path.join(w.root, "t.txt")).shape == (3, 4)
    assert np.linalg.inv(np.eye(3)).trace() == 3
    assert np.random.default_rng(1).normal(size=3).shape == (3,)


def pydantic_models(w):
    import pydantic

    class Item(pydantic.BaseModel):
        name: str
        size: int = 1
        path: pydantic.FilePath | None = None

    path = os.path.join(w.root, "f")
    open(path, "w").close()
    item = Item.model_validate_json(f'{{"name": "x", "size": "3", "path": "{path}"}}')
    assert item.size == 3
    assert Item.model_json_schema()["title"] == "Item"
    try:
        Item(name="x", size="many")
    except pydantic.ValidationError as error:
        assert error.error_count() == 1


def requests_session(w):
    import requests

    session = requests.Session()
    session.headers["X"] = "y"
    session.mount("https://", requests.adapters.HTTPAdapter(max_retries=1))
    prepared = session.prepare_request(requests.Request("POST", "https://example.com/a", json={"a": 1}))
    assert prepared.headers["Content-Type"] == "application/json"
    settings = session.merge_environment_settings(prepared.url, {}, None, None, None)
    assert settings["verify"]
    session.close()


def certifi_bundle(w):
    import ssl

    import certifi

    assert os.path.exists(certifi.where())
    assert ssl.create_default_context(cafile=certifi.where())


def jinja_templates(w):
    import jinja2

    with open(os.path.join(w.root, "page.html"), "w") as file:
        file.write("{% extends 'base.html' %}{% block b %}{{ name|e }}{% endblock %}")
    with open(os.path.join(w.root, "base.html"), "w") as file:
        file.write("<{% block b %}{% endblock %}>")
    cache = os.path.join(w.root, "cache")
    os.mkdir(cache)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(w.root), bytecode_cache=jinja2.FileSystemBytecodeCache(cache)
    )
    assert environment.get_template("page.html").render(name="<x>") == "<&lt;x&gt;>"
    try:
        environment.get_template("missing.html")
    except jinja2.TemplateNotFound:
        pass


def jinja_packages(w):
    import jinja2

    assert jinja2.PackageLoader("jinja2", "").list_templates() is not None


def yaml_files(w):
    import yaml

    path = os.path.join(w.root, "a.yaml")
    with open(path, "w") as file:
        yaml.safe_dump({"a": [1, 2]}, file)
    with open(path) as file:
        assert yaml.safe_load(file) == {"a": [1, 2]}


def attrs_classes(w):
    import attrs

    @attrs.define(slots=True)
    class Point:
        x: int = attrs.field(validator=attrs.validators.instance_of(int))
        y: int = 2

    assert attrs.asdict(Point(1)) == {"x": 1, "y": 2}
    assert attrs.evolve(Point(1), y=3).y == 3


def hypothesis_import(w):
    import hypothesis.strategies

    assert hypothesis.strategies.integers()


def idna_names(w):
    import idna

    assert idna.encode("bücher.example") == b"xn--bcher-kva.example"


def timezone_data(w):
    import importlib.resources

    import tzdata

    assert tzdata.IANA_VERSION
    assert importlib.resources.files("tzdata.zoneinfo").joinpath("UTC").read_bytes()


def package_tools(w):
    import packaging.version
    import pluggy

    assert packaging.version.parse("1.10") > packaging.version.parse("1.9")
    manager = pluggy.PluginManager("x")
    assert manager.load_setuptools_entrypoints("nothing-of-this-name") == 0


def urllib3_pools(w):
    import urllib3

    pool = urllib3.PoolManager(cert_reqs="CERT_REQUIRED")
    assert pool.connection_from_url("https://example.com/").host == "example.com"
    pool.clear()


def pygments_highlighting(w):
    import pygments
    import pygments.formatters
    import pygments.lexers

    lexer = pygments.lexers.get_lexer_by_name("python")
    assert "x" in pygments.highlight("x = 1", lexer, pygments.formatters.get_formatter_by_name("html"))
