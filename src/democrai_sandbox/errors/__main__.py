"""``python -m democrai_sandbox.errors FOLDER``: write the pages of the error codes into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from .catalogue.pages import pages


def main(folder: str) -> None:
    """Write the pages, and remove other pages."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (place / f"{name}.md").write_text(text, encoding="utf-8")
    for file in place.glob("*.md"):
        if file.stem not in made:
            file.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and a folder
        sys.exit("usage: python -m democrai_sandbox.errors FOLDER")
    main(sys.argv[1])
