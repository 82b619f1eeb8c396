"""Errors of the kernel layer. None of them is a denial."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance

from .helper_reasons import HELPER_REASONS


class KernelLayerError(SandboxError, RuntimeError):
    """The kernel layer does not work.

    Nothing was decided: this is a failure, not a denial. It is the base class of all errors of the kernel layer.
    """

    code = "os_sandbox_failed"
    guidance = Guidance(
        cause="A step ran out of order (`confine()` before `prepare()`), or the kernel refused a call.",
        fix='Follow the text after "to fix it", and check the state of each control with `democrai-sandbox status`.',
        example="""\
kernel = Kernel(settings)
kernel.confine()         # without kernel.prepare()
-> KernelLayerError: os_sandbox_failed: ...""",
        see=("os-enforcement.md",),
    )

    def __init__(self, what: str, *, fix: str = "") -> None:
        """Take the failure and the next action."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        """Return the code, the failure and the next action."""
        return f"{self.code}: {self.what}" + (f"; to fix it: {self.fix}" if self.fix else "")


class KernelUnsupported(KernelLayerError):
    """A control is not supported by this machine.

    The program was not started without the control.
    """

    code = "os_sandbox_unsupported"
    guidance = Guidance(
        cause=(
            "The kernel has no Landlock or no seccomp filters, the architecture is not x86_64 or aarch64, or the "
            "system is not Linux."
        ),
        fix=(
            "Use a machine that supports it, or turn the control off. Without `sandbox.os.require` the application "
            "starts, and `democrai-sandbox status` shows the missing control."
        ),
        example="""\
$ democrai-sandbox run script.py     # on a kernel before 5.13
os_sandbox_unsupported: Landlock: ...""",
        see=("os-enforcement.md",),
    )


class KernelRefused(KernelLayerError):
    """A required control is not active.

    ``sandbox.os.require`` is true, so the application does not start. The text names each missing control and its
    reason.
    """

    code = "os_sandbox_required"
    guidance = Guidance(
        cause="A control that the configuration enables is `partial`, `off` or `unsupported`.",
        fix="Fix the controls that the text names, or set `sandbox.os.require` to false.",
        example="""\
sandbox:
  os: {enabled: true, require: true}     # and no helper can be started
-> os_sandbox_required: ... egress: ...""",
        see=("os-enforcement.md",),
    )


class SpawnFailed(KernelLayerError):
    """The spawn server did not start a program.

    No program runs. A missing or non-executable program is an ordinary ``OSError`` instead.
    """

    code = "os_sandbox_spawn_failed"
    guidance = Guidance(
        cause="The spawn server was killed, or reached a limit of the system such as the number of processes.",
        fix="Restart the application: once confined, it cannot start another spawn server.",
        example="""\
$ kill -9 <pid of the spawn server>
await sdk.tasks.run_subprocess(["true"])
-> os_sandbox_spawn_failed""",
        see=("os-enforcement.md",),
    )


class PolicyFileRefused(KernelLayerError):
    """The policy file cannot be written, or its folder is not safe.

    The file holds the egress allowlist. The allowlist in force does not change.
    """

    code = "os_sandbox_policy_refused"
    guidance = Guidance(
        cause="Its folder is missing, full or writable by other users, or another application uses the same file.",
        fix=(
            "Set `sandbox.os.policy_file` to a folder with mode 0700 that belongs to the application's user. If "
            "several applications run, put `{pid}` into the name, or leave the key out."
        ),
        example="""\
sandbox:
  os: {policy_file: /tmp/policy.json}     # /tmp is writable by all users
-> os_sandbox_policy_refused""",
        see=("os-enforcement.md",),
    )


class HelperFailed(KernelLayerError):
    """The helper cannot be started or reached, or refused.

    ``reason`` is one of the words in the table. Rules in force stay in force.
    """

    code = "os_sandbox_helper_failed"
    guidance = Guidance(
        cause=(
            "The helper does not run, is not reachable at `sandbox.os.helper_socket`, or lacks rights; or the policy "
            "file does not belong to the application's user or is writable by others. Two instances that share a "
            "socket or a policy file interfere with each other."
        ),
        fix="Find the reason in the table. `democrai-sandbox doctor` tests this machine.",
        example="""\
$ democrai-sandbox doctor     # on a machine without iptables
os_sandbox_helper_failed: iptables-restore cannot be found; to fix it: install the iptables package""",
        words=HELPER_REASONS,
        see=("os-enforcement.md",),
    )

    def __init__(self, what: str, *, fix: str = "", reason: str = "") -> None:
        """Take the failure, the next action and the helper's word for the reason."""
        super().__init__(what, fix=fix)
        self.reason = reason


class HelperOpening(HelperFailed):
    """The helper has not allowed a connection yet; retry in a moment.

    Only event loops get this error, and their connections retry automatically.
    """

    is_logged = True
    """This is not a failure and is not logged."""
