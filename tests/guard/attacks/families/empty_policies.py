"""Empty and malformed policies, which allow nothing."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, MODULE, PROCESS, Ground, attack, attacks_of


def read_own(ground: Ground) -> bool:
    return open(f"{ground.inside}/own.txt").read() == "own"


EMPTY = {"allowed_paths": [], "access": []}
POLICIES = {
    "nothing": lambda ground: EMPTY,
    "empty_tuples": lambda ground: {"allowed_paths": (), "access": ()},
    "no_runtime_paths": lambda ground: EMPTY | {"include_runtime_paths": False},
    "targets_only": lambda ground: EMPTY | {"allowed_targets": ["example.com", "https://example.com/"]},
    "imports_only": lambda ground: EMPTY | {"allowed_imports": ["json"]},
    "subprocess_only": lambda ground: EMPTY | {"allow_subprocess": True},
    "kind_core": lambda ground: EMPTY | {"subject_kind": "core", "subject": "core"},
    "execute_only": lambda ground: (
        EMPTY | {"access": [{"resource_type": "filesystem", "operation": "execute", "target": ground.inside}]}
    ),
    "dependency_only": lambda ground: (
        EMPTY | {"access": [{"resource_type": "system_dependency", "operation": "execute", "target": ground.inside}]}
    ),
    "operation_of_another_kind": lambda ground: (
        EMPTY | {"access": [{"resource_type": "filesystem", "operation": "delete", "target": ground.inside}]}
    ),
    "network_rule": lambda ground: (
        EMPTY | {"access": [{"resource_type": "network", "operation": ["connect", "receive"], "target": "localhost"}]}
    ),
    "identity": lambda ground: EMPTY | {"user_id": 0, "organization_id": 0, "session_key": ""},
    "missing_root": lambda ground: {"allowed_paths": [f"{ground.base}/not-there"], "access": []},
    "glob_root": lambda ground: {"allowed_paths": [f"{ground.base}/./ins*"], "access": []},
    "root_below": lambda ground: {"allowed_paths": [f"{ground.inside}/own.txt/below"], "access": []},
}
for name, policy in POLICIES.items():
    attack(f"a file is read under a policy that does not name it: {name}", expect=FILES, name=name, policy=policy)(
        read_own
    )


attacks_of(
    {
        "write": lambda ground: open(f"{ground.inside}/own.txt", "w").write("x") > 0,
        "list": lambda ground: "own.txt" in os.listdir(ground.inside),
        "stat": lambda ground: os.stat(ground.inside).st_size > 0,
        "remove": lambda ground: os.remove(f"{ground.inside}/own.txt") is None,
        "rename": lambda ground: os.rename(f"{ground.inside}/own.txt", f"{ground.inside}/x") is None,
    },
    "under an empty policy something is done: {}",
    expect=FILES,
    group="empty_",
    policy=lambda ground: EMPTY,
)


@attack(
    "without runtime paths a file of the system is read",
    expect=FILES,
    needs=("/etc/hosts",),
    policy=lambda ground: EMPTY | {"include_runtime_paths": False},
)
def system_without_runtime_paths(ground: Ground) -> bool:
    return len(open("/etc/hosts").read()) > 0


@attack(
    "without runtime paths the temp folder is written",
    expect=FILES,
    policy=lambda ground: EMPTY | {"include_runtime_paths": False},
)
def temp_without_runtime_paths(ground: Ground) -> bool:
    return open(f"{os.environ['TMPDIR']}/x", "w").write("x") > 0


@attack("an empty policy starts a process", expect=PROCESS, policy=lambda ground: EMPTY)
def process_under_empty(ground: Ground) -> bool:
    return os.system("exit 0") == 0


@attack("an empty list of imports lets ctypes in", expect=MODULE, policy=lambda ground: EMPTY | {"allowed_imports": []})
def import_under_empty(ground: Ground) -> bool:
    import ctypes

    return ctypes.CDLL(None).getpid() == os.getpid()


@attack(
    "an import rule for one root lets another one in",
    expect=MODULE,
    policy=lambda ground: EMPTY | {"allowed_imports": ["ctype", "ctypesx", "_ctypes_test", "numpy"]},
)
def import_by_prefix(ground: Ground) -> bool:
    import ctypes

    return ctypes.CDLL(None).getpid() == os.getpid()
