"""Extensions of a host: registry, importer, settings and shadow runs."""

from __future__ import annotations
