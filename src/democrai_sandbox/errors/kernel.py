"""Errors of the kernel layer, and the reasons of the helper. None of them is a denial."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.problems import Word

_ALONE = "send requests to a helper only from its application and the processes of that"
_WRITTEN = "let the application write it, in a folder that only its user can write"
_SAME = "use the helper of the same package version as the application"

HELPER_REASONS = (
    Word("not_running", "no helper answers at its socket", "start it, or let the application start it"),
    Word(
        "no_way_up",
        "the user may not start the helper: neither as root nor with `pkexec` or `sudo` without a password",
        "install the rule that `democrai-sandbox helper sudoers` or `democrai-sandbox helper polkit` prints",
    ),
    Word("not_privileged", "the helper lacks the rights for cgroups and packet filters", "start it as root"),
    Word("no_iptables", "the commands of the packet filter are missing", "install iptables"),
    Word("no_ip6tables", "the IPv6 command is missing, so IPv6 would stay open", "install iptables"),
    Word(
        "other_network",
        "the helper runs in another network namespace, where its rules have no effect",
        "start it in the network namespace of the application",
    ),
    Word("no_cgroup2", "cgroup v2 is not mounted", "mount it, writable for root"),
    Word("cgroup_read_only", "cgroup v2 is mounted read-only", "mount it writable for root"),
    Word("table_failed", "the packet filter refused the rules; nothing was changed", "read the command's output"),
    Word("policy_missing", "the policy file at `sandbox.os.policy_file` does not exist", _WRITTEN),
    Word("policy_owner", "the policy file does not belong to the application's user", _WRITTEN),
    Word("policy_mode", "the policy file is writable by its group or by all users", _WRITTEN),
    Word("policy_type", "the policy file is not a regular file", _WRITTEN),
    Word("policy_too_large", "the policy file is larger than 4 MiB", "declare fewer or broader targets"),
    Word("policy_torn", "the policy file is not complete JSON", _WRITTEN),
    Word("policy_invalid", "the policy file contains an invalid endpoint", _WRITTEN),
    Word("policy_replaced", "the policy file was replaced while it was opened", _WRITTEN),
    Word("socket_path_too_long", "the path of the socket is longer than 107 bytes", "set `sandbox.os.helper_socket`"),
    Word("socket_taken", "another helper answers at the socket", "set `sandbox.os.helper_socket` to another path"),
    Word("socket_refused", "the application's user cannot create the socket", "choose a folder of that user"),
    Word("foreign_uid", "the caller runs as another user than the application", _ALONE),
    Word("not_a_descendant", "the caller is not a process of the application", _ALONE),
    Word("confined", "the caller is a confined child of the application", _ALONE),
    Word("not_the_parent", "the caller is not the application itself", _ALONE),
    Word("gone", "the caller has ended", _ALONE),
    Word("bad_arguments", "the helper was started with wrong arguments", _SAME),
    Word("version", "the helper and the application have different versions", _SAME),
    Word("bad_request", "the helper cannot read the request", _SAME),
    Word("unknown_action", "the helper does not know the requested action", _SAME),
    Word("busy", "the helper has too many requests", "retry"),
    Word("stopped", "the application stopped the helper", "restart the application"),
    Word("failed", "another failure, described in the text", "read the text, and the log of the helper"),
)


class KernelLayerError(SandboxError, RuntimeError):
    """The kernel layer does not work.

    Nothing was decided: this is a failure, not a denial. It is the base class of all errors of the kernel layer.
    """

    code = "os_sandbox_failed"
    guidance = """
    Cause: A step ran out of order (`confine()` before `prepare()`), or the kernel refused a call.
    Fix: Follow the text after "to fix it", and check the state of each control with `democrai-sandbox status`.
    Example:
    kernel = Kernel(settings)
    kernel.confine()         # without kernel.prepare()
    -> KernelLayerError: os_sandbox_failed: ...
    See: os-enforcement.md
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.code}: {self.what}" + (f"; to fix it: {self.fix}" if self.fix else "")


class KernelUnsupported(KernelLayerError):
    """A control is not supported by this machine.

    The program was not started without the control.
    """

    code = "os_sandbox_unsupported"
    guidance = """
    Cause: The kernel has no Landlock or no seccomp filters, the architecture is not x86_64 or aarch64, or the system is
    not Linux.
    Fix: Use a machine that supports it, or turn the control off. Without `sandbox.os.require` the application starts,
    and `democrai-sandbox status` shows the missing control.
    Example:
    $ democrai-sandbox run script.py     # on a kernel before 5.13
    os_sandbox_unsupported: Landlock: ...
    See: os-enforcement.md
    """


class KernelRefused(KernelLayerError):
    """A required control is not active.

    ``sandbox.os.require`` is true, so the application does not start. The text names each missing control and its
    reason.
    """

    code = "os_sandbox_required"
    guidance = """
    Cause: A control that the configuration enables is `partial`, `off` or `unsupported`.
    Fix: Fix the controls that the text names, or set `sandbox.os.require` to false.
    Example:
    sandbox:
      os: {enabled: true, require: true}     # and no helper can be started
    -> os_sandbox_required: ... egress: ...
    See: os-enforcement.md
    """


class SpawnFailed(KernelLayerError):
    """The spawn server did not start a program.

    No program runs. A missing or non-executable program is an ordinary ``OSError`` instead.
    """

    code = "os_sandbox_spawn_failed"
    guidance = """
    Cause: The spawn server was killed, or reached a limit of the system such as the number of processes.
    Fix: Restart the application: once confined, it cannot start another spawn server.
    Example:
    $ kill -9 <pid of the spawn server>
    await sdk.tasks.run_subprocess(["true"])
    -> os_sandbox_spawn_failed
    See: os-enforcement.md
    """


class PolicyFileRefused(KernelLayerError):
    """The policy file cannot be written, or its folder is not safe.

    The file holds the egress allowlist. The allowlist in force does not change.
    """

    code = "os_sandbox_policy_refused"
    guidance = """
    Cause: Its folder is missing, full or writable by other users, or another application uses the same file.
    Fix: Set `sandbox.os.policy_file` to a folder with mode 0700 that belongs to the application's user. If several
    applications run, put `{pid}` into the name, or leave the key out.
    Example:
    sandbox:
      os: {policy_file: /tmp/policy.json}     # /tmp is writable by all users
    -> os_sandbox_policy_refused
    See: os-enforcement.md
    """


class HelperFailed(KernelLayerError):
    """The helper cannot be started or reached, or refused.

    ``reason`` is one of the words in the table. Rules in force stay in force.
    """

    code = "os_sandbox_helper_failed"
    guidance = """
    Cause: The helper does not run, is not reachable at `sandbox.os.helper_socket`, or lacks rights; or the policy file
    does not belong to the application's user or is writable by others. Two instances that share a socket or a policy
    file interfere with each other.
    Fix: Find the reason in the table. `democrai-sandbox doctor` tests this machine.
    Example:
    $ democrai-sandbox doctor     # on a machine without iptables
    os_sandbox_helper_failed: iptables-restore cannot be found; to fix it: install the iptables package
    See: os-enforcement.md
    """
    guidance_words = HELPER_REASONS

    def __init__(self, what: str, *, fix: str = "", reason: str = "") -> None:
        super().__init__(what, fix=fix)
        self.reason = reason


class HelperOpening(HelperFailed):
    """The helper has not allowed a connection yet; retry in a moment.

    Only event loops get this error, and their connections retry automatically.
    """

    is_logged = True
    """This is not a failure and is not logged."""
