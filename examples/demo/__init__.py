"""``make run``: the console with the example extensions, and one story told beside it."""

from __future__ import annotations
