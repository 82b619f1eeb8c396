"""starlette: routes, middleware, static files, a websocket and the TestClient."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
    from starlette.routing import Mount, Route, WebSocketRoute
    from starlette.staticfiles import StaticFiles
    from starlette.testclient import TestClient

    static = os.path.join(folder, "static")
    os.makedirs(static)
    with open(os.path.join(static, "a.css"), "w", encoding="utf-8") as file:
        file.write("body {}")
    done = []

    class Stamp(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            response = await call_next(request)
            response.headers["x-stamp"] = request.method
            return response

    async def hello(request: object) -> JSONResponse:
        text = await run_in_threadpool(str.upper, request.path_params["name"])
        task = BackgroundTask(done.append, text)
        return JSONResponse({"name": text, "q": request.query_params.get("q")}, background=task)

    async def form(request: object) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def move(request: object) -> RedirectResponse:
        return RedirectResponse(request.url_for("hello", name="moved"))

    async def fail(request: object) -> None:
        raise HTTPException(418, "teapot")

    async def numbers(request: object) -> StreamingResponse:
        async def produce() -> object:
            for n in range(3):
                yield f"{n};"

        return StreamingResponse(produce())

    async def echo(websocket: object) -> None:
        await websocket.accept()
        async for message in websocket.iter_json():
            await websocket.send_json({"got": message})

    app = Starlette(
        routes=[
            Route("/hello/{name}", hello, name="hello"),
            Route("/form", form, methods=["POST"]),
            Route("/move", move),
            Route("/fail", fail),
            Route("/numbers", numbers),
            WebSocketRoute("/ws", echo),
            Mount("/static", StaticFiles(directory=static)),
        ],
        middleware=[Middleware(Stamp), Middleware(GZipMiddleware, minimum_size=5)],
    )
    client = TestClient(app)
    first = client.get("/hello/ann?q=1")
    assert first.json() == {"name": "ANN", "q": "1"}
    with client.websocket_connect("/ws") as websocket:
        websocket.send_json([1, 2])
        echoed = websocket.receive_json()
    return {
        "stamp": first.headers["x-stamp"],
        "form": client.post("/form", data={"a": "b c"}).text,
        "moved": client.get("/move").json(),
        "fail": [client.get("/fail").status_code, client.get("/fail").text],
        "numbers": client.get("/numbers").text,
        "static": client.get("/static/a.css").text,
        "missing": [client.get("/static/none").status_code, client.get("/static/../secret").status_code],
        "echoed": echoed,
        "done": done,
    }
