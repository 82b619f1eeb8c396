"""Arguments of the commands about extensions: ``extensions``, ``mcp``, ``models`` and ``manifest``."""

from __future__ import annotations

from democrai_sandbox.cli.parser import add_verbs

from .choices import MANIFEST_KINDS, MCP_TRANSPORTS
from .options import a_setting, a_subject, a_text, add_json, add_node, add_yes, milliseconds, one_of

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from democrai_sandbox.cli.parser import CommandParser


_LIST_EXTENSIONS = "List modules, engines and extractors, with their state."
_INSTALL = "Install the environment of an engine or extractor, and wait until it is ready."
_SETTINGS = "Show the settings of an engine or extractor. Values that look secret are hidden."
_SET = "Set or remove settings of an engine or extractor on all nodes. The next call starts a worker with them."


def extensions_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "list", help="list all extensions", description=_LIST_EXTENSIONS, takes=add_node, run="extensions:run_list"
    )
    verbs.add_parser("install", help="install an engine or extractor", description=_INSTALL, takes=_install)
    verbs.add_parser(
        "settings",
        help="show settings",
        description=_SETTINGS,
        takes=_settings,
        run="extensions:run_settings",
    )
    verbs.add_parser("set", help="change settings", description=_SET, takes=_set)


def _install(parser: CommandParser) -> None:
    _add_subject(parser)
    parser.add_argument("--again", action="store_true", help="rebuild the environment even if it is ready")
    parser.add_argument("--no-wait", action="store_true", help="start and return; extensions list shows the result")
    add_node(parser)
    parser.set_defaults(run="extensions:run_install")


def _settings(parser: CommandParser) -> None:
    _add_subject(parser)
    add_node(parser)


def _set(parser: CommandParser) -> None:
    _add_subject(parser)
    parser.add_argument(
        "values", metavar="NAME=VALUE", nargs="*", type=a_setting, help="a text, or JSON such as 3 or true"
    )
    parser.add_argument(
        "--secret", metavar="NAME", type=a_text, help="ask for the value, or read it from standard input"
    )
    parser.add_argument(
        "--unset", metavar="NAME", action="append", default=[], type=a_text, help="remove this setting; may be repeated"
    )
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_set")


def _add_subject(parser: CommandParser) -> None:
    parser.add_argument("subject", metavar="KIND:NAME", type=a_subject, help="such as engine:whisper")


_LIST_SERVERS = "List registered MCP servers, and whether their endpoints also need an approval."
_ADD_SERVER = "Register an MCP server on all nodes. Its guard allows only this endpoint."
_CHANGE_SERVER = "Change an MCP server on all nodes. The name cannot be changed."
_REMOVE_SERVER = "Remove an MCP server on all nodes. Approvals of its endpoint remain."


def mcp_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "list", help="list all servers", description=_LIST_SERVERS, takes=add_node, run="extensions:run_list_servers"
    )
    verbs.add_parser("add", help="register a server", description=_ADD_SERVER, takes=_add_server)
    verbs.add_parser("change", help="change a server", description=_CHANGE_SERVER, takes=_change_server)
    verbs.add_parser("remove", help="remove a server", description=_REMOVE_SERVER, takes=_remove_server)


def _add_server(parser: CommandParser) -> None:
    _add_server_name(parser)
    parser.add_argument("--endpoint", metavar="URL", type=a_text, required=True, help="URL of the server")
    _add_server_facts(parser)
    parser.add_argument("--disabled", action="store_true", help="register it without enabling it")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_add_server")


def _change_server(parser: CommandParser) -> None:
    _add_server_name(parser)
    parser.add_argument("--endpoint", metavar="URL", type=a_text, help="URL of the server")
    _add_server_facts(parser)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--enable", action="store_true", help="let modules use it")
    either.add_argument("--disable", action="store_true", help="do not let modules use it")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_change_server")


def _remove_server(parser: CommandParser) -> None:
    _add_server_name(parser)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_remove_server")


def _add_server_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", type=a_text, help="name of the server in calls of modules")


def _add_server_facts(parser: CommandParser) -> None:
    parser.add_argument("--transport", **one_of(MCP_TRANSPORTS, "TRANSPORT", "transport"))
    parser.add_argument("--timeout-ms", metavar="N", type=milliseconds, help="timeout of a call in milliseconds")


_LIST_MODELS = (
    "List models and the agents that use them. The exit status is 1 if an agent uses a missing model. Keys are never "
    "shown."
)
_ADD_MODEL = (
    "Add a model on all nodes. The key is read from the terminal, standard input or a file; the node stores it "
    "encrypted. Agents must be allowed to send to the endpoint."
)
_CHANGE_MODEL = "Change a model on all nodes. The name cannot be changed. A new endpoint needs the key again."
_REMOVE_MODEL = "Remove a model and its key on all nodes. Agents that use it fail afterwards."


def models_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "list", help="list all models", description=_LIST_MODELS, takes=add_node, run="extensions:run_list_models"
    )
    verbs.add_parser("add", help="add a model", description=_ADD_MODEL, takes=_add_model)
    verbs.add_parser("change", help="change a model", description=_CHANGE_MODEL, takes=_change_model)
    verbs.add_parser("remove", help="remove a model", description=_REMOVE_MODEL, takes=_remove_model)


def _add_model(parser: CommandParser) -> None:
    _add_model_name(parser)
    _add_model_facts(parser, required=True)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_add_model", no_key=False)


def _change_model(parser: CommandParser) -> None:
    _add_model_name(parser)
    _add_model_facts(parser, required=False)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_change_model")


def _remove_model(parser: CommandParser) -> None:
    _add_model_name(parser)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_remove_model")


def _add_model_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", type=a_text, help="name of the model in declarations of agents")


def _add_model_facts(parser: CommandParser, *, required: bool) -> None:
    parser.add_argument(
        "--endpoint", metavar="URL", type=a_text, required=required, help="URL before /chat/completions"
    )
    parser.add_argument(
        "--model", metavar="TEXT", type=a_text, required=required, help="name of the model at the endpoint"
    )
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--ask-key", action="store_true", help="ask for the key, or read it from standard input")
    key.add_argument("--api-key-file", metavar="FILE", help="local file whose first line is the key")
    if not required:
        key.add_argument("--no-key", action="store_true", help="remove the key")
    parser.add_argument("--timeout-ms", metavar="N", type=milliseconds, help="timeout of an answer in milliseconds")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=a_setting,
        action="append",
        default=[],
        help="sent with each HTTP request, such as temperature=0.2; may be repeated; replaces all options",
    )


def manifest_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "check",
        help="list every problem with its line",
        description="Check manifests as the runtime does, and list every problem. Changes nothing.",
        takes=_add_places,
        run="manifest:run_check",
    )
    verbs.add_parser(
        "lint",
        help="warn about overly broad declarations",
        description="Warn about declarations that are broader than likely needed. Changes nothing.",
        takes=_lint,
    )
    verbs.add_parser(
        "diff",
        help="list the rights that a new version adds and removes",
        description="List the rights that a new version of a manifest adds and removes.",
        takes=_diff,
    )
    verbs.add_parser(
        "schema",
        help="print or write the JSON Schema of manifests",
        description="Print the JSON Schema (draft 2020-12) of a kind of manifest, for editors.",
        takes=_schema,
    )


def _lint(parser: CommandParser) -> None:
    _add_places(parser)
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there is a warning")
    parser.set_defaults(run="manifest:run_lint")


def _diff(parser: CommandParser) -> None:
    parser.add_argument("old", metavar="OLD", help="a manifest, or the folder with it")
    parser.add_argument("new", metavar="NEW", help="the new version")
    _add_kind(parser)
    parser.add_argument("--exit-code", action="store_true", help="exit with status 1 if rights were added")
    add_json(parser)
    parser.set_defaults(run="manifest:run_diff")


def _schema(parser: CommandParser) -> None:
    parser.add_argument("kind", nargs="?", choices=MANIFEST_KINDS, metavar="KIND", help=", ".join(MANIFEST_KINDS))
    parser.add_argument(
        "--output", metavar="FOLDER", help="write KIND.schema.json into this folder; all kinds if KIND is omitted"
    )
    add_json(parser)
    parser.set_defaults(run="manifest:run_schema")


def _add_places(parser: CommandParser) -> None:
    parser.add_argument("places", nargs="+", metavar="PATH", help="a manifest, or a folder with extensions")
    _add_kind(parser)
    add_json(parser)


def _add_kind(parser: CommandParser) -> None:
    parser.add_argument(
        "--kind",
        choices=MANIFEST_KINDS,
        metavar="KIND",
        help=f"kind of the manifest ({', '.join(MANIFEST_KINDS)}), if neither $schema nor the folder says so",
    )
