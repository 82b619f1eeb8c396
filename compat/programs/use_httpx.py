"""httpx: MockTransport and ASGITransport in memory, sync and async."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import io
    import os

    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/redirect":
            return httpx.Response(302, headers={"location": "/json"})
        if request.url.path == "/json":
            return httpx.Response(200, json={"query": dict(request.url.params), "agent": request.headers["user-agent"]})
        if request.url.path == "/upload":
            return httpx.Response(201, text=str(b"file content" in request.read()))
        if request.url.path == "/slow":
            raise httpx.ReadTimeout("too slow", request=request)
        return httpx.Response(404)

    path = os.path.join(folder, "download.bin")
    with httpx.Client(
        transport=httpx.MockTransport(answer), base_url="http://shop.example", headers={"user-agent": "test"}
    ) as client:
        found = client.get("/json", params={"a": "1"}).json()
        redirected = client.get("/redirect", follow_redirects=True)
        uploaded = client.post("/upload", files={"f": ("a.txt", io.BytesIO(b"file content"))}, data={"x": "y"})
        with client.stream("GET", "/json") as response, open(path, "wb") as file:
            for part in response.iter_bytes():
                file.write(part)
        errors = []
        for address in ("/slow", "/missing"):
            try:
                client.get(address).raise_for_status()
            except (httpx.TimeoutException, httpx.HTTPStatusError) as error:
                errors.append(type(error).__name__)
    assert found["query"] == {"a": "1"}

    async def app(scope: dict, receive: object, send: object) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-path", scope["path"].encode())]})
        await send({"type": "http.response.body", "body": body[::-1]})

    async def asgi() -> list:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app.example") as client:
            replies = await asyncio.gather(*[client.post(f"/{n}", content=f"abc{n}") for n in range(3)])
        return [[reply.headers["x-path"], reply.text] for reply in replies]

    return {
        "found": found,
        "redirected": [len(redirected.history), redirected.status_code],
        "uploaded": [uploaded.status_code, uploaded.text],
        "size": os.path.getsize(path),
        "errors": errors,
        "asgi": asyncio.run(asgi()),
        "url": str(httpx.URL("http://a.example/x?y=1").copy_merge_params({"z": "2"})),
    }
