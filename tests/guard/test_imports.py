"""Imports and bytecode of guarded code."""

from __future__ import annotations

from tests.guard.harness import Case


def repeated_imports(world):
    """Return the results of imports that several subjects repeat."""
    from democrai_sandbox import configure_guard, process_guard_context

    configure_guard(sensitive_imports=["colorsys"])

    def result_of(name):
        try:
            __import__(name)
        except Exception as error:
            return type(error).__name__
        return "ok"

    def imports():
        return [result_of(name) for name in ("colorsys", "json", "colorsys", "json.decoder", "colorsys.x")]

    declared = process_guard_context(subject="one", allowed_paths=[world.root], allowed_imports=["colorsys"])
    return declared.run(imports), process_guard_context(subject="two", allowed_paths=[world.root]).run(imports)


def odd_bytecode(world):
    """Return the results of marshal.loads for views, also released ones and ones with gaps."""
    import marshal

    from democrai_sandbox import process_guard_context

    content = marshal.dumps(compile("1 + 1", "x", "eval"))
    released = memoryview(bytes(content))
    released.release()

    def load(data):
        try:
            return type(marshal.loads(data)).__name__
        except Exception as error:
            return type(error).__name__

    views = [content, memoryview(content), released, memoryview(b"x".join(bytes([c]) for c in content))[::2]]
    plain = [load(view) for view in views]
    return plain, process_guard_context(subject="demo", allowed_paths=[world.root]).run(lambda: [*map(load, views)])


def test_a_sensitive_import_is_refused_whenever_it_is_not_declared(case: Case) -> None:
    declared, other = case.run(repeated_imports)
    assert declared == ["ok", "ok", "ok", "ok", "ModuleNotFoundError"]
    assert other == ["ModuleDenied", "ok", "ModuleDenied", "ok", "ModuleDenied"]


def test_bytecode_is_read_from_views_as_without_a_guard(case: Case) -> None:
    plain, guarded = case.run(odd_bytecode)
    assert plain == guarded == ["code", "code", "ValueError", "BufferError"]
