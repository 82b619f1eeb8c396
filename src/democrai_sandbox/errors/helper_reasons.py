"""Reasons of the helper for a refusal or failure, with their fixes."""

from __future__ import annotations

from democrai_sandbox.policy.guidance import Word

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
