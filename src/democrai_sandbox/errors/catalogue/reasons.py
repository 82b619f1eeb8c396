"""The words by which the privileged helper says why it refused, or could not be reached."""

from __future__ import annotations

from .entry import Word

_ALONE = "only the application and its own processes talk to its helper"
_WRITTEN = "let the application write it, in a folder of its own"
_SAME = "use the helper that came with the application"

HELPER_REASONS = (
    Word("not_running", "nobody answers at the helper's socket", "start it, or let the application start it"),
    Word(
        "no_way_up",
        "there is neither the right to start it nor `pkexec` or `sudo` without a question",
        "install the rule that `democrai-sandbox helper sudoers` prints, or `democrai-sandbox helper polkit`",
    ),
    Word("not_privileged", "it runs without the rights for cgroups and packet filters", "start it as root"),
    Word("no_iptables", "the commands of the packet filter are missing", "install iptables"),
    Word("no_ip6tables", "the command for IPv6 is missing, and IPv6 would stay open", "install iptables"),
    Word(
        "other_network",
        "it is in another network namespace than the application: its rules would hold nothing",
        "start it in the network of the application",
    ),
    Word("no_cgroup2", "there is no unified tree of control groups", "mount it, writable for root"),
    Word("cgroup_read_only", "the tree of control groups cannot be written", "mount it writable for root"),
    Word(
        "table_failed",
        "the packet filter did not take the rules; nothing was changed",
        "the text ends with what the command said",
    ),
    Word("policy_missing", "the policy file at `sandbox.os.policy_file` is not there", _WRITTEN),
    Word("policy_owner", "the policy file does not belong to the application's user", _WRITTEN),
    Word("policy_mode", "the policy file can be written by its group or by all", _WRITTEN),
    Word("policy_type", "the policy file is no regular file", _WRITTEN),
    Word("policy_too_large", "the policy file is above 4 MiB", "declare fewer targets, or broader ones"),
    Word("policy_torn", "the policy file is no whole JSON", _WRITTEN),
    Word("policy_invalid", "the policy file holds something that is no endpoint", _WRITTEN),
    Word("policy_replaced", "the policy file was exchanged while it was opened", _WRITTEN),
    Word("socket_path_too_long", "the path of the socket is above 107 bytes", "set `sandbox.os.helper_socket`"),
    Word("socket_taken", "another helper answers at the socket", "set `sandbox.os.helper_socket` to another path"),
    Word("socket_refused", "the application's user cannot make a socket there", "give it a folder of that user"),
    Word("foreign_uid", "who asks is not the application's user", _ALONE),
    Word("not_a_descendant", "who asks is none of the application's processes", _ALONE),
    Word("confined", "who asks is one of the application's confined children", _ALONE),
    Word("not_the_parent", "who asks is not the application itself", _ALONE),
    Word("gone", "who asks has ended", _ALONE),
    Word("bad_arguments", "it was started with wrong arguments", _SAME),
    Word("version", "it is of another version than the application", _SAME),
    Word("bad_request", "the request makes no sense to it", _SAME),
    Word("unknown_action", "it knows no such request", _SAME),
    Word("busy", "it has too much to do", "try again"),
    Word("stopped", "the application has ended it", "start the application again"),
    Word("failed", "it failed for another reason", "the text says what happened"),
)
