"""An application with users of its own, and the console below a path of it. Run as a program: folder, port.

A proxy before it would have said who somebody is: the header X-User. Whoever is not in the list is nobody.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from democrai_sandbox.console.application import create_app
from democrai_sandbox.host import Identity, Roles, Sandbox


class Users:
    login_url = "/their/sign-in?from=sandbox"

    def __init__(self, folder):
        self._shut_out = Path(folder, "shut-out")
        self._people = {
            "ada": Roles("Ada <b>Lovelace</b>", role="super"),
            "uma": Roles("Uma"),
            "otto": Roles("Otto", role="super", organization_id="acme"),
        }

    def identify(self, visit):
        if not visit.path.startswith("/sandbox/"):
            raise AssertionError(visit.path)
        user = visit.headers.get("x-user", "")
        return Identity(user, f"{user}-{visit.cookies.get('theirs', 'none')}") if user else None

    def roles(self, user_id):
        return None if self._shut_out.exists() else self._people.get(user_id)


if __name__ == "__main__":
    folder, port = sys.argv[1:]
    users = Users(folder)
    config = {"state_dir": f"{folder}/state", "console": {"reauth_minutes": 1}}
    sandbox = Sandbox.from_config(config, environ={}, authenticator=users, roles=users)
    app = FastAPI(lifespan=sandbox.lifespan)
    app.mount("/sandbox", create_app(sandbox))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", proxy_headers=False)
