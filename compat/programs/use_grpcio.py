"""grpcio: handlers, a server object without a port, status codes and credentials."""

from __future__ import annotations


def main(folder: str) -> object:
    import json
    import os
    from concurrent import futures

    import grpc

    def encode(value: dict) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    def echo(request: dict, context: object) -> dict:
        return {"echo": request}

    def count(request: dict, context: object) -> object:
        for index in range(request["n"]):
            yield {"i": index}

    handler = grpc.method_handlers_generic_handler(
        "shop.Echo",
        {
            "Say": grpc.unary_unary_rpc_method_handler(echo, json.loads, encode),
            "Count": grpc.unary_stream_rpc_method_handler(count, json.loads, encode),
        },
    )

    class Details:
        invocation_metadata = ()

        def __init__(self, method: str) -> None:
            self.method = method

    say = handler.service(Details("/shop.Echo/Say"))
    counter = handler.service(Details("/shop.Echo/Count"))
    missing = handler.service(Details("/shop.Echo/None"))
    path = os.path.join(folder, "request.bin")
    with open(path, "wb") as file:
        file.write(encode({"a": 1}))
    with open(path, "rb") as file:
        reply = say.response_serializer(say.unary_unary(say.request_deserializer(file.read()), None))
    counted = [item["i"] for item in counter.unary_stream({"n": 3}, None)]

    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=[("grpc.max_send_message_length", 1000)])
        server.add_generic_rpc_handlers((handler,))
        stopped = server.stop(None).wait(5)
    credentials = grpc.composite_call_credentials(
        grpc.access_token_call_credentials("one"), grpc.access_token_call_credentials("two")
    )
    assert missing is None and json.loads(reply) == {"echo": {"a": 1}}
    return {
        "reply": reply.decode(),
        "counted": counted,
        "streams": [say.response_streaming, counter.response_streaming],
        "stopped": bool(stopped),
        "codes": sorted(code.name for code in grpc.StatusCode)[:3],
        "credentials": type(credentials).__name__,
        "gzip": grpc.Compression.Gzip.name,
    }
