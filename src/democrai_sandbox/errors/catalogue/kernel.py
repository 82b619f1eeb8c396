"""The kernel layer."""

from __future__ import annotations

from .entry import Entry, Layer
from .reasons import HELPER_REASONS

KERNEL = (
    Entry(
        code="os_sandbox_failed",
        title="Something of the kernel layer does not work",
        layer=Layer.KERNEL,
        meaning="Something of the kernel layer does not work. It is never a denial: nothing was decided by it.",
        cause=(
            "A step was taken out of order (`confine()` before `prepare()`), or the kernel refused a call that "
            "it should have taken; the text names it."
        ),
        fix='What the text says after "to fix it". See os-enforcement.md.',
        classes=("KernelLayerError",),
        remark="A `RuntimeError`. The base of what the kernel layer raises.",
        see=("os-enforcement.md",),
    ),
    Entry(
        code="os_sandbox_unsupported",
        title="The machine lacks what was asked for",
        layer=Layer.KERNEL,
        meaning="The kernel, the architecture or the machine lacks what was asked for.",
        cause=(
            "A kernel without Landlock or seccomp filters, an architecture other than x86_64 and aarch64, a "
            "system that is not Linux."
        ),
        fix=(
            "Run on a machine that has it, or turn that control off. Without `require`, the application starts "
            "and the status says what is missing."
        ),
        classes=("KernelUnsupported",),
        remark="A `KernelLayerError`.",
    ),
    Entry(
        code="os_sandbox_required",
        title="A control that is required is not active",
        layer=Layer.KERNEL,
        meaning=(
            "`sandbox.os.require` is on and a control that is wanted is less than active: the application "
            "does not start."
        ),
        cause="Each control that is missing is named, with its reason.",
        fix="Mend what is named, or turn `require` off and live with what the status says.",
        classes=("KernelRefused",),
        remark="A `KernelLayerError`.",
    ),
    Entry(
        code="os_sandbox_spawn_failed",
        title="The spawn server did not start a program",
        layer=Layer.KERNEL,
        meaning=(
            "The spawn server is gone, or did not do what it was asked; no program was started. A program "
            "that is not there or may not be executed is an ordinary `OSError` instead."
        ),
        cause="The server was killed, or has come to a limit of the system such as the number of processes.",
        fix="Start the application again: an application that may not execute cannot start another server.",
        classes=("SpawnFailed",),
        remark="A `KernelLayerError`.",
    ),
    Entry(
        code="os_sandbox_policy_refused",
        title="The policy file cannot be used",
        layer=Layer.KERNEL,
        meaning="The file of the egress allowlist cannot be written, or is not safe where it lies.",
        cause=(
            "Its folder is missing, full, or can be written by other users; or another application that runs has "
            "been given the same file."
        ),
        fix=(
            "Set `sandbox.os.policy_file`, or the data directory, to a folder of the application's own user with "
            "mode 0700. Put `{pid}` into it, or leave it out, where several applications run."
        ),
        classes=("PolicyFileRefused",),
        remark="A `KernelLayerError`.",
    ),
    Entry(
        code="os_sandbox_helper_failed",
        title="The privileged helper is not there, or refused",
        layer=Layer.KERNEL,
        meaning=(
            "The privileged helper could not be started or reached, or refused what it was asked. Rules that "
            "are in force stay in force."
        ),
        cause=(
            "The reason says which: it is not running, not reachable through `sandbox.os.helper_socket`, "
            "without the right to do its work, or the policy file is not as it has to be: owned by the "
            "application's user, and writable by nobody else. Two instances that share a socket or a policy "
            "file get in each other's way."
        ),
        fix="What the table says for the reason. `democrai-sandbox doctor` tries what this machine can do.",
        classes=("HelperFailed", "HelperOpening"),
        remark="A `KernelLayerError`; `reason` is a word for the cause.",
        words=HELPER_REASONS,
        see=("os-enforcement.md",),
    ),
)
