"""pyarrow: tables, compute functions, Parquet, Feather, IPC and a dataset."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.dataset as ds
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    table = pa.table({"name": ["a", "b", "a", "c"], "value": [1, 2, 3, 4], "tags": [["x"], [], ["y", "z"], None]})
    path = os.path.join(folder, "table.parquet")
    pq.write_table(table, path, compression="zstd")
    assert pq.read_table(path).equals(table)

    small = table.select(["name", "value"])
    feather_path = os.path.join(folder, "table.feather")
    feather.write_feather(small, feather_path)
    assert feather.read_table(feather_path).equals(small)

    csv_path = os.path.join(folder, "table.csv")
    pa_csv.write_csv(small, csv_path)
    assert pa_csv.read_csv(csv_path)["value"].to_pylist() == [1, 2, 3, 4]

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == 4

    root = os.path.join(folder, "parts")
    ds.write_dataset(small, root, format="parquet", partitioning=["name"], partitioning_flavor="hive")
    dataset = ds.dataset(root, format="parquet", partitioning="hive")
    filtered = dataset.to_table(filter=ds.field("value") > 1)

    with pa.memory_map(path) as source:
        rows = pq.ParquetFile(source).metadata.num_rows

    groups = small.group_by("name").aggregate([("value", "sum")]).sort_by("name").to_pylist()
    return {
        "groups": groups,
        "filtered": sorted(filtered["value"].to_pylist()),
        "mean": pc.mean(table["value"]).as_py(),
        "rows": rows,
        "pandas": table.to_pandas()["value"].tolist(),
    }
