"""aiosqlite: asyncio access to an SQLite file."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os
    import threading

    import aiosqlite

    async def work() -> dict:
        path = os.path.join(folder, "data.db")
        async with aiosqlite.connect(path) as db:
            await db.execute("create table notes (id integer primary key, body text)")
            await db.executemany("insert into notes (body) values (?)", [("one",), ("two",), ("three",)])
            await db.commit()
            db.row_factory = aiosqlite.Row
            async with db.execute("select * from notes order by id") as cursor:
                bodies = [row["body"] async for row in cursor]
            await db.create_function("shout", 1, lambda s: s.upper())
            async with db.execute("select shout(body) from notes where id = 2") as cursor:
                loud = (await cursor.fetchone())[0]
            await db.execute("delete from notes where id = 1")
            await db.rollback()
        async with aiosqlite.connect(path) as first, aiosqlite.connect(path) as second:
            rows = await asyncio.gather(
                first.execute_fetchall("select count(*) from notes"),
                second.execute_fetchall("select max(id) from notes"),
            )
        return {"bodies": bodies, "loud": loud, "rows": [list(r)[0][0] for r in rows]}

    before = threading.enumerate()
    result = asyncio.run(work())
    for thread in set(threading.enumerate()) - set(before):
        thread.join(10)
    assert result["rows"] == [3, 3]
    return result
