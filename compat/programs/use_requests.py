"""requests: prepare requests and send them through an in-memory adapter."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    import requests
    from requests.adapters import BaseAdapter
    from requests.auth import HTTPBasicAuth

    class MemoryAdapter(BaseAdapter):
        def send(self, request, **options):
            response = requests.Response()
            response.request = request
            response.url = request.url
            response.headers["Content-Type"] = "application/json; charset=utf-8"
            response.status_code = 200
            if request.path_url.startswith("/old"):
                response.status_code = 301
                response.headers["Location"] = "/new?x=1"
            elif request.path_url.startswith("/bad"):
                response.status_code = 500
            body = request.body or b""
            text = f'{{"method": "{request.method}", "path": "{request.path_url}", "size": {len(body)}}}'
            response.raw = io.BytesIO(text.encode())
            return response

        def close(self):
            pass

    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://shop.example", MemoryAdapter())
        session.headers["X-Test"] = "yes"
        session.cookies.set("c", "1", domain="shop.example")
        plain = session.get("http://shop.example/a", params={"q": "caf\u00e9"}).json()
        moved = session.get("http://shop.example/old")
        posted = session.post("http://shop.example/p", json={"a": [1, 2]}).json()
        try:
            session.get("http://shop.example/bad").raise_for_status()
            error = ""
        except requests.HTTPError as problem:
            error = str(problem.response.status_code)
        path = os.path.join(folder, "body.json")
        with session.get("http://shop.example/file", stream=True) as reply, open(path, "wb") as file:
            for part in reply.iter_content(8):
                file.write(part)
        request = requests.Request(
            "PUT", "http://shop.example/f", files={"f": ("n.txt", b"data")}, auth=HTTPBasicAuth("u", "p")
        )
        prepared = session.prepare_request(request)
    assert plain["method"] == "GET" and moved.history[0].status_code == 301
    return {
        "plain": plain,
        "moved": moved.json(),
        "posted": posted,
        "error": error,
        "size": os.path.getsize(path),
        "auth": prepared.headers["Authorization"],
        "cookie": prepared.headers["Cookie"],
        "type": prepared.headers["Content-Type"].split(";")[0],
    }
