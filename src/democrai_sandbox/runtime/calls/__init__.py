"""Calls into extensions: invocation, guard, threads, outcome and output."""

from __future__ import annotations
