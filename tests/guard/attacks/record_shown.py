"""List the files whose attacks were all seen to work without a guard; ``make golden`` runs this.

A new clone runs the attacks of these files only under the guard, while they, the kit and the packages are unchanged.
``FRESH=1 make test`` runs all of them without a guard again.
"""

from __future__ import annotations

import sys

from tests.guard.attacks.kit import REGISTRY
from tests.guard.attacks.test_attacks import HERE, SHOWN, attack_key, file_key, is_played


def main() -> None:
    """Keep the valid lines, and add those of files that this machine has since seen to work."""
    minor = "{}.{}".format(*sys.version_info)
    cache = HERE.parents[2] / ".pytest_cache" / "d" / "attacks" / f"shown-{minor}"
    seen = set(cache.read_text().split()) if cache.exists() else set()
    known = SHOWN.read_text().splitlines()
    lines = [line for line in known if not line.startswith(f"{minor}:")]
    for file, entries in REGISTRY.attacks.items():
        line = f"{minor}:{file} {file_key(file)}"
        played = [entry for entry in entries.values() if is_played(entry) and not entry.unguarded]
        if line in known or all(attack_key(entry) in seen for entry in played):
            lines.append(line)
    SHOWN.write_text("".join(f"{line}\n" for line in sorted(lines)))


if __name__ == "__main__":
    main()
