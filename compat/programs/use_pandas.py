"""pandas: tables, grouping, merging, and round trips through files."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import sqlite3

    import pandas as pd

    sales = pd.DataFrame(
        {
            "day": pd.date_range("2024-01-01", periods=6, freq="D"),
            "shop": ["a", "b", "a", "b", "a", "c"],
            "amount": [1.5, 2.0, 3.5, 4.0, 5.5, 6.0],
        }
    )
    shops = pd.DataFrame({"shop": ["a", "b", "c"], "city": ["Rome", "Oslo", "Bern"]})
    merged = sales.merge(shops, on="shop", how="left")
    totals = merged.groupby("city")["amount"].agg(["sum", "mean"]).round(3)

    csv = os.path.join(folder, "sales.csv")
    merged.to_csv(csv, index=False)
    again = pd.read_csv(csv, parse_dates=["day"])
    assert again["amount"].tolist() == merged["amount"].tolist()

    pickled = os.path.join(folder, "sales.pkl")
    merged.to_pickle(pickled)
    pd.testing.assert_frame_equal(pd.read_pickle(pickled), merged)

    parquet = os.path.join(folder, "sales.parquet")
    merged.to_parquet(parquet)
    assert pd.read_parquet(parquet, columns=["amount"])["amount"].sum() == 22.5

    excel = os.path.join(folder, "sales.xlsx")
    merged.to_excel(excel, index=False)
    assert pd.read_excel(excel)["city"].tolist() == merged["city"].tolist()

    connection = sqlite3.connect(os.path.join(folder, "sales.db"))
    merged.to_sql("sales", connection, index=False)
    count = pd.read_sql("select count(*) as n from sales where amount > 2", connection)["n"][0]
    connection.close()

    weekly = sales.set_index("day")["amount"].rolling(3).mean().dropna()
    query = sales.query("amount > 3 and shop == 'a'")
    evaluated = sales.eval("amount * 2 + 1")
    return {
        "totals": totals.to_dict(),
        "count": int(count),
        "rolling": weekly.round(3).tolist(),
        "query": query["amount"].tolist(),
        "eval": evaluated.tolist(),
        "pivot": sales.pivot_table(index="shop", values="amount", aggfunc="max")["amount"].to_dict(),
    }
