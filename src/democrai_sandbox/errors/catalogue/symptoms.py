"""Symptoms of the kernel layer inside a program: errors of the system, which can have other causes as well."""

from __future__ import annotations

from .entry import Entry, Layer

SYMPTOMS = (
    Entry(
        code="symptom_connection_refused",
        title="A connection is refused or reset",
        layer=Layer.KERNEL,
        shape="[Errno 111] Connection refused",
        meaning=(
            "The packet filter resets a TCP connection to a target outside of the egress allowlist. A server that "
            "does not listen looks the same from inside a program."
        ),
        cause=(
            "If the guard allows the target, one of these: the host did not resolve, or resolves to addresses that the "
            "packet filter does not know; another port is declared or approved; the helper does not run or is not "
            "reachable at `sandbox.os.helper_socket`; the policy file at `sandbox.os.policy_file` is missing, belongs "
            "to another user, or is writable by its group or by all; the process is not in the cgroup of the helper; "
            "two instances share a policy file or a helper socket; or the decision was made on another node and "
            "`network.stream.type` does not reach this one."
        ),
        fix=(
            "Read the lines `egress` and `helper` of `democrai-sandbox status`: they show the rules in force, the "
            "hosts that did not resolve, and the last update. Run `democrai-sandbox explain` with subject, operation "
            "and target: it reports a disagreement between guard and packet filter. Enable `sandbox.os.enabled` only "
            "to filter the egress of the whole process. Give each instance a separate `sandbox.os.policy_file` and "
            "`sandbox.os.helper_socket`, or set neither: the defaults never collide. With several nodes, use a stream "
            "that reaches all of them. `DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1` logs every step of the allowlist, "
            "`DEMOCRAI_DEBUG_MEDIA_FLOW=1` those of media and of external access."
        ),
        example="""\
socket.create_connection(("api.example.com", 8443))      # only port 443 is approved
-> ConnectionRefusedError: [Errno 111] Connection refused""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_permission_denied",
        title="The system denies access to a file, without a code",
        layer=Layer.KERNEL,
        shape="[Errno 13] Permission denied",
        meaning=(
            "A denial of the guard always has a code. Without one, the system refused: the owner and mode of the file, "
            "or Landlock, which restricts the application and its children to their paths."
        ),
        cause=(
            "The path was not in the lists of Landlock when the process started. In a worker, a child or "
            "`democrai-sandbox run`, the declared path did not exist at that time: Landlock allows only existing "
            "paths, so a file that the process creates later cannot be declared by itself."
        ),
        fix=(
            "Run `democrai-sandbox explain` with subject, operation and target: it says whether Landlock blocks a path "
            "that the guard allows. Then add the path to `sandbox.os.landlock.extra_read_paths` or `extra_write_paths` "
            "and restart. For a new file of a worker or child, declare its parent folder, which must exist. Otherwise "
            "check the owner and mode of the file."
        ),
        example="""\
open("/srv/out/new.csv", "w")      # in a worker; /srv/out/new.csv is declared and does not exist yet
-> PermissionError: [Errno 13] Permission denied: '/srv/out/new.csv'""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_operation_not_permitted",
        title="The system does not permit an operation",
        layer=Layer.KERNEL,
        shape="[Errno 1] Operation not permitted",
        meaning=(
            "A system call failed with EPERM. The seccomp filter does this for calls that no extension needs, the "
            "packet filter for packets that are not TCP, and the system for missing rights."
        ),
        cause=(
            "A worker, a child or `democrai-sandbox run` created a socket, and its subject declares no network access. "
            "Or a library used a filtered call, such as mounting, tracing or creating namespaces. Or UDP packets were "
            "sent to a target outside of the allowlist."
        ),
        fix=(
            "For a socket, declare its host and port with `connect`, or the URL with `receive` or `send`; "
            "`democrai-sandbox run module --no-kernel` shows the missing entry. For another call, check in "
            "`democrai-sandbox status` whether `seccomp` is active; if it is, avoid the call: no declaration allows "
            "it. For UDP, declare the host and port with `connect`."
        ),
        example="""\
socket.socket()      # in a worker whose manifest declares no network access
-> PermissionError: [Errno 1] Operation not permitted""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_bad_system_call",
        title="A process was killed by SIGSYS",
        layer=Layer.KERNEL,
        shape="died with <Signals.SIGSYS: 31>",
        meaning=(
            "The seccomp filter kills a process that executes a program, traces another process or modifies the "
            "kernel. Its exit status is -31, or 159 in a shell. No other part of the sandbox kills a process like this."
        ),
        cause="Code in the application started a program directly instead of through the spawn server.",
        fix=(
            "Start programs with `await sdk.tasks.run_subprocess([...])`. A host that starts programs itself does so "
            "before it confines itself, or disables `sandbox.os.seccomp.enabled`."
        ),
        example="""\
subprocess.run(["git", "--version"], check=True)      # in the host, after confine()
-> subprocess.CalledProcessError: Command '['git', '--version']' died with <Signals.SIGSYS: 31>.""",
        see=("os-enforcement.md", "tasks.md"),
        is_ours=False,
    ),
)
