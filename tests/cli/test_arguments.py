"""Arguments of commands: choices, verbs, and their functions."""

from __future__ import annotations

import argparse
import inspect
from importlib import import_module

from democrai_sandbox.access.values import AuditAction, DecisionScope, RequestState
from democrai_sandbox.cli.arguments import choices
from democrai_sandbox.cli.arguments.host import USUAL_SCOPES
from democrai_sandbox.cli.commands import COMMANDS
from democrai_sandbox.cli.parser import CommandParser, add_verbs, parser_of
from democrai_sandbox.cli.serve import LogFormat
from democrai_sandbox.host import scopes
from democrai_sandbox.manifests import ManifestKind, McpTransport
from democrai_sandbox.policy import Operation, ResourceType, SubjectKind
from tests.services.rows import rows

ENUMS = {
    "SUBJECT_KINDS": SubjectKind,
    "RESOURCE_TYPES": ResourceType,
    "OPERATIONS": Operation,
    "MANIFEST_KINDS": ManifestKind,
    "MCP_TRANSPORTS": McpTransport,
    "SCOPES": DecisionScope,
    "REQUEST_STATES": RequestState,
    "AUDIT_ACTIONS": AuditAction,
    "LOG_FORMATS": LogFormat,
}


def test_words_are_those_of_the_enums():
    """The choices are those of the enums, in the same order; each list has an enum."""
    written = {name: value for name, value in vars(choices).items() if name.isupper()}
    assert written == {name: tuple(one.value for one in kind) for name, kind in ENUMS.items()}


def test_usual_scopes_of_a_token_are_scopes():
    """The default scopes are valid scopes."""
    assert set(USUAL_SCOPES) <= {one.value for one in scopes.Scope}


def parsers(parser):
    """Return a parser without verbs, or the parsers of its verbs."""
    verbs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in verbs:
        for verb in action.choices.values():
            yield from parsers(verb)
    if not verbs:
        yield parser


@rows("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_what_is_taken_is_done_somewhere(command):
    """Every verb names a separate function that takes the options and an output."""
    named = [parser.get_default("run") for parser in parsers(parser_of(command))]
    for place in named:
        module, _, name = place.partition(":")
        function = getattr(import_module(f"democrai_sandbox.cli.{module}"), name)
        assert len(inspect.signature(function).parameters) == 2
    shared = {"record:run_extension"}  # told by ``verb``
    assert len(set(named) - shared) == len([place for place in named if place not in shared])


def test_a_parser_is_made_when_it_is_needed():
    """Only the parser of the used verb is built, once; the others are built on access."""
    made = []

    def verb(name):
        return lambda parser: made.append(name) or parser.set_defaults(run=name)

    def takes(parser):
        verbs = add_verbs(parser)
        for name in ("one", "two"):
            verbs.add_parser(name, help=name, takes=verb(name))

    parser = CommandParser(prog="x", takes=takes)
    assert "verb" in parser.format_usage()
    assert made == []
    assert parser.parse_args(["two"]).run == "two"
    assert parser.parse_args(["two"]).run == "two"
    assert made == ["two"]
    assert [found.prog for found in parsers(parser)] == ["x one", "x two"]
    assert made == ["two", "one"]
    assert not hasattr(parser, "nothing")
