"""Web application: the API, the pages and their middleware. The server starts the sandbox."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from . import api, pages, problems, render, security

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from democrai_sandbox.host.sandbox import Sandbox

# FastAPI imports it with the first HTTP request; import it now, because nothing should be imported beside extensions.
_IMPORTED_LATE = ("anyio._backends._asyncio", "anyio._core._fileio")
_FILES = StaticFiles(directory=Path(__file__).with_name("static"))


def create_app(sandbox: Sandbox) -> FastAPI:
    """Return the application of a sandbox, to be served or to be mounted in another application.

    It neither starts nor stops the sandbox.
    """
    app = FastAPI(
        title="democrai-sandbox",
        version=version("democrai-sandbox"),
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # both pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.sandbox = sandbox
    render.prepare()
    for name in _IMPORTED_LATE:
        import_module(name)
    for router in api.routers():
        app.include_router(router, prefix="/api/v1")
    for router in api.unversioned():
        app.include_router(router, include_in_schema=False)
    if sandbox.settings.console.enabled:
        for router in pages.routers():
            app.include_router(router, include_in_schema=False)
        app.add_route("/static/{name:path}", _static, methods=["GET", "HEAD"], include_in_schema=False)
    api.document(app)
    security.protect(app, sandbox)
    problems.install(app, sandbox.closing.is_set)
    security.dress(app, sandbox)
    return app


async def _static(request: Request) -> Response:
    """Return a static file. A mount would change the root path that error pages use."""
    return await _FILES.get_response(request.path_params["name"], request.scope)
