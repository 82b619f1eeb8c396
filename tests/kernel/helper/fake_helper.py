"""The helper's process with an enforcer that only records requests: ``fake_helper.py RECORD --socket …``."""

from __future__ import annotations

import json
import os
import sys
import time

from democrai_sandbox.kernel.helper import main
from democrai_sandbox.kernel.helper.protocol import RequestRefused

NO_TABLES = ("no_iptables", "there is no iptables", "install it")
REFUSED = ("table_failed", "the table refused", "repair it")


class FakeEnforcer:
    """Hosts with the prefix slow-, held-, crash- or refuse- make it slow, wait for a file, crash or refuse."""

    def __init__(self, parent_pid, start_time):
        self._next = 0
        self._note("made", parent_pid=parent_pid, start_time=start_time)

    def _note(self, call, **details):
        with open(RECORD, "a") as file:
            file.write(json.dumps({"call": call, **details}) + "\n")

    def _behave(self, endpoints):
        for endpoint in endpoints:
            if endpoint.host.startswith("slow-"):
                time.sleep(float(endpoint.host.split("-")[1].split(".")[0]) / 10)
            while endpoint.host.startswith("held-") and not os.path.exists(f"{RECORD}.go"):
                time.sleep(0.01)
            if endpoint.host.startswith("crash-"):
                raise RuntimeError("something unforeseen")
            if endpoint.host.startswith("refuse-"):
                raise RequestRefused(*REFUSED)

    def probe(self):
        if os.environ.get("FAKE_PROBE") == "crash":
            raise RuntimeError("something unforeseen")
        if os.environ.get("FAKE_PROBE"):
            raise RequestRefused(*NO_TABLES)
        return ["only a fake"]

    def sweep(self):
        self._note("sweep")
        return {"swept": 0, "took_over": bool(os.environ.get("FAKE_TOOK_OVER"))}

    def apply(self, policy, pid):
        self._note("apply", pid=pid, hosts=[endpoint.host for endpoint in policy.endpoints])
        self._behave(policy.endpoints)
        unresolved = [endpoint.host for endpoint in policy.endpoints if endpoint.host.endswith(".invalid")]
        return {"endpoints": len(policy.endpoints), "unresolved": unresolved}

    def refresh(self):
        self._note("refresh")
        return {"changed": False}

    def repair(self):
        return False

    def join(self, pid):
        self._note("join", pid=pid)
        return {"cgroup": "/nowhere"}

    def child(self, endpoints):
        self._next += 1
        self._note("child", child=self._next, hosts=[endpoint.host for endpoint in endpoints])
        self._behave(endpoints)
        return {"set": 1, "child": self._next, "cgroup": "/nowhere"}, os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def release(self, child):
        self._note("release", child=child)
        return {}

    def status(self):
        self._note("status")
        return {"cgroup": "/nowhere", "populated": False}

    def clear(self):
        self._note("clear")
        return {}

    def remove(self):
        self._note("remove")
        if os.environ.get("FAKE_REMOVE"):
            raise RequestRefused(*REFUSED)


if __name__ == "__main__":
    RECORD = sys.argv[1]
    main._BETWEEN_ATTEMPTS = 0.1
    main._LINGER = float(os.environ.get("FAKE_LINGER", "0.2"))
    os._exit(main.run(sys.argv[2:], dict(os.environ), FakeEnforcer))
