"""Errors of registered MCP servers, models, settings and shadow runs."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance


class EntryUnknown(SandboxError, LookupError):
    """No MCP server, model or shadow run of this name exists.

    Nothing was changed, in the database and in the running host.
    """

    code = "runtime_entry_unknown"
    guidance = Guidance(
        cause="The name or id is misspelled, or belongs to another database.",
        fix="List the entries with `democrai-sandbox mcp list`, `models list` or `shadow list`, and add a missing one.",
        example="""\
$ democrai-sandbox mcp remove wether
runtime_entry_unknown: ... wether""",
        see=("mcp.md",),
    )


class EntryExists(SandboxError, ValueError):
    """An MCP server, model or shadow run of this name already exists.

    The existing entry was not changed.
    """

    code = "runtime_entry_exists"
    guidance = Guidance(
        cause="The entry was added twice, or the subject already runs beside a candidate manifest.",
        fix=(
            "Change the entry with `democrai-sandbox mcp change` or `models change`, stop the shadow run, or use "
            "another name."
        ),
        example="""\
$ democrai-sandbox mcp add weather --endpoint https://mcp.example.com/mcp     # twice
runtime_entry_exists: ... weather ...""",
        see=("mcp.md",),
    )


class EntryConfigured(SandboxError, ValueError):
    """The configuration sets this entry.

    Nothing was changed: entries of the configuration replace those of the database and are fixed while the host runs.
    """

    code = "runtime_entry_configured"
    guidance = Guidance(
        cause=(
            "The configuration file or a variable names this MCP server, model, or the settings of this engine or "
            "extractor."
        ),
        fix="Change the key that the text names in the configuration and restart the host, or remove it there.",
        example="""\
$ democrai-sandbox mcp remove weather     # listed under extensions.mcp.servers
runtime_entry_configured: MCP server weather is set in the configuration: change ... there, and restart""",
        see=("configuration.md",),
    )
