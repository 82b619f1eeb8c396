"""People of the host itself: who they are, how they sign in, and the tokens of their machines."""

from __future__ import annotations

from .accounts import Accounts
from .machines import bearer_of
from .passwords import Cost
from .values import Credentials, Person, PersonSession, SignedIn, Token

__all__ = ["Accounts", "Cost", "Credentials", "Person", "PersonSession", "SignedIn", "Token", "bearer_of"]
