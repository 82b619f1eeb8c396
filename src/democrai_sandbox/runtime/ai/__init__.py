"""Tools, agents and pipelines: each runs as a subject of its own, inside whatever calls it."""

from __future__ import annotations
