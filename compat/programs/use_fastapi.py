"""fastapi: models, dependencies, uploads, a websocket and the schema with the TestClient."""

from __future__ import annotations


def main(folder: str) -> object:
    import contextlib
    import os

    from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
    from fastapi.responses import FileResponse, StreamingResponse
    from fastapi.testclient import TestClient
    from pydantic import BaseModel, Field

    global Item, Tasks
    Tasks = BackgroundTasks

    class Item(BaseModel):
        name: str
        price: float = Field(gt=0)

    events = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> object:
        events.append("start")
        yield
        events.append("stop")

    app = FastAPI(lifespan=lifespan, title="Shop")
    router = APIRouter(prefix="/items")
    path = os.path.join(folder, "log.txt")

    def token(x_token: str = Header()) -> str:
        if x_token != "good":
            raise HTTPException(401, "bad token")
        return x_token

    def write(text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)

    @router.post("/", response_model=Item, status_code=201)
    async def create(item: Item, tasks: Tasks, user: str = Depends(token)) -> object:
        tasks.add_task(write, item.name)
        return item

    @router.get("/{number}")
    def read(number: int, q: str = "none") -> dict:
        return {"number": number, "q": q}

    @app.get("/file", response_model=None)
    def file() -> object:
        return FileResponse(path)

    @app.get("/stream", response_model=None)
    async def stream() -> object:
        return StreamingResponse(iter(["a", "b"]), media_type="text/plain")

    @app.websocket_route("/ws")
    async def socket(websocket: object) -> None:
        await websocket.accept()
        await websocket.send_text((await websocket.receive_text()).upper())
        await websocket.close()

    app.include_router(router)
    with TestClient(app) as client:
        created = client.post("/items/", json={"name": "pen", "price": 1.5}, headers={"x-token": "good"})
        assert created.status_code == 201 and created.json() == {"name": "pen", "price": 1.5}
        invalid = client.post("/items/", json={"price": -1}, headers={"x-token": "good"})
        with client.websocket_connect("/ws") as websocket:
            websocket.send_text("hello")
            echoed = websocket.receive_text()
        result = {
            "read": client.get("/items/5", params={"q": "x"}).json(),
            "token": client.post("/items/", json={"name": "a", "price": 1}, headers={"x-token": "no"}).json(),
            "invalid": [error["loc"] for error in invalid.json()["detail"]],
            "file": client.get("/file").text,
            "stream": client.get("/stream").text,
            "echoed": echoed,
            "paths": sorted(client.get("/openapi.json").json()["paths"]),
            "docs": client.get("/docs").status_code,
        }
    result["events"] = events
    return result
