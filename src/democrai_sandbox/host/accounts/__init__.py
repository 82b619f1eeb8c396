"""Accounts of the sandbox: users, sign-in, and API tokens."""

from __future__ import annotations

from .accounts import Accounts, bearer_of
from .passwords import Cost
from .tables import Credentials, Person, PersonSession, SignedIn, Token

__all__ = ["Accounts", "Cost", "Credentials", "Person", "PersonSession", "SignedIn", "Token", "bearer_of"]
