"""duckdb: SQL on a database file, on CSV and Parquet files, and on a DataFrame."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import duckdb
    import pandas as pd

    connection = duckdb.connect(os.path.join(folder, "data.duckdb"))
    connection.execute("create table items (id integer, name varchar, price double)")
    connection.executemany("insert into items values (?, ?, ?)", [(1, "pen", 1.5), (2, "book", 9.0), (3, "cup", 4.5)])
    total = connection.execute("select sum(price) from items where price > ?", [2]).fetchone()[0]

    csv = os.path.join(folder, "items.csv")
    connection.execute(f"copy items to '{csv}' (header, delimiter ',')")
    names = connection.execute(f"select name from read_csv('{csv}') order by name").fetchall()
    parquet = os.path.join(folder, "items.parquet")
    connection.execute(f"copy items to '{parquet}' (format parquet)")
    top = connection.execute(f"select max(price) from '{parquet}'").fetchone()[0]

    frame = pd.DataFrame({"id": [1, 2], "stock": [10, 20]})
    joined = connection.execute("select name, stock from items join frame using (id) order by id").fetchall()
    arrow = connection.execute("select id from items order by id").df()["id"].tolist()
    connection.create_function("double_it", lambda x: x * 2, ["INTEGER"], "INTEGER")
    doubled = connection.execute("select double_it(id) from items order by id").fetchall()
    connection.close()

    with duckdb.connect(os.path.join(folder, "data.duckdb"), read_only=True) as again:
        assert again.execute("select count(*) from items").fetchone() == (3,)
    return {"total": total, "names": names, "top": top, "joined": joined, "ids": arrow, "doubled": doubled}
