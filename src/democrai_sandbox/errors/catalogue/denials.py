"""Denials of the guard."""

from __future__ import annotations

from .entry import Entry, Layer, Word

DENIALS = (
    Entry(
        code="sandbox_filesystem_denied",
        title="A path is outside what the subject may reach",
        layer=Layer.GUARD,
        shape="sandbox_filesystem_denied:<subject>:<path>",
        meaning=(
            "The path lies outside what the active subject may reach with this operation: it has no rule for "
            "it. `operation` says which one was missing: `read`, `create`, `modify`, `delete` or `execute`."
        ),
        cause=(
            "The path, after links and `..` are resolved, is neither a declared root nor below one; or it lies "
            "inside a root that was declared for another operation, for example `read` when the file was "
            "opened for writing; or it is declared for another phase, `install` instead of `runtime`; or the "
            "host protects it. Moving and linking need rights at both ends. The Python environment of the "
            "application, and the folders above it, cannot be changed, also inside a folder that is declared. "
            "`execute` is missing for a native module that does not lie among installed packages."
        ),
        fix=(
            "Find the subject in the line, and its kind. Modules and their tasks declare it in `access` of the "
            "module's `manifest.json`; engines and extractors in `access` of the section of the phase that runs "
            "the code, `runtime` or `install`; a tool, agent or pipeline in its own declaration; an MCP server "
            "has its registered endpoint and nothing else. Add the entry in `hint`, as narrow as it can be. For "
            "a path that a user or an administrator chooses while the application runs, ask for approval before "
            "opening it instead of declaring a broad root: a denied file operation puts no request down. If the "
            "resolved path surprises you, look for a symbolic link on the way. A protected path cannot be "
            "allowed. Install native modules into the environment that runs the extension."
        ),
        classes=("FilesystemDenied",),
        see=("manifests.md", "approvals.md#for-extensions-asking"),
    ),
    Entry(
        code="sandbox_filesystem_fd_denied",
        title="A file was reached for by descriptor",
        layer=Layer.GUARD,
        shape="sandbox_filesystem_fd_denied:<subject>:<key>",
        meaning=(
            "A file was reached for by descriptor instead of by path, in a way that cannot be checked or "
            "does not belong to the subject."
        ),
        cause=(
            "A `dir_fd`, `src_dir_fd` or `dst_dir_fd` argument (then `<key>` is its name): such names are for "
            "install phases and child processes, where installers and cleanup code need them. Or the number of "
            "a descriptor that the guard did not see being opened by the subject and that leads to a pipe, a "
            "socket or another nameless thing of the host's (`<key>` is `fd`). Also a connection of one's own "
            "that is written to past its socket object, by its number or through a file over it (`<key>` is "
            "`http-connection` or `socket`): what is sent there could not be read."
        ),
        fix=(
            "Use ordinary path operations with full paths, under declared entries, instead of `dir_fd`. Send on "
            "sockets by their own methods. Open files inside the guard instead of passing numbers in; a file "
            "*object* that the host opened and hands over may be a sign that the host should hand over the data."
        ),
        classes=("FilesystemFdDenied",),
    ),
    Entry(
        code="sandbox_module_denied",
        title="A sensitive import is not declared",
        layer=Layer.GUARD,
        shape="sandbox_module_denied:<root>",
        meaning=("The subject asked for a module that reaches beneath Python, or used one that a library had loaded."),
        cause=(
            "`import ctypes`, `_ctypes`, `cffi` or `_cffi_backend`, or a module that the host added to the "
            "list; also through `importlib` or `sys.modules`. Or a native extension that does not lie in a "
            "code root."
        ),
        fix=(
            "If native interop is truly needed, name the root in `allowed_imports`, for example "
            '`{"allowed_imports": ["ctypes"]}`; such a module can do whatever the process can. If the import '
            "comes in by way of a dependency, prefer another dependency, or another way into it. Install native "
            "extensions into the environment rather than into a folder the subject may write."
        ),
        classes=("ModuleDenied",),
        see=("manifests.md",),
    ),
    Entry(
        code="sandbox_subprocess_denied",
        title="A child process may not be started here",
        layer=Layer.GUARD,
        shape="sandbox_subprocess_denied:<entrypoint>",
        meaning=(
            "The subject tried to start, replace or copy a process. `<entrypoint>` is the function, such as "
            "`subprocess.Popen` or `os.fork`."
        ),
        cause=(
            "The path of the runtime that runs this code does not allow children: what a page, an action or a "
            "command of a module runs never does. Libraries start programs too, for example to ask one for its "
            "version."
        ),
        fix=(
            "A module starts programs with `await sdk.tasks.run_subprocess([...])`: the runtime then gives the "
            "child a guarded environment, as tasks.md tells. Engines and extractors start them in their install "
            "phase only; MCP servers never."
        ),
        classes=("SubprocessDenied",),
        see=("tasks.md",),
    ),
    Entry(
        code="sandbox_env_denied",
        title="A variable belongs to the runtime",
        layer=Layer.GUARD,
        shape="sandbox_env_denied:<name>",
        meaning=(
            "The subject tried to set, change or remove a variable whose name starts with `DEMOCRAI_`, in "
            "its own environment or in that of a child; or `LOCALDOMAIN`, `RES_OPTIONS` or `HOSTALIASES` in "
            "its own. For a child there are more: names such as `LD_PRELOAD`, by which a program is made to "
            "run other code than its own. tasks.md lists them."
        ),
        cause=(
            "The first carry the guard into child processes and belong to the runtime. The others make the C "
            "library look up other names than it was asked for, in the whole process."
        ),
        fix=(
            "Choose another name for your own variable. To start a Python child under the same guard, the host "
            "builds its environment with `child_environment()`. Settings of the resolver are the host's, before "
            "the guard."
        ),
        classes=("EnvironmentDenied",),
        see=("tasks.md",),
    ),
    Entry(
        code="sandbox_network_denied",
        title="A network target is locked",
        layer=Layer.GUARD,
        shape="External URL is locked. (sandbox_network_denied:<subject>:<target>)",
        meaning=(
            "The subject has no rule for this operation on this network target. Nothing was sent: not the "
            "request, not a packet, not the lookup of a name. `operation` is `receive` (reading by HTTP, a "
            "websocket's messages, listening), `send` (every other HTTP method, bodies, messages to a "
            "websocket) or `connect` (sockets, lookups, opening a websocket, proxies)."
        ),
        cause=(
            "Neither the declarations of the active subject, nor an approval for the session, nor a permanent "
            "approval covers scheme, host, port and path together; an entry with a path does not open the rest "
            "of its host. Often: a redirect to another place; a socket where only a URL was declared; a proxy "
            "taken from the environment; a name that leads to this machine. network.md tells them apart. Or an "
            "administrator has denied it: then the message has the reason."
        ),
        fix=(
            "A stable dependency is declared. Modules and their tasks declare it in `access` of the module's "
            "`manifest.json`; engines and extractors in `access` of the section of the phase that runs the code, "
            "`runtime` or `install`; a tool, agent or pipeline in its own declaration; an MCP server has its "
            "registered endpoint and nothing else. Add the entry in `hint`, as narrow as it can be. A target "
            "that is chosen while the application runs is asked for: `sdk.access.check_external_access(...)` "
            "puts a request down, which an administrator decides; with a `request_id`, wait for that decision. "
            "What was denied stays so for the same subject, operation and target until an administrator revokes "
            "the denial."
        ),
        classes=("NetworkDenied",),
        remark=(
            "When the host's decider gave a message, that stands in the place of the first sentence. which has "
            "two more attributes: `decision`, what the decider said, or `None`, and `request_id`, the pending "
            "request if there is one."
        ),
        words=(
            Word(
                "socket:<family>/<type>/<protocol>",
                "in numbers: a kind of socket other than TCP, UDP and unix",
                "use TCP or UDP",
            ),
            Word("socket:family", "a call on a socket of such a kind, which the host had made", "the same"),
            Word(
                "socket:foreign",
                "a socket, listener or TLS object of the host or another subject, without a peer that could be judged",
                "open a connection of your own",
            ),
            Word(
                "socket:kernel",
                "the kernel layer gives the process no network sockets: its subject declares no network access",
                "declare the targets; for a server on loopback `receive` on its address and port",
            ),
            Word(
                "socket:option",
                "an option or message that leads packets by way of other hosts, or one the guard cannot read",
                "leave it out",
            ),
        ),
        see=("approvals.md", "manifests.md", "network.md#when-something-is-denied"),
    ),
    Entry(
        code="sandbox_guard_denied",
        title="Machinery of the interpreter is out of reach",
        layer=Layer.GUARD,
        shape="sandbox_guard_denied:<what>",
        meaning="The subject reached for machinery of the interpreter by which guards could be undone.",
        cause=(
            "For example `gc.get_objects`, tracing every thread of the process, giving a function other code, making "
            "code objects, other interpreters, loading an extension into SQLite, replacing names of the sandbox, or "
            "opening the bypass."
        ),
        fix="Do without it inside a guard; no declaration allows it. Debug and profile the subject's own code only.",
        classes=("TamperDenied",),
    ),
    Entry(
        code="sandbox_denied",
        title="The base of all denials",
        layer=Layer.GUARD,
        meaning="The class attribute of the common base of all denials. It is never raised by itself.",
        fix="Look at the code of the denial itself.",
        classes=("SandboxDenied",),
    ),
    Entry(
        code="sandbox_guard_usage",
        title="A guard was used in an unsafe way",
        layer=Layer.GUARD,
        meaning="A guard was entered, left or used in a way that could not be safe.",
        cause=(
            "Entering it in a generator or through an exit stack, leaving it from another frame than the one "
            "that entered it, entering one object twice at a time, or returning an async generator from `run`."
        ),
        fix="Use a `with` statement in an ordinary function or coroutine, or `guard.run(...)`.",
        classes=("GuardUsageError",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="sandbox_guard_sealed",
        title="The guard's settings came too late",
        layer=Layer.GUARD,
        meaning="`configure_guard` was called after the first guard was entered, or from inside one.",
        fix="Configure the guard when the application starts.",
        classes=("GuardSealedError",),
        remark="A `GuardUsageError`.",
    ),
    Entry(
        code="network_target_missing",
        title="A network target is empty",
        layer=Layer.INPUT,
        shape="network_target_missing",
        meaning="A network target is empty: in a rule, in a request, or in the address of a socket.",
        cause="Usually a setting or variable that was expected to hold a URL or a host and holds nothing.",
        fix=(
            "Look at the value before the call: fill in the target, or leave the rule out. No approval helps: "
            "there is no target that could be approved."
        ),
        classes=("NetworkTargetMissingError",),
        remark="An `InvalidInputError`.",
    ),
    Entry(
        code="invalid_input",
        title="An input is malformed",
        layer=Layer.INPUT,
        meaning=(
            "A rule, path, target, manifest entry, setting or question is malformed, or a subject handed "
            "something to the network that could be read in more than one way. `problems` lists everything "
            "that is wrong, each with the place where it stands and, for a misspelt name, the likely one."
        ),
        cause=(
            "In declarations, for example a relative or empty path in `allowed_paths`, an unknown operation, a "
            "key that does not exist, or an environment of a child that does not parse. In questions and "
            "decisions, a pattern where one target is needed, a resume context that is no JSON or too large, a "
            "broader target that does not cover the request. In settings, a key file that others can read, a "
            "database that is not supported, a package that is not installed. Of a subject: a host such as "
            "`127.1`, `0x7f.1` or `2130706433`, user information (`user@host`), a `%`, white space or a "
            "control character in a host; a port that is no number; a URL with two `#`; HTTP that is not "
            'plain, on a connection that was opened for requests ("not a plain HTTP request: ...", "this '
            'connection was opened for HTTP requests, and ...").'
        ),
        fix=(
            "Correct what the message names. Write addresses with four decimal parts; give credentials as a "
            'header or through the client\'s `auth`. A malformed input is never read as "nothing" or '
            '"everything".'
        ),
        classes=("InvalidInputError",),
        remark="A `ValueError`.",
    ),
    Entry(
        code="sandbox_error",
        title="The base of all errors",
        layer=Layer.INPUT,
        meaning=(
            "The class attribute of the root of all errors that are raised on purpose. It is never raised by itself."
        ),
        fix="Look at the code of the error itself.",
        classes=("SandboxError",),
    ),
)
