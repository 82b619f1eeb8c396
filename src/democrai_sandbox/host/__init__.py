"""The reference application: everything of this distribution, wired from one configuration."""

from __future__ import annotations
