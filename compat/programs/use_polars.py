"""polars: eager and lazy frames, expressions, and files."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import polars as pl

    frame = pl.DataFrame({"shop": ["a", "b", "a", "c"], "amount": [1.5, 2.0, 3.5, 4.0], "n": [1, 2, 3, 4]})
    totals = frame.group_by("shop").agg(pl.col("amount").sum(), pl.len().alias("rows")).sort("shop")

    csv = os.path.join(folder, "frame.csv")
    frame.write_csv(csv)
    lazy = pl.scan_csv(csv).filter(pl.col("amount") > 1.8).with_columns((pl.col("n") * 10).alias("ten")).collect()
    assert lazy["ten"].to_list() == [20, 30, 40]

    parquet = os.path.join(folder, "frame.parquet")
    frame.write_parquet(parquet)
    assert pl.read_parquet(parquet).equals(frame)
    assert pl.scan_parquet(parquet).select(pl.col("n").sum()).collect().item() == 10

    def grade(amount: int) -> str:
        if amount > 2:
            return "high"
        return "low"

    joined = frame.join(pl.DataFrame({"shop": ["a", "b"], "city": ["Rome", "Oslo"]}), on="shop", how="left")
    mapped = frame.select(pl.col("n").map_elements(grade, return_dtype=pl.String))
    query = pl.SQLContext(frame=frame).execute("select shop, max(n) as top from frame group by shop order by shop")
    return {
        "totals": totals.to_dicts(),
        "cities": joined["city"].to_list(),
        "grades": mapped["n"].to_list(),
        "sql": query.collect().to_dicts(),
        "json": frame.head(1).write_json(),
    }
