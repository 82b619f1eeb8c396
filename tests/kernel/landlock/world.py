"""Child's side of harness.py: reads an order from standard input, answers in the last line of its output."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from democrai_sandbox.errors import SandboxError
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock.rights import EXECUTE, READ, WRITE, FsRight, NetRight, landlock_support
from democrai_sandbox.kernel.landlock.ruleset import PathRule, PortRule, RulesetPlan, apply, build


class World:
    """Objects for bodies; everything is imported before they restrict themselves."""

    native = _native
    READ, WRITE, EXECUTE = READ, WRITE, EXECUTE
    FsRight, NetRight = FsRight, NetRight
    PathRule, PortRule, RulesetPlan = PathRule, PortRule, RulesetPlan
    apply, build, support = staticmethod(apply), staticmethod(build), staticmethod(landlock_support)

    def __init__(self, base):
        self.base = Path(base)
        self.inside, self.outside, self.read = self.base / "inside", self.base / "outside", self.base / "read"
        self.secret = self.outside / "secret.txt"

    def confine(self, *rules, write=None, ports=(), connect=False, bind=False, scopes=False):
        """Apply a plan: `inside` read-write, `read` read-only, and additional rules as (path, rights)."""
        paths = [PathRule(str(self.inside if write is None else write), WRITE), PathRule(str(self.read), READ)]
        paths += [PathRule(str(path), rights) for path, rights in rules]
        numbers = tuple(PortRule(port, rights) for port, rights in ports)
        return apply(RulesetPlan(tuple(paths), numbers, handle_connect=connect, handle_bind=bind, scopes=scopes))

    @staticmethod
    def tried(act, *args, **options):
        """Run an operation; return `ok`, the name of the errno, or the parts of another error."""
        try:
            result = act(*args, **options)
        except OSError as error:
            return errno.errorcode.get(error.errno, str(error.errno))
        except SandboxError as error:
            return [type(error).__name__, error.code, error.what, error.fix]
        if hasattr(result, "close"):
            result.close()
        return "ok"

    @staticmethod
    def listener(host="127.0.0.1"):
        """Return a listening TCP socket and its port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, 0), family=family)
        return server, server.getsockname()[1]

    @staticmethod
    def connected(host, port):
        client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        client.settimeout(20)
        try:
            client.connect((host, port))
        except OSError:
            client.close()
            raise
        return client

    @staticmethod
    def executed(program):
        """Execute a program in a fork of this process; return its exit code, or the errno's name."""
        pid = os.fork()
        if pid == 0:
            try:
                os.execv(program, [str(program)])
            except OSError as error:
                os._exit(100 + error.errno)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return errno.errorcode[code - 100] if code > 100 else code


def main():
    order = json.load(sys.stdin)
    if order["user"] is not None:
        os.setgroups([])
        os.setgid(order["user"])
        os.setuid(order["user"])
    names = {}
    exec(compile("from __future__ import annotations\n" + order["source"], "<body>", "exec"), names)
    signal.alarm(50)  # end a process that hangs
    answer = names[order["body"]](World(sys.argv[1]), *order["args"])
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads of a body


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
