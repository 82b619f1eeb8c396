"""redis: everything that needs no server: addresses, commands, parsing, retries."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import redis
    from redis.backoff import ExponentialBackoff
    from redis.commands.search.field import NumericField, TextField
    from redis.commands.search.query import Query
    from redis.connection import parse_url
    from redis.crc import key_slot
    from redis.retry import Retry

    options = parse_url("redis://user:pass@cache.example:6380/2?socket_timeout=1.5")
    options.pop("connection_class", None)
    client = redis.Redis.from_url("redis://cache.example:6379/0", decode_responses=True)
    encoder = client.connection_pool.get_encoder()
    connection = redis.Connection(host="cache.example")
    packed = b"".join(connection.pack_command("SET", "key", 5, b"\x00"))

    pipe = client.pipeline(transaction=True)
    pipe.set("a", 1).incr("a").hset("h", mapping={"f": "v"})
    queued = [list(command[0]) for command in pipe.command_stack]
    script = client.register_script("return 1")

    calls = []

    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise redis.ConnectionError("no")
        return "done"

    done = Retry(ExponentialBackoff(base=0.001, cap=0.002), 5).call_with_retry(flaky, lambda error: None)
    with open(os.path.join(folder, "dump.txt"), "wb") as file:
        file.write(packed)
    client.close()
    assert packed.startswith(b"*4\r\n$3\r\nSET\r\n") and done == "done"
    return {
        "options": {key: str(value) for key, value in sorted(options.items())},
        "packed": packed.decode(),
        "encoded": encoder.encode(1.5).decode(),
        "queued": queued,
        "sha": script.sha,
        "slot": key_slot(b"{user}.1"),
        "query": [str(part) for part in Query("shoes").limit_fields("title").paging(0, 5).get_args()],
        "fields": [list(map(str, NumericField("price").redis_args())), list(map(str, TextField("t").redis_args()))],
        "calls": len(calls),
    }
