"""``python -m democrai_sandbox.manifests FOLDER`` writes the JSON Schemas into a folder, for editors."""

from __future__ import annotations

import argparse
from pathlib import Path

from .schema import write_schemas


def main() -> None:
    """Write the schemas of all kinds."""
    parser = argparse.ArgumentParser(prog="python -m democrai_sandbox.manifests", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="an existing folder; files of the same names are replaced")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"not a folder: {folder}")
    write_schemas(folder)


if __name__ == "__main__":
    main()
