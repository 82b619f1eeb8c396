"""Answers questions from a folder of notes: a pipeline that runs an agent that calls tools, each as its own subject."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Annotated, Any

from democrai_sandbox import sdk

NOTES = {"resource_type": "filesystem", "operation": "read", "target": "notes"}
MODEL = {"resource_type": "network", "operation": "send", "target": "https://models.example.com/v1/chat/completions"}


@sdk.tool("list_notes", access=[NOTES])
def list_notes() -> list[str]:
    """Return the names of all notes."""
    return sorted(path.stem for path in (sdk.extension_dir() / "notes").iterdir())


@sdk.tool("read_note", access=[NOTES])
def read_note(name: Annotated[str, "As list_notes gives it."]) -> str:
    """Return the text of a note."""
    return (sdk.extension_dir() / "notes" / f"{name}.txt").read_text()


@sdk.tool("count_words", access=[])
async def count_words(text: str) -> int:
    """Return how many words a text has. It may use nothing, and needs nothing."""
    return len(text.split())


@sdk.agent(
    "librarian",
    model="default",
    tools=["list_notes", "read_note", "count_words"],
    instructions="Answer from the notes only. Say so when they do not tell.",
    access=[MODEL],
    max_turns=8,
)
def librarian(question: str) -> str:
    """Answer a question from the notes. The model is asked under what this agent declares, which is no file at all."""
    return f"The question: {question}"


def one_line(text: str) -> str:
    """Put an answer on one line: a step of the pipeline's own."""
    return " ".join(text.split())


@sdk.pipeline("answer", steps=["librarian", one_line])
def answer(question: str) -> None:
    """Answer a question on one line."""


@sdk.action("ask")
async def ask(question: str) -> dict[str, Any]:
    """Return the answer, and what the tools were refused on the way to it."""
    run = await sdk.ai.run_pipeline("answer", {"question": question})
    return {"answer": run.value, "refused": [denial["message"] for denial in run.denials]}


@sdk.tool("misbehave", access=[])
async def misbehave(note: str) -> dict[str, str]:
    """Try what a tool without any access must not, and return what became of it."""
    attempts = {
        "read a note of its module": lambda: Path(note).read_text(),
        "read its own code": lambda: Path(__file__).read_text(),
        "read a file of the host": lambda: Path("/etc/passwd").read_text(),
        "write": lambda: Path(note).write_text("gone"),
        "connect": lambda: socket.create_connection(("models.example.com", 443), 1),
        "start a program": lambda: subprocess.run(["true"], check=True),  # noqa: S607 - it must not work
        "call the other tool's function": lambda: read_note("garden"),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


@sdk.command("misbehave")
async def misbehave_as_a_tool() -> dict[str, str]:
    """Have the tool misbehave."""
    note = str(sdk.extension_dir() / "notes" / "garden.txt")
    tried: dict[str, str] = await sdk.ai.run_tool("misbehave", {"note": note})
    return tried


def _try(attempt: Any) -> str:
    try:
        attempt()
    except PermissionError as denial:
        return type(denial).__name__
    return "it worked"
