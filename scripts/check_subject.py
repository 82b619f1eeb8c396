#!/usr/bin/env python3
"""Check the subject of a commit: a scope, an imperative verb, at most 72 characters.

usage: scripts/check_subject.py FILE

FILE contains the message; git passes it to the hook `commit-msg`. Exits with 1 after printing each problem.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 72
SCOPED = re.compile(r"(?P<scope>[a-z][a-z0-9_.-]*(?:, [a-z][a-z0-9_.-]*)*): (?P<rest>.+)")
GENERATED = re.compile(r'Merge |Revert "|(?:fixup|squash|amend)! ')
OTHER_FORMS = re.compile(r"[a-z]+(?:ed|ing)\b")
"""Past tenses and gerunds."""
IMPERATIVES = {"bring", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "string", "succeed"}


def problems(message: str) -> Iterator[str]:
    """Yield the problems of a commit message."""
    subject, _, rest = message.partition("\n")
    if GENERATED.match(subject):
        return
    if len(subject) > LONGEST:
        yield f"the subject has {len(subject)} characters, more than {LONGEST}: shorten it, and explain in the body"
    if subject.endswith("."):
        yield "the subject ends with a full stop: remove it"
    if rest.strip() and not rest.startswith("\n"):
        yield "the second line is not empty: separate the subject from the body"
    match = SCOPED.fullmatch(subject)
    if match is None:
        yield f'the subject "{subject}" has no scope: write, for example, "guard: check the mode of os.open"'
        return
    verb = re.split(r"[ ,:]", match["rest"])[0]
    if verb[:1].isupper() and not verb.isupper():
        yield f'"{verb}" is capitalized: start with an imperative verb in lower case'
    elif OTHER_FORMS.fullmatch(verb) and verb not in IMPERATIVES:
        yield f'"{verb}" is not an imperative: write "add", not "added" or "adding"'


def main(file: str) -> int:
    """Print the problems of the message in a file; the result is the exit status."""
    text = Path(file).read_text(encoding="utf-8").partition("# ------------------------ >8")[0]
    message = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    found = list(problems(message.strip("\n")))
    print("\n".join(f"commit: {problem}" for problem in found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
