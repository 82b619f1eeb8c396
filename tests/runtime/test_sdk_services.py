"""Services of the runtime: called by name, with the caller's identity from the core, and refused to narrowed code."""

from __future__ import annotations

from tests.services.golden import sentence


def serving_calls(world):
    from democrai_sandbox.errors import InvalidInputError, SubprocessDenied
    from democrai_sandbox.guard import process_guard_context
    from democrai_sandbox.runtime import sdk_services

    recorded = []

    class Recorder:
        def record(self, denial):
            recorded.append(str(denial))

    def denies(view):
        raise SubprocessDenied("x", subject="demo")

    def breaks(view):
        secret = object()
        raise OSError("the host's own trouble", secret)

    def refuses(view):
        raise InvalidInputError.of("not so")

    services = {
        "who": lambda view: list(view.labels),
        "request": lambda view: "harmless",
        "denies": denies,
        "breaks": breaks,
        "refuses": refuses,
        "two": lambda view, a, b: a + b,
    }
    sdk_services.install(services, recorder=Recorder())

    def told(name, *args):
        try:
            return sdk_services.call(name, *args)
        except Exception as error:
            return [type(error).__name__, str(error)]

    def subject():
        inner = process_guard_context(subject="demo", allowed_paths=[])
        return {
            "who": told("who"),
            "denies": told("denies"),
            "breaks": told("breaks"),
            "refuses": told("refuses"),
            "two": told("two", 1, 2),
            "one": told("two", 1),
            "unknown": told("unknown"),
            "narrowed": inner.run(told, "who"),
            "narrowed but harmless": inner.run(told, "request"),
            "install": told_install(),
        }

    def told_install():
        try:
            sdk_services.install({"mine": subject})
        except Exception as error:
            return type(error).__name__
        return "installed"

    return [process_guard_context(subject="demo", allowed_paths=[world.root]).run(subject), recorded]


def test_a_service_answers_who_asks_and_shows_nothing_of_the_host_when_it_fails(case):
    """Denials and refusals reach the caller; a failure only names the service."""
    told, recorded = case.run(serving_calls)
    failures = {"breaks": "RuntimeServiceFailed", "one": "RuntimeServiceFailed", "unknown": "NoRuntime"}
    for name, expected in failures.items():
        kind, text = told.pop(name)
        assert kind == expected
        sentence(f"service: {name}", text)
        assert "trouble" not in text
    assert told == {
        "who": ["module:demo"],
        "denies": ["SubprocessDenied", "sandbox_subprocess_denied:x"],
        "refuses": ["InvalidInputError", "not so"],
        "two": 3,
        "narrowed": ["TamperDenied", "sandbox_guard_denied:who"],
        "narrowed but harmless": "harmless",
        "install": "TamperDenied",
    }
    assert recorded[:2] == ["sandbox_subprocess_denied:x", "sandbox_guard_denied:who"]
