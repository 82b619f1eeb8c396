"""Arguments of the commands that run code: ``run`` and ``record``."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from .options import JSON, LOCAL, SURFACES, YES, argument, defaults, either, flag, repeated, seconds, verb, verbs

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from .options import Item

_CALL_SECONDS = 30.0
_RECORDED_CALL_SECONDS = 120.0


def _timeout(usual: float | None = None) -> Item:
    words = "timeout (default: no limit)" if usual is None else f"timeout (default: {usual:g})"
    return argument("--timeout", "SECONDS", words, type=seconds, default=usual)


def _manifest(otherwise: str) -> Item:
    words = f"a manifest, or a file with only access and allowed_imports; {otherwise}"
    return argument("--manifest", "FILE", words)


_ENVIRONMENT = (
    argument("--environment", "FOLDER", "virtual environment with its packages (default: that of this command)"),
    repeated(
        "--env",
        "NAME[=VALUE]",
        "pass this variable, with its current or the given value; a few such as PATH are always passed",
    ),
)
_SCRIPT = (
    argument("file", "FILE", "a file with Python code"),
    argument("arguments", "ARGUMENT", "arguments of the script", nargs="..."),
    _manifest("default: no access"),
    *_ENVIRONMENT,
)
_FOLDER = argument("folder", "FOLDER", "the folder of the extension, with its manifest.json")
_PARAMETERS = (
    repeated("--param", "NAME=VALUE", "a parameter: JSON such as 3 or [1, 2], otherwise text"),
    argument("--params", "JSON", "all parameters as a JSON object"),
    *_ENVIRONMENT,
)
_MODULE_CALL = (
    _FOLDER,
    either(
        flag("--render", "render its page"),
        *(argument(f"--{surface}", "NAME", f"the {surface} to call") for surface in SURFACES),
    ),
    *_PARAMETERS,
)
_METHOD_CALL = (
    _FOLDER,
    argument("--method", "NAME", "the method to call; without it, the extension is only imported"),
    *_PARAMETERS,
)
_KERNEL = either(
    flag("--kernel", "fail if the kernel layer is not available", default=None),
    flag("--no-kernel", "use only the guard in the process", dest="kernel", action="store_false"),
)

run_arguments = verbs(
    verb(
        "script",
        "run a file with Python code",
        "Run a file with Python code in a separate process, under a guard. It uses the streams of\n"
        "this command, and its exit status is returned; an uncaught denial exits with 1.\n"
        "With --json, the last line on standard error is the result.",
        "run:run_script",
        *_SCRIPT,
        _KERNEL,
        _timeout(),
    ),
    verb(
        "module",
        "import a module and call one of its functions",
        "Import a module in a separate process, under its manifest, and call one of its functions. Prints\n"
        "the result as JSON. The module gets a temporary data folder.",
        "run:run_module",
        *_MODULE_CALL,
        _KERNEL,
        _timeout(_CALL_SECONDS),
    ),
    verb(
        "program",
        "run any program under the kernel layer",
        "Run a program under Landlock and seccomp, derived from the rules. Rules that the kernel cannot\n"
        "enforce are listed on standard error. The program uses the standard streams of this command, and\n"
        "its exit status is returned. With --json, the last line on standard error is the result.",
        "run:run_program",
        argument("argv", "ARGV", "the program and its arguments, after --", nargs="+"),
        _manifest("default: no access"),
        repeated("--env", "NAME[=VALUE]", "a variable for the program, in addition to a few such as PATH"),
        _timeout(),
    ),
    shared=LOCAL,
)

_LIMITS = (
    "Every access is really allowed and recorded, so run it where it cannot do harm. Protected paths, files of the\n"
    "extension, and accesses that no manifest can allow stay refused for its Python code. Native code (ctypes) and\n"
    "programs that it starts are not restricted. Afterwards the smallest manifest is proposed."
)
_REPORT = (
    argument("--output", "FILE", "write the proposed manifest to this file and the comparison to standard output"),
    argument(
        "--generalise",
        "N",
        "replace more than N files of one folder, or paths of one site, by their common prefix",
        type=int,
    ),
    YES,
)
_RUN = (
    lambda parser: parser.add_argument(
        "--check",
        action=BooleanOptionalAction,
        help="repeat the run under the proposal (status 1 if that fails) and without each entry, and remove unneeded\n"
        "entries. Default: if it only reads; with --check, also if it writes, sends or starts programs",
    ),
    argument("--trace", "FILE", "write every observation to this file, one JSON document per line"),
)
_EXTENSION = (_timeout(_RECORDED_CALL_SECONDS), *LOCAL, *_REPORT, *_RUN)
_ENGINE = (
    *_METHOD_CALL,
    argument(
        "--phase",
        None,
        "runtime (the default), or install: HTTP requests of pip beyond its index. Files and build steps are\n"
        "then not observed, but checked against the manifest",
        choices=("runtime", "install"),
        default="runtime",
    ),
    repeated("--setting", "NAME=VALUE", "a value of the stored settings"),
)

record_arguments = verbs(
    verb(
        "script",
        "record a file with Python code",
        f"Record a file with Python code. {_LIMITS}",
        "record:run_script",
        *_SCRIPT,
        _timeout(),
        *LOCAL,
        *_REPORT,
        *_RUN,
        defaults(verb="script"),
    ),
    *(
        verb(
            kind,
            f"record a call of {article} {kind}",
            f"Record {article} {kind}: its import, and a call. {_LIMITS}",
            "record:run_extension",
            *call,
            *_EXTENSION,
            defaults(verb=kind),
        )
        for kind, article, call in (
            ("module", "a", _MODULE_CALL),
            ("engine", "an", _ENGINE),
            ("extractor", "an", _ENGINE),
        )
    ),
    verb(
        "suggest",
        "propose a manifest from a trace",
        "Propose the smallest manifest for a file written by --trace. Runs nothing.",
        "record:run_suggest",
        argument("traces", "TRACE", "files written by --trace", nargs="+"),
        _manifest("default: a new module manifest"),
        *_REPORT,
        JSON,
        defaults(verb="suggest", check=None, trace=None),
    ),
)
