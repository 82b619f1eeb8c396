"""psycopg: connection strings, SQL composition and type adapters, without a server."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import decimal
    import os
    import uuid

    import psycopg
    from psycopg import conninfo, sql
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.types.json import Jsonb
    from psycopg.types.range import Range

    text = conninfo.make_conninfo("host=db.example dbname=shop", user="ann", password="a b")
    parsed = conninfo.conninfo_to_dict(text)
    query = sql.SQL("select {fields} from {table} where {key} = {value} and n > {limit}").format(
        fields=sql.SQL(", ").join([sql.Identifier("id"), sql.Identifier('odd "name"')]),
        table=sql.Identifier("public", "items"),
        key=sql.Identifier("name"),
        value=sql.Literal("O'Brien"),
        limit=sql.Placeholder("limit"),
    )
    transformer = Transformer()
    values = [
        5,
        2.5,
        "text",
        True,
        None,
        datetime.date(2024, 1, 2),
        decimal.Decimal("1.50"),
        uuid.UUID(int=7),
        [1, 2, 3],
        Jsonb({"a": 1}),
        Range(1, 5),
        b"\x01\x02",
    ]
    dumped = transformer.dump_sequence(values, [PyFormat.TEXT] * len(values))
    loader = transformer.get_loader(psycopg.adapters.types["int4"].oid, psycopg.pq.Format.TEXT)
    stamps = transformer.get_loader(psycopg.adapters.types["date"].oid, psycopg.pq.Format.TEXT)
    escaped = psycopg.pq.Escaping().escape_bytea(b"\x00\xff")
    with open(os.path.join(folder, "query.sql"), "w", encoding="utf-8") as file:
        file.write(query.as_string(None))
    assert loader.load(b"42") == 42
    return {
        "parsed": parsed,
        "query": query.as_string(None),
        "dumped": [None if item is None else bytes(item).decode("latin-1") for item in dumped],
        "date": stamps.load(b"2024-01-02").isoformat(),
        "escaped": bytes(escaped).decode(),
        "implementation": psycopg.pq.__impl__,
        "error": psycopg.errors.lookup("23505").__name__,
    }
