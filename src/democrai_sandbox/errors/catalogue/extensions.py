"""Running extensions, their workers and their tasks."""

from __future__ import annotations

from .entry import Entry, Layer

EXTENSIONS = (
    Entry(
        code="extension_unknown",
        title="There is no such extension",
        layer=Layer.RUNTIME,
        meaning="No extension has this name, or it has no action, command, task or method of that name.",
        cause=(
            "A misspelt name, for which the text has the likely one; a folder that the settings do not name; "
            "or a function that is not declared with a decorator of the SDK."
        ),
        fix="Correct the name, or look at `runtime.extensions` for what there is.",
        classes=("ExtensionUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="extension_broken",
        title="The extension cannot run",
        layer=Layer.RUNTIME,
        meaning="The extension is there, but cannot run. All others do.",
        cause=(
            "Its manifest is wrong, its entry file is missing, its import failed or took too long, two "
            "extensions have one name, or a tool declares more than the manifest does. The text has everything "
            "that was found."
        ),
        fix="Mend what the text names and start again. extensions.md lists what can be wrong.",
        classes=("ExtensionBroken",),
        remark="A `RuntimeError`.",
        see=("extensions.md#broken-ones",),
    ),
    Entry(
        code="extension_failed",
        title="The extension's own code raised an error",
        layer=Layer.RUNTIME,
        meaning=(
            "The extension's own code raised an error. `kind` is the name of its class, `message` its text, "
            "`traceback` where it was raised; the object itself never leaves the guard."
        ),
        cause="A mistake in the extension, or a parameter that it does not take.",
        fix="Read `diagnostics()`, which has the traceback.",
        classes=("ExtensionFailed",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="extension_result_invalid",
        title="The extension returned what cannot be passed on",
        layer=Layer.RUNTIME,
        meaning=(
            "The extension's own code ran, and returned something that cannot leave its guard. `problems` has the "
            "place in the result of each value. It is a fault of the extension, not of its caller."
        ),
        cause=(
            "An object of a class, a set, a generator or an open file; a number that is not finite; more than 64 "
            "levels or a million values; keys that are not texts; a result that is larger than a frame may be."
        ),
        fix=(
            "Return plain data, enums, dataclasses, named tuples, dates, times, UUIDs, decimals or paths, which are "
            "converted. For what is large, write a file and return its path."
        ),
        classes=("ResultInvalid",),
        remark="An `ExtensionFailed`.",
        see=("modules.md",),
    ),
    Entry(
        code="extension_timeout",
        title="A call took longer than it may",
        layer=Layer.RUNTIME,
        meaning="A call into an extension took longer than it may, and was cancelled.",
        cause=(
            "`call_timeout` of the settings, or the `timeout` of a task, is over. A function that is not async "
            "cannot be stopped: it goes on in its thread, guarded, and its result is dropped."
        ),
        fix=(
            "Make a task of what takes long. For code that may hang, have the host isolate the module: there the "
            "process is ended."
        ),
        classes=("CallTimeout",),
        remark="A `TimeoutError`.",
    ),
    Entry(
        code="extension_no_runtime",
        title="The SDK was used where nothing runs extensions",
        layer=Layer.RUNTIME,
        meaning="The SDK was asked for something in a process that runs no extensions.",
        cause=(
            "An extension's file was imported by itself, for example by a test, and one of its functions "
            "called the SDK."
        ),
        fix="Run it with a host, or in tests with `sdk.testing`.",
        classes=("NoRuntime",),
        remark="A `RuntimeError`.",
        see=("testing.md",),
    ),
    Entry(
        code="extension_service_failed",
        title="A service of the runtime failed",
        layer=Layer.RUNTIME,
        meaning="A service of the runtime failed while it worked for an extension. Nothing was denied.",
        cause=(
            "An error in the host or in what it relies on; or the runtime is not running yet, or no longer. "
            "The extension is told no details."
        ),
        fix="Look into the host's log.",
        classes=("RuntimeServiceFailed",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="extension_not_installed",
        title="An engine or extractor is not installed",
        layer=Layer.RUNTIME,
        meaning="An engine or extractor has no environment for what its manifest requires.",
        cause=(
            "It was never installed; or its requirements, its local packages or the interpreter have changed since."
        ),
        fix=(
            "Install it with `democrai-sandbox extensions install engine:NAME`, on its page in the console, or with "
            "`install: true` under `extensions.engines` in the configuration. An application that embeds the runtime "
            "calls `runtime.engines.install(name)`. engines.md has the phases."
        ),
        classes=("NotInstalled",),
        remark="A `RuntimeError`.",
        see=("engines.md",),
    ),
    Entry(
        code="extension_install_failed",
        title="An environment could not be built",
        layer=Layer.RUNTIME,
        meaning="An environment could not be built. The one before it, if there is one, is still in use.",
        cause=(
            "`lines` are the last lines of pip, `denials` what the guard refused meanwhile: often a host or "
            "file that is declared for `runtime`, where `install` was needed."
        ),
        fix="Mend what they name, and install again.",
        classes=("InstallFailed",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="extension_install_busy",
        title="Another process installs the same extension",
        layer=Layer.RUNTIME,
        meaning="Another process is installing the same extension.",
        cause="Two hosts share one data directory, or an installation of an earlier process is still going on.",
        fix="Wait for it; what it installs is used by all.",
        classes=("InstallBusy",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="worker_failed",
        title="A worker did not do its part",
        layer=Layer.RUNTIME,
        meaning=(
            "The worker process of an extension did not do its part. Nothing was denied, and what the call "
            "achieved is not known."
        ),
        cause=(
            "What came over its channel made no sense, or it could not be started. `output` has the end of its "
            "standard error."
        ),
        fix="Read `diagnostics()`. The next call starts another worker.",
        classes=("WorkerFailed",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="worker_crashed",
        title="A worker ended while a call was in it",
        layer=Layer.RUNTIME,
        meaning="The process ended while a call was in it. The text says by which signal or with which code.",
        cause="A fault in native code, too little memory, or somebody has ended it.",
        fix="Read `diagnostics()`. The next call starts another worker.",
        classes=("WorkerCrashed",),
        remark="A `WorkerFailed`.",
    ),
    Entry(
        code="worker_timeout",
        title="A call in a worker took longer than it may",
        layer=Layer.RUNTIME,
        meaning="A call took longer than it may. A worker that did not let go of it was ended.",
        cause="As for `extension_timeout`.",
        fix="Make a task of what takes long, or raise `call_timeout` of the settings.",
        classes=("WorkerTimeout",),
        remark="A `WorkerFailed` and a `CallTimeout`.",
    ),
    Entry(
        code="worker_broken",
        title="A worker failed to start several times",
        layer=Layer.RUNTIME,
        meaning="The worker failed to start several times in a row.",
        cause=(
            "The import of the extension ends the process or never ends; the text says why, and when it is tried again."
        ),
        fix="Mend the extension, or install it again.",
        classes=("WorkerBroken",),
        remark="A `WorkerFailed`.",
    ),
    Entry(
        code="worker_flooded",
        title="A worker sent more than it may",
        layer=Layer.RUNTIME,
        meaning=(
            "The worker kept sending more messages or bytes than it may of its own accord, without waiting for the "
            "host, and was ended. The next call starts another."
        ),
        cause=(
            "Code in the worker writes to the worker's own socket, or asks the host from very many threads at once. "
            "Values that calls return and streams yield are not counted."
        ),
        fix="Find out what the extension does: ordinary use of the SDK waits for the host's answers.",
        classes=("WorkerFlooded",),
        remark="A `WorkerFailed`.",
    ),
    Entry(
        code="worker_frame",
        title="What came over a worker's channel is not its language",
        layer=Layer.RUNTIME,
        meaning=(
            "What came over the channel of a worker is not in its language. Seen by those who write a "
            "worker; a host gets `worker_failed`."
        ),
        cause="Something else than the worker wrote to the channel.",
        fix="None is needed: that worker is ended.",
        classes=("FrameError",),
        remark="A `ValueError`.",
    ),
    Entry(
        code="runtime_task_unknown",
        title="No task has this id",
        layer=Layer.RUNTIME,
        meaning="No task has this id, or none that the one who asks may see.",
        cause="A mistyped id, a task of another module, or one whose record was removed after 30 days.",
        fix="Take the id from `sdk.tasks.start(...)` or `sdk.tasks.listed()`.",
        classes=("TaskUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="runtime_task_queue_full",
        title="As many tasks wait as may",
        layer=Layer.RUNTIME,
        meaning="As many tasks of the module wait as may; this one was not taken.",
        cause="Tasks are started faster than they run.",
        fix="Try later, or put more work into one task.",
        classes=("TaskQueueFull",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="runtime_entry_unknown",
        title="No MCP server of this name is registered",
        layer=Layer.RUNTIME,
        meaning="The registry of MCP servers has no entry of this name.",
        cause="A misspelt name, or another database.",
        fix="Look at `democrai-sandbox mcp list`, and register it with `democrai-sandbox mcp add`.",
        classes=("EntryUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="runtime_entry_exists",
        title="An MCP server of this name is registered already",
        layer=Layer.RUNTIME,
        meaning="The registry of MCP servers has an entry of this name already.",
        cause="It was added twice.",
        fix="Change it with `democrai-sandbox mcp change`, or choose another name.",
        classes=("EntryExists",),
        remark="A `ValueError`.",
    ),
    Entry(
        code="runtime_entry_configured",
        title="The configuration sets this entry",
        layer=Layer.RUNTIME,
        meaning="The configuration sets this MCP server, or the settings of this engine or extractor. Nothing changed.",
        cause="Entries of the configuration replace those of the database, and cannot be changed while the host runs.",
        fix="Change the key that the text names in the configuration, and restart the host; or remove it there.",
        classes=("EntryConfigured",),
        remark="A `ValueError`.",
        see=("configuration.md",),
    ),
)
