"""Application in a separate network with its enforcer, for the tests of the packet filter."""

from __future__ import annotations

from contextlib import contextmanager

from democrai_sandbox.kernel.helper.enforcer import Enforcer
from democrai_sandbox.kernel.helper.policy import Policy, PolicyEndpoint, Resolver
from tests.kernel.netlab import Lab, cgroup_mount, shared_lab

REFUSED = {"tcp": "ECONNREFUSED", "udp": "EPERM"}
"""Result of a connection that is not permitted."""


class Field:
    """Lab with an application; its enforcer works in the lab, in this process."""

    def __init__(self, lab):
        self.lab = lab
        self.names = {}
        self.app = self.application()
        self.enforcer = self.enforcer_for(self.app)

    def application(self, user=None):
        app = self.lab.inside.agent(user)
        self.lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{app.pid}")
        return app

    def enforcer_for(self, app, **options):
        options = {"servers": frozenset, "resolver": Resolver(self.look_up), **options}
        return Within(self.lab.inside, Enforcer(app.pid, app.start_time, **options))

    def look_up(self, name):
        if name not in self.names:
            raise OSError("no such name")
        return self.names[name]

    def serve(self, *protocols):
        """Return servers in the world: for each protocol one with IPv4 and one with IPv6."""
        world = self.lab.world
        return [world.serve(each, address) for each in protocols for address in (world.v4, world.v6)]

    def apply(self, *endpoints):
        return self.enforcer.apply(policy(*endpoints), self.app.pid)


class Within:
    """Object whose methods are called in a network namespace."""

    def __init__(self, space, target):
        self._space, self._target = space, target

    def __getattr__(self, name):
        found = getattr(self._target, name)

        def call(*args, **options):
            with self._space.entered():
                return found(*args, **options)

        return call


def policy(*endpoints):
    made = tuple(each if isinstance(each, PolicyEndpoint) else PolicyEndpoint(*each) for each in endpoints)
    return Policy(made, f"digest of {made}")


def end(server, protocol="tcp"):
    """Return the endpoint of a server."""
    return PolicyEndpoint(server.address, server.port, protocol)


@contextmanager
def field(*, own=False, **options):
    """Yield a field in the shared lab, or in a separate one."""
    with Lab(**options) if own or options else shared_lab() as lab:
        yield Field(lab)
