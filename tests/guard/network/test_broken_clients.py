"""Broken or partly installed HTTP clients: the guard leaves them unchanged, and all other imports work."""

from __future__ import annotations

import pytest

from tests.services.environments import Environment

RAISING = "def __getattr__(name):\n    raise RuntimeError('install the extra for ' + name)\n"
CLIENTS = {
    "aiohttp": f"class ClientSession:\n    async def _request(self): pass\n{RAISING}",
    "httpx": f"class Client:\n    def _send_single_request(self, request): pass\n{RAISING}",
    "requests": RAISING,
    "urllib3": RAISING,
    "httpcore": "",
}
PROGRAM = """
import json, sys
from democrai_sandbox import process_guard_context

client, first = sys.argv[1:]
guard = process_guard_context(subject="demo", allowed_paths=[])
call = {"guarded": lambda function, *arguments: guard.run(function, *arguments), "host": lambda f, *rest: f(*rest)}

def told(name):
    try:
        __import__(name)
    except BaseException as error:
        return type(error).__name__ + ": " + str(error)
    return "imported"

found = {"client": call[first](told, client)}
found["guarded"], found["host"] = guard.run(told, "colorsys"), told("wave")
found["guarded later"] = guard.run(told, "plistlib")
module = sys.modules[client]
found["patched"] = sorted(
    f"{name}.{method}"
    for name, kind in vars(module).items() if isinstance(kind, type)
    for method, function in vars(kind).items() if hasattr(function, "_democrai_sandbox_adapter")
)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment with all of them."""
    made = Environment(tmp_path_factory.mktemp("clients") / "env")
    for name, code in CLIENTS.items():
        made.package(name, code)
    return made


@pytest.mark.parametrize("first", ["guarded", "host"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_broken_client_breaks_nothing_else(environment, client, first):
    """Whichever code imports it first, it and later modules can be imported, and its methods are not replaced."""
    found = environment.answers(PROGRAM, client, first)
    assert found.pop("patched") == []
    assert set(found.values()) == {"imported"}, found


IMPOSTOR = """
import json, sys
from democrai_sandbox import process_guard_context

class Impostor:
    def __getattribute__(self, name):
        raise RuntimeError("look elsewhere")

def put():
    sys.modules["httpx"] = Impostor()

process_guard_context(subject="demo", allowed_paths=[]).run(put)
import wave
print(json.dumps(wave.__name__))
"""


def test_a_subject_cannot_stop_the_imports_of_the_host(environment):
    """A subject replaces a client by an object that fails when its attributes are read."""
    assert environment.answers(IMPOSTOR) == "wave"
