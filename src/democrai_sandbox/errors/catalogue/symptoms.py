"""What the kernel layer looks like from inside a program: errors of the system, which have other causes as well."""

from __future__ import annotations

from .entry import Entry, Layer

SYMPTOMS = (
    Entry(
        code="symptom_connection_refused",
        title="A connection is refused or reset",
        layer=Layer.KERNEL,
        shape="[Errno 111] Connection refused",
        meaning=(
            "The packet filter answers a TCP connection to a target that is not on the allowlist with a reset. "
            "A server that does not listen does the same: from inside a program the two cannot be told apart."
        ),
        cause=(
            "If the guard allows the target, it is one of: the host did not resolve to addresses, or resolves "
            "to others than the packet filter knows; the destination port is not the one that was declared or "
            "approved; the helper does not run or cannot be reached through `sandbox.os.helper_socket`; the "
            "policy file at `sandbox.os.policy_file` is missing, somebody else's, or writable by the group or "
            "by all; the process is not in the cgroup that the helper manages; two instances on one machine "
            "share a policy file or a helper socket; or the decision was made on another node, and "
            "`network.stream.type` does not reach this one."
        ),
        fix=(
            "Look at the lines `egress` and `helper` of `democrai-sandbox status`: they say what is in force, "
            "which hosts did not resolve, and what was applied last. Ask `democrai-sandbox explain` with "
            "subject, operation and target: it says when guard and packet filter disagree. `sandbox.os.enabled` "
            "belongs on only where egress is to be filtered for the whole process. Give each instance its own "
            "`sandbox.os.policy_file` and `sandbox.os.helper_socket`, or leave both out: the defaults never "
            "collide. With several nodes, use a stream that reaches all of them. "
            "`DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1` has every step of the allowlist logged, "
            "`DEMOCRAI_DEBUG_MEDIA_FLOW=1` those of media and of external access."
        ),
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_permission_denied",
        title="The system denies a file, without a code of ours",
        layer=Layer.KERNEL,
        shape="[Errno 13] Permission denied",
        meaning=(
            "A denial of the guard always names its code. Without one, it was the system: the owner and mode of "
            "the file, or Landlock, which holds the whole application, or a child that the spawn server "
            "started, to its paths."
        ),
        cause=(
            "The path is not in the lists that Landlock was given when the process started. In a process of its own (a "
            "worker, a program, `democrai-sandbox run`) also: what is declared was not there at that time, and a rule "
            "of Landlock is for what is there, so a file that has yet to be made cannot be declared by itself."
        ),
        fix=(
            "Ask `democrai-sandbox explain` with subject, operation and target: it says whether Landlock keeps "
            "the application from the path although the guard allows it. Then add the path to "
            "`sandbox.os.landlock.extra_read_paths` or `extra_write_paths`, and start again. For a file that a process "
            "of its own makes, declare the folder around it, which has to be there. Otherwise look at "
            "owner and mode of the file."
        ),
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_operation_not_permitted",
        title="The system does not permit an operation",
        layer=Layer.KERNEL,
        shape="[Errno 1] Operation not permitted",
        meaning=(
            "A system call was answered with EPERM. The seccomp filter does that for calls that no extension needs; "
            "so does the system itself, for whoever lacks the right, and the packet filter for what is no TCP."
        ),
        cause=(
            "A process of its own (a worker, a program, `democrai-sandbox run`) made a socket, and its subject "
            "declares nothing of the network: then it has none. Or a library uses a call that is filtered, such as "
            "mounting, tracing or making namespaces; or packets of UDP went to a target that is not on the allowlist."
        ),
        fix=(
            "For a socket, declare its host and port with `connect`, or the URL with `receive` or `send`; "
            "`democrai-sandbox run module --no-kernel` has the guard say which entry is missing. For any other "
            "call, see in `democrai-sandbox status` whether `seccomp` is active. If it is, do without the call: no "
            "declaration opens the filter for it. For UDP, declare the host and port with `connect`."
        ),
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    Entry(
        code="symptom_bad_system_call",
        title="A process was ended by SIGSYS",
        layer=Layer.KERNEL,
        shape="died with <Signals.SIGSYS: 31>",
        meaning=(
            "The seccomp filter ends a process that executes a program, traces another process or touches the "
            "kernel: its exit status is -31, or 159 in a shell. Nothing else in the sandbox ends a process in "
            "this way."
        ),
        cause="Something in the application started a program by itself instead of by way of the spawn server.",
        fix=(
            "Start programs with `await sdk.tasks.run_subprocess([...])`. A host that has to start programs by "
            "itself does so before it confines itself, or leaves `sandbox.os.seccomp.enabled` off."
        ),
        see=("os-enforcement.md", "tasks.md"),
        is_ours=False,
    ),
)
