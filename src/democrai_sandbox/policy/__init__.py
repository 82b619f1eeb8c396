"""Pure values and functions of the access policy: subjects, operations, targets, rules and matching. No I/O."""

from __future__ import annotations

from .compiled import CompiledPolicy, compile_policy
from .encoding import rules_from_json, rules_to_json
from .matching import NetworkIndex, implied_connection
from .netkeys import covering_keys, network_entries, rule_key
from .operations import (
    EVERY_ACCESS,
    NETWORK_OPERATIONS,
    NO_ACCESS,
    VALID_OPERATIONS,
    WRITING_OPERATIONS,
    FileAccess,
    NetworkAccess,
    Operation,
    ResourceType,
    file_access,
    http_operation,
    is_valid_operation,
    network_access,
    read_operation,
)
from .paths import PathIndex, is_at_or_below, normalise_path, prefixes_of
from .problems import (
    InvalidInputError,
    NetworkTargetMissingError,
    Problem,
    SandboxError,
    nearest,
    pointer_to,
)
from .rules import AccessRule, normalise_target, parse_access
from .shorthands import rules_for_paths, rules_for_targets
from .subjects import (
    Subject,
    SubjectChain,
    SubjectKind,
    append_subject,
    chain_from_list,
    chain_to_list,
)
from .targets import (
    DEFAULT_PORTS,
    NetworkTarget,
    TargetKind,
    parse_declaration,
    parse_request,
    parse_request_url,
    parse_socket,
    parse_unix_socket,
)
from .verdicts import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode

__all__ = [
    "DEFAULT_PORTS",
    "EVERY_ACCESS",
    "EXTERNAL_URL_LOCKED",
    "NETWORK_OPERATIONS",
    "NO_ACCESS",
    "VALID_OPERATIONS",
    "WRITING_OPERATIONS",
    "AccessDecision",
    "AccessRule",
    "CompiledPolicy",
    "DecisionCode",
    "FileAccess",
    "InvalidInputError",
    "NetworkAccess",
    "NetworkIndex",
    "NetworkTarget",
    "NetworkTargetMissingError",
    "Operation",
    "PathIndex",
    "Problem",
    "ResourceType",
    "SandboxError",
    "Subject",
    "SubjectChain",
    "SubjectKind",
    "TargetKind",
    "append_subject",
    "chain_from_list",
    "chain_to_list",
    "compile_policy",
    "covering_keys",
    "file_access",
    "http_operation",
    "implied_connection",
    "is_at_or_below",
    "is_valid_operation",
    "nearest",
    "network_access",
    "network_entries",
    "normalise_path",
    "normalise_target",
    "parse_access",
    "parse_declaration",
    "parse_request",
    "parse_request_url",
    "parse_socket",
    "parse_unix_socket",
    "pointer_to",
    "prefixes_of",
    "read_operation",
    "rule_key",
    "rules_for_paths",
    "rules_for_targets",
    "rules_from_json",
    "rules_to_json",
]
