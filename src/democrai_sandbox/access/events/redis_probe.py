"""Reachability test of a Redis server."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from redis import Redis, RedisError

_WITHIN = 3.0


def why_unreachable(url: str) -> str:
    """Ping a server and return the error, or an empty text. The text may contain parts of the URL."""
    try:
        with closing(Redis.from_url(url, socket_connect_timeout=_WITHIN, socket_timeout=_WITHIN)) as server:
            cast("Any", server).ping()
    except (RedisError, OSError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""
