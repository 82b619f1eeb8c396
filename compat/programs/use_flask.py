"""flask: routes, templates, sessions, blueprints, uploads and errors with the test client."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    from flask import Blueprint, Flask, abort, g, jsonify, render_template, request, send_from_directory, session
    from flask import stream_with_context, url_for

    templates = os.path.join(folder, "templates")
    os.makedirs(templates)
    with open(os.path.join(templates, "hello.html"), "w", encoding="utf-8") as file:
        file.write("<h1>Hello {{ name }}</h1>")
    app = Flask("shop", template_folder=templates, instance_path=os.path.join(folder, "instance"), root_path=folder)
    app.config.update(TESTING=True, SECRET_KEY="secret")
    api = Blueprint("api", "shop.api", url_prefix="/api")

    @api.route("/items/<int:number>", methods=["GET", "POST"])
    def item(number: int) -> object:
        return jsonify(number=number, sent=request.get_json(silent=True), start=g.start)

    @app.before_request
    def start() -> None:
        g.start = "set"

    @app.get("/hello/<name>")
    def hello(name: str) -> str:
        session["seen"] = session.get("seen", 0) + 1
        return render_template("hello.html", name=name) + str(session["seen"])

    @app.post("/upload")
    def upload() -> object:
        request.files["f"].save(os.path.join(folder, "upload.txt"))
        return send_from_directory(folder, "upload.txt")

    @app.get("/stream")
    def stream() -> object:
        return app.response_class(stream_with_context(f"{n}," for n in range(3)))

    @app.get("/secret")
    def secret() -> None:
        abort(403)

    @app.errorhandler(403)
    def denied(error: Exception) -> tuple:
        return "denied", 403

    @app.cli.command("count")
    def count() -> None:
        print("counted")

    app.register_blueprint(api)
    client = app.test_client()
    first = client.get("/hello/<Ann>").text
    assert first == "<h1>Hello &lt;Ann&gt;</h1>1"
    uploaded = client.post("/upload", data={"f": (io.BytesIO(b"content"), "a.txt")})
    with app.test_request_context():
        address = url_for("api.item", number=5)
    result = {
        "hello": [first, client.get("/hello/Bob").text],
        "item": client.post("/api/items/7", json={"a": 1}).get_json(),
        "upload": uploaded.text,
        "stream": client.get("/stream").text,
        "secret": [client.get("/secret").status_code, client.get("/secret").text],
        "missing": client.get("/none").status_code,
        "address": address,
        "cli": app.test_cli_runner().invoke(args=["count"]).output,
    }
    uploaded.close()
    return result
