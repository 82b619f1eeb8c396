"""Arguments of the commands about extensions: ``extensions``, ``mcp``, ``models`` and ``manifest``."""

from __future__ import annotations

from .choices import MANIFEST_KINDS, MCP_TRANSPORTS
from .options import (
    JSON,
    NODE,
    YES,
    a_setting,
    a_subject,
    a_text,
    argument,
    defaults,
    either,
    flag,
    milliseconds,
    one_of,
    repeated,
    verb,
    verbs,
)

_SUBJECT = argument("subject", "KIND:NAME", "such as engine:whisper", type=a_subject)

extensions_arguments = verbs(
    verb(
        "list", "list all extensions", "List modules, engines and extractors, with their state.", "extensions:run_list"
    ),
    verb(
        "install",
        "install an engine or extractor",
        "Install the environment of an engine or extractor, and wait until it is ready.",
        "extensions:run_install",
        _SUBJECT,
        flag("--again", "rebuild the environment even if it is ready"),
        flag("--no-wait", "start and return; extensions list shows the result"),
    ),
    verb(
        "settings",
        "show settings",
        "Show the settings of an engine or extractor. Values that look secret are hidden.",
        "extensions:run_settings",
        _SUBJECT,
    ),
    verb(
        "set",
        "change settings",
        "Set or remove settings of an engine or extractor on all nodes. The next call starts a worker with them.",
        "extensions:run_set",
        _SUBJECT,
        argument("values", "NAME=VALUE", "a text, or JSON such as 3 or true", nargs="*", type=a_setting),
        argument("--secret", "NAME", "ask for the value, or read it from standard input", type=a_text),
        repeated("--unset", "NAME", "remove this setting; may be repeated", type=a_text),
        YES,
    ),
    shared=NODE,
)

_SERVER = argument("name", "NAME", "name of the server in calls of modules", type=a_text)
_SERVER_FACTS = (
    one_of("--transport", "TRANSPORT", "transport", MCP_TRANSPORTS),
    argument("--timeout-ms", "N", "timeout of a call in milliseconds", type=milliseconds),
)

mcp_arguments = verbs(
    verb(
        "list",
        "list all servers",
        "List registered MCP servers, and whether their endpoints also need an approval.",
        "extensions:run_list_servers",
    ),
    verb(
        "add",
        "register a server",
        "Register an MCP server on all nodes. Its guard allows only this endpoint.",
        "extensions:run_add_server",
        _SERVER,
        argument("--endpoint", "URL", "URL of the server", type=a_text, required=True),
        *_SERVER_FACTS,
        flag("--disabled", "register it without enabling it"),
        YES,
    ),
    verb(
        "change",
        "change a server",
        "Change an MCP server on all nodes. The name cannot be changed.",
        "extensions:run_change_server",
        _SERVER,
        argument("--endpoint", "URL", "URL of the server", type=a_text),
        *_SERVER_FACTS,
        either(flag("--enable", "let modules use it"), flag("--disable", "do not let modules use it")),
        YES,
    ),
    verb(
        "remove",
        "remove a server",
        "Remove an MCP server on all nodes. Approvals of its endpoint remain.",
        "extensions:run_remove_server",
        _SERVER,
        YES,
    ),
    shared=NODE,
)

_MODEL = argument("name", "NAME", "name of the model in declarations of agents", type=a_text)
_ASK_KEY = flag("--ask-key", "ask for the key, or read it from standard input")
_KEY_FILE = argument("--api-key-file", "FILE", "local file whose first line is the key")
_MODEL_OPTIONS = (
    argument("--timeout-ms", "N", "timeout of an answer in milliseconds", type=milliseconds),
    repeated(
        "--option",
        "NAME=VALUE",
        "sent with each HTTP request, such as temperature=0.2; may be repeated; replaces all options",
        type=a_setting,
    ),
    YES,
)

models_arguments = verbs(
    verb(
        "list",
        "list all models",
        "List models and the agents that use them. The exit status is 1 if an agent uses a missing model. Keys are "
        "never shown.",
        "extensions:run_list_models",
    ),
    verb(
        "add",
        "add a model",
        "Add a model on all nodes. The key is read from the terminal, standard input or a file; the node stores it "
        "encrypted. Agents must be allowed to send to the endpoint.",
        "extensions:run_add_model",
        _MODEL,
        argument("--endpoint", "URL", "URL before /chat/completions", type=a_text, required=True),
        argument("--model", "TEXT", "name of the model at the endpoint", type=a_text, required=True),
        either(_ASK_KEY, _KEY_FILE),
        *_MODEL_OPTIONS,
        defaults(no_key=False),
    ),
    verb(
        "change",
        "change a model",
        "Change a model on all nodes. The name cannot be changed. A new endpoint needs the key again.",
        "extensions:run_change_model",
        _MODEL,
        argument("--endpoint", "URL", "URL before /chat/completions", type=a_text),
        argument("--model", "TEXT", "name of the model at the endpoint", type=a_text),
        either(_ASK_KEY, _KEY_FILE, flag("--no-key", "remove the key")),
        *_MODEL_OPTIONS,
    ),
    verb(
        "remove",
        "remove a model",
        "Remove a model and its key on all nodes. Agents that use it fail afterwards.",
        "extensions:run_remove_model",
        _MODEL,
        YES,
    ),
    shared=NODE,
)

_KIND = argument(
    "--kind",
    "KIND",
    f"kind of the manifest ({', '.join(MANIFEST_KINDS)}), if neither $schema nor the folder says so",
    choices=MANIFEST_KINDS,
)
_PLACES = (argument("places", "PATH", "a manifest, or a folder with extensions", nargs="+"), _KIND, JSON)

manifest_arguments = verbs(
    verb(
        "check",
        "list every problem with its line",
        "Check manifests as the runtime does, and list every problem. Changes nothing.",
        "extensions:run_check",
        *_PLACES,
    ),
    verb(
        "lint",
        "warn about overly broad declarations",
        "Warn about declarations that are broader than likely needed. Changes nothing.",
        "extensions:run_lint",
        *_PLACES,
        argument("--config", "FILE", "configuration file, for what its kernel layer does not enforce"),
        flag("--strict", "exit with status 1 if there is a warning"),
    ),
    verb(
        "diff",
        "list the rights that a new version adds and removes",
        "List the rights that a new version of a manifest adds and removes.",
        "extensions:run_diff",
        argument("old", "OLD", "a manifest, or the folder with it"),
        argument("new", "NEW", "the new version"),
        _KIND,
        flag("--exit-code", "exit with status 1 if rights were added"),
        JSON,
    ),
    verb(
        "schema",
        "print or write the JSON Schema of manifests",
        "Print the JSON Schema (draft 2020-12) of a kind of manifest, for editors.",
        "extensions:run_schema",
        argument("kind", "KIND", ", ".join(MANIFEST_KINDS), nargs="?", choices=MANIFEST_KINDS),
        argument("--output", "FOLDER", "write KIND.schema.json into this folder; all kinds if KIND is omitted"),
        JSON,
    ),
)
