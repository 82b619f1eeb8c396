"""A small host for the bodies of these tests: modules from source texts, loaded and run under their guards."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time

import democrai_sandbox.sdk.ai  # before the first guard, as a host does
from democrai_sandbox.access import Caller
from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.guard import is_guarded, live_states
from democrai_sandbox.manifests import ModuleManifest, load_manifest
from democrai_sandbox.policy import InvalidInputError, rules_for_paths
from democrai_sandbox.runtime import sdk_services
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.ai.model import AgentLimits, Message
from democrai_sandbox.runtime.ai.runtime import AiRuntime
from democrai_sandbox.runtime.ai.scripted import ScriptedModel, calls
from democrai_sandbox.runtime.calls.invocation import GuardFactory
from democrai_sandbox.runtime.calls.outcome import capture, capture_async, release
from democrai_sandbox.runtime.extensions.importer import Declarations, import_entry, prepare

UMA = Caller(user_id="uma", session_key="s1")


class Host:
    """Modules by name, each a source text or a source text with the ``access`` of its manifest."""

    def __init__(self, world, modules, models=None, limits=None):
        self.world, self.activations, self.surfaces, self.broken = world, {}, {}, {}
        self.declarations = Declarations()
        self.ai = AiRuntime(
            models or {}, activate=lambda name, caller: self.activations[name].guard(caller), limits=limits
        )
        sdk_services.install({"declare": self.declarations.declare, "ai.entrance": self.ai.entrance})
        for name, given in modules.items():
            source, access = (given, []) if isinstance(given, str) else given
            self.load(name, source, access)
        for name, problems in self.ai.link().items():
            self.broken[name] = placed(problems)

    def load(self, name, source, access):
        folder = os.path.join(self.world.base, "modules", name)
        os.makedirs(folder)
        with open(os.path.join(folder, "module.py"), "w") as file:
            file.write("from democrai_sandbox import sdk\nfrom democrai_sandbox.sdk import ai\n" + source)
        with open(os.path.join(folder, "manifest.json"), "w") as file:
            json.dump({"name": name, "access": access}, file)
        manifest = load_manifest(os.path.join(folder, "manifest.json"), ModuleManifest)
        activation = GuardFactory(manifest.subject, manifest.sections[""], own_read=(folder,))
        package = prepare("module", name, folder)
        self.declarations.begin(f"module:{name}")
        outcome = activation.guard(UMA).run(capture, import_entry, package, "module.py")
        surfaces = self.declarations.end(f"module:{name}")
        try:
            release(outcome)
            self.ai.declare(
                manifest, surfaces, own=[rule for rule in rules_for_paths([folder]) if rule.operation == "read"]
            )
        except InvalidInputError as error:
            self.broken[name] = placed(error.problems)
        except Exception as error:
            self.broken[name] = [["", f"{type(error).__name__}: {error}"]]
        self.activations[name] = activation
        self.surfaces[name] = {surface.name: surface.function for surface in surfaces if surface.kind == "action"}

    async def act(self, module, action, caller=UMA, **params):
        """Call a module's action like a module runtime does."""
        with serving(caller):
            outcome = (
                await self.activations[module].guard(caller).run(capture_async, self.surfaces[module][action], **params)
            )
        return release(outcome)

    def told(self, awaitable):
        """Run it to its end and return the outcome."""
        return asyncio.run(said(awaitable))


async def said(awaitable):
    """Return an outcome, ready for JSON."""
    try:
        value = await awaitable
    except SandboxDenied as denial:
        return {
            "denied": type(denial).__name__,
            "chain": list(map(str, denial.subject_chain)),
            "target": denial.target,
            "notes": getattr(denial, "__notes__", []),
        }
    except Exception as error:
        told = {"error": type(error).__name__, "code": getattr(error, "code", ""), "text": str(error)}
        return told | {"places": [problem.pointer for problem in getattr(error, "problems", ())]}
    return value._asdict() if hasattr(value, "_asdict") else value


def placed(problems):
    """Return problems, each as its location and its text."""
    return [[problem.pointer, str(problem)] for problem in problems]


def states_left():
    """Return the number of active guards, after ending threads have ended."""
    latest = time.monotonic() + 20
    while live_states() and time.monotonic() < latest:
        gc.collect()  # errors and their frames refer to each other
        time.sleep(0.05 if live_states() else 0)
    return live_states()


def file_rule(path, operation="read"):
    """Return a filesystem entry of a manifest."""
    return {"resource_type": "filesystem", "operation": operation, "target": path}


def url_rule(url, operation="receive"):
    """Return a network entry of a manifest."""
    return {"resource_type": "network", "operation": operation, "target": url}
