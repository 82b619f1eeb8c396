"""An application with its own users runs modules for them, and serves the console below /sandbox."""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse

from democrai_sandbox.console.application import create_app
from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.host import Identity, Roles, Sandbox

PEOPLE = {"ada": Roles("Ada", role="super"), "uma": Roles("Uma")}


class Users:
    """The users of the application. Here a header names the user."""

    login_url = "/login"
    identify = staticmethod(lambda visit: session_of(visit.headers.get("x-user", "")))
    roles = staticmethod(PEOPLE.get)


def session_of(user: str) -> Identity:
    """Return the identity of a user, with the session for which approvals count."""
    return Identity(user, session_key=f"{user}-today")


sandbox = Sandbox.from_config(os.environ["APP_CONFIG"], authenticator=Users(), roles=Users())
app = FastAPI(lifespan=sandbox.lifespan)  # started and stopped with the application, on its loop
app.mount("/sandbox", create_app(sandbox))
app.exception_handler(SandboxDenied)(lambda _, denial: JSONResponse({"error": str(denial), "hint": denial.hint}, 403))


@app.post("/forecast")
async def forecast(url: str, x_user: Annotated[str, Header()]) -> Any:
    """Run an action of a module for the user."""
    caller = sandbox.caller(session_of(x_user))
    if caller is None:
        raise HTTPException(401)
    return await sandbox.runtime.modules.action("weather", "fetch", {"url": url}, caller)
