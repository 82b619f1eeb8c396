"""aiohttp: addresses, headers, multipart bodies and handlers, without a socket."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os

    from aiohttp import ClientTimeout, CookieJar, FormData, MultipartWriter, web
    from aiohttp.test_utils import make_mocked_request
    from multidict import CIMultiDict
    from yarl import URL

    class Collect:
        def __init__(self) -> None:
            self.data = b""

        async def write(self, chunk: bytes) -> None:
            self.data += bytes(chunk)

    async def hello(request: web.Request) -> web.Response:
        return web.json_response({"name": request.match_info.get("name", "all"), "q": request.query.get("q")})

    @web.middleware
    async def shout(request: web.Request, handler: object) -> web.StreamResponse:
        response = await handler(request)
        response.headers["X-Shout"] = request.path.upper()
        return response

    async def work() -> dict:
        app = web.Application(middlewares=[shout])
        app.router.add_get("/hello/{name}", hello, name="hello")
        request = make_mocked_request("GET", "/hello/ann?q=5", headers=CIMultiDict({"Host": "shop.example"}))
        match = await app.router.resolve(request)
        response = await shout(request, match.handler)

        with MultipartWriter("form-data", boundary="edge") as writer:
            writer.append("text part")
            writer.append_json({"a": 1})
            sink = Collect()
            await writer.write(sink)
        form = FormData({"a": "1", "b": "two words"})
        form_sink = Collect()
        await form().write(form_sink)

        jar = CookieJar()
        jar.update_cookies({"c": "1"}, URL("http://shop.example/"))
        cookie_path = os.path.join(folder, "cookies")
        jar.save(cookie_path)
        other = CookieJar()
        other.load(cookie_path)
        return {
            "status": response.status,
            "body": response.text,
            "header": response.headers["X-Shout"],
            "route": str(app.router["hello"].url_for(name="bob")),
            "handler": match.handler.__name__,
            "multipart": sink.data.count(b"--edge"),
            "form": form_sink.data.decode(),
            "cookies": {k: m.value for k, m in other.filter_cookies(URL("http://shop.example/x")).items()},
        }

    result = asyncio.run(work())
    assert result["cookies"] == {"c": "1"}
    url = URL("http://user@shop.example:8080/a b?x=1#f")
    result["url"] = [str(url), url.port, str(url / "c" % {"y": "2"})]
    result["timeout"] = ClientTimeout(total=5).total
    return result
