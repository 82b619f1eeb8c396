"""Tools, agents and pipelines: each runs as a separate subject, inside its caller."""

from __future__ import annotations
