"""asyncpg: address parsing, records, types and errors, without a server."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os

    import asyncpg
    from asyncpg import connect_utils, serverversion, utils
    from asyncpg.pgproto import pgproto

    box = asyncpg.Box(asyncpg.Point(3, 4), asyncpg.Point(1, 2))
    numbers = asyncpg.Range(1, 10, lower_inc=True, upper_inc=False)
    bits = asyncpg.BitString("1010")
    key = pgproto.UUID("00000000-0000-0000-0000-000000000007")
    error = asyncpg.exceptions.PostgresError.new({"C": "23505", "M": "duplicate key", "t": "items"})
    version = serverversion.split_server_version_string("PostgreSQL 16.2 on x86_64")

    async def work() -> list:
        pool = asyncpg.create_pool("postgresql://ann:secret@db.example:5433/shop", min_size=0, max_size=2)
        states = [pool.get_min_size(), pool.get_max_size(), pool.is_closing()]
        try:
            async with asyncio.timeout(5):
                await pool.execute("select 1")
        except asyncpg.InterfaceError as problem:
            states.append(type(problem).__name__)
        return states

    with open(os.path.join(folder, "types.txt"), "w", encoding="utf-8") as file:
        file.write(repr([box, numbers, bits]))
    assert isinstance(error, asyncpg.UniqueViolationError)
    return {
        "box": [list(box.high), list(box.low)],
        "range": [numbers.lower, numbers.upper, numbers.issubset(asyncpg.Range(0, 20))],
        "bits": [bits.as_string(), bits.to_int(), len(bits)],
        "uuid": str(key),
        "error": [error.sqlstate, error.message, error.table_name],
        "version": [version.major, version.minor],
        "quoted": utils._quote_ident('a"b'),
        "pool": asyncio.run(work()),
        "modes": [mode.name for mode in connect_utils.SSLMode],
    }
