"""The web console and the HTTP API."""

from __future__ import annotations
