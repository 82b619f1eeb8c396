"""jinja2: templates from files, filters, inheritance, a sandbox and async rendering."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os

    from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, UndefinedError
    from jinja2.sandbox import SandboxedEnvironment, SecurityError

    with open(os.path.join(folder, "base.html"), "w", encoding="utf-8") as file:
        file.write("<h1>{% block title %}base{% endblock %}</h1>{% block body %}{% endblock %}")
    with open(os.path.join(folder, "page.html"), "w", encoding="utf-8") as file:
        file.write(
            '{% extends "base.html" %}{% block title %}{{ title|upper }}{% endblock %}{% block body %}'
            "{% for item in items %}{{ loop.index }}={{ item|double }};{% endfor %}{{ text }}{% endblock %}"
        )
    cache = os.path.join(folder, "cache")
    os.makedirs(cache)
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        bytecode_cache=FileSystemBytecodeCache(cache),
    )
    environment.filters["double"] = lambda value: value * 2
    page = environment.get_template("page.html").render(title="hi", items=[1, 2], text="<b>")
    assert page == "<h1>HI</h1>1=2;2=4;&lt;b&gt;"
    try:
        environment.from_string("{{ missing }}").render()
        undefined = ""
    except UndefinedError as error:
        undefined = str(error)
    try:
        SandboxedEnvironment().from_string("{{ ().__class__.__bases__ }}").render()
        sandbox = "allowed"
    except SecurityError:
        sandbox = "refused"
    template = Environment(enable_async=True).from_string("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(value) }}")
    return {
        "page": page,
        "undefined": undefined,
        "sandbox": sandbox,
        "async": asyncio.run(template.render_async(value=3)),
        "cached": len(os.listdir(cache)),
    }
