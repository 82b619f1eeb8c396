"""``Idempotency-Key``: a repeated operation is carried out once."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from pydantic import BaseModel

from democrai_sandbox.console.auth import require_administrator, sandbox_of
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.console.auth import Visitor

_NAME = "Idempotency-Key"
_LONGEST = 200
_ABOUT = (
    "Makes the operation safe to repeat: the same key and body return the first answer for 24 hours, the same key "
    "with another body is a conflict. Keys belong to the caller. Printable ASCII without spaces."
)
_log = logging.getLogger("democrai_sandbox.console")
Made = TypeVar("Made", bound=BaseModel)


class Repeatable:
    """HTTP request with its idempotency key, if any."""

    def __init__(self, request: Request, key: str | None) -> None:
        """Read the HTTP request."""
        self._request = request
        self._key = key
        self._keys = sandbox_of(request).idempotency

    def run(
        self, visitor: Visitor, order: BaseModel, kind: type[Made], act: Callable[[], Made], *, for_all: bool = False
    ) -> Made:
        """Return the result of ``act``, or the stored result of the same call.

        Unless ``for_all`` is set, the caller must be allowed to decide, also for a stored result.
        """
        if self._key is None:
            return act()
        if not for_all:
            require_administrator(visitor)
        caller = visitor.identity.user_id
        kept = self._keys.begin(caller, self._key, self._digest(order))
        if kept is not None:
            return kind.model_validate_json(kept)
        try:
            made = act()
        except BaseException:
            self._put_down(lambda: self._keys.abandon(caller, str(self._key)))
            raise
        self._put_down(lambda: self._keys.finish(caller, str(self._key), made.model_dump_json()))
        return made

    def _digest(self, order: BaseModel) -> str:
        """Return the fingerprint of the HTTP request: its path and its parsed body."""
        text = json.dumps([self._request.method, self._request.scope["path"], order.model_dump(mode="json")])
        return sha256(text.encode()).hexdigest()

    @staticmethod
    def _put_down(work: Callable[[], Any]) -> None:
        """Update a key after the operation, which stays valid even if the database is unreachable now."""
        try:
            work()
        except StoreUnavailable:
            _log.warning("an idempotency key could not be changed", exc_info=True)


def _repeatable(
    request: Request,
    key: Annotated[
        str | None, Header(alias=_NAME, min_length=1, max_length=_LONGEST, pattern="^[!-~]+$", description=_ABOUT)
    ] = None,
) -> Repeatable:
    if len(request.headers.getlist(_NAME)) > 1:
        raise InvalidInputError.of("the header was sent more than once", pointer=f"/{_NAME}")
    return Repeatable(request, key)


Repeating = Annotated[Repeatable, Depends(_repeatable)]
