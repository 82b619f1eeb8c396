"""Tables in modules: all code in the process can read a module, so a table that decides must be immutable."""

from __future__ import annotations

import importlib
import pkgutil

import democrai_sandbox.access
import democrai_sandbox.console
import democrai_sandbox.host
import democrai_sandbox.runtime.children
from tests.services.rows import rows

HARMLESS = {
    "democrai_sandbox.access._HOMES",
    "democrai_sandbox.access.events.bus._listening",
    "democrai_sandbox.console.api.accounts._EXPORT",
    "democrai_sandbox.console.api.decisions._DECIDES",
    "democrai_sandbox.console.api.openapi._SCHEMES",
    "democrai_sandbox.console.api.extensions._CALLS",
}
"""They contain names, describe the API, or list event listeners, which grant nothing."""


def modules_below(package):
    """Yield a package and all of its modules."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if ".migrations." not in found.name:
            yield importlib.import_module(found.name)


@rows(
    "package",
    [
        democrai_sandbox.access,
        democrai_sandbox.console,
        democrai_sandbox.host,
        democrai_sandbox.runtime.children,
    ],
    ids=lambda package: package.__name__,
)
def test_no_table_can_be_written_to(package):
    """A module could give itself unlimited password attempts, or record a denial as an approval."""
    found = {
        f"{module.__name__}.{name}"
        for module in modules_below(package)
        for name, value in vars(module).items()
        if isinstance(value, dict | list | set | bytearray) and not name.startswith("__")
    }
    assert found - HARMLESS == set()
