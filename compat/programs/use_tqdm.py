"""tqdm: progress bars written to a string."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import io
    import os

    import pandas as pd
    from tqdm import tqdm, trange
    from tqdm.asyncio import tqdm as async_tqdm
    from tqdm.contrib.concurrent import thread_map
    from tqdm.utils import CallbackIOWrapper

    tqdm.monitor_interval = 0
    output = io.StringIO()
    total = sum(tqdm(range(100), file=output, desc="sum", ncols=60))
    bar = tqdm(total=10, file=output, unit="B", unit_scale=True)
    for _ in range(5):
        bar.update(2)
    bar.set_postfix(done=bar.n)
    bar.close()
    nested = [i * j for i in trange(3, file=output) for j in trange(2, file=output, leave=False)]
    squares = thread_map(lambda x: x * x, range(5), max_workers=2, file=output)
    tqdm.pandas(file=output)
    applied = pd.Series([1, 2, 3]).progress_apply(lambda x: x + 1).tolist()

    path = os.path.join(folder, "data.bin")
    with open(path, "wb") as file, tqdm(total=1000, file=output) as progress:
        wrapped = CallbackIOWrapper(progress.update, file, "write")
        wrapped.write(b"x" * 1000)
        written = progress.n

    async def work() -> list:
        async def one(n: int) -> int:
            await asyncio.sleep(0)
            return n

        return await async_tqdm.gather(*[one(n) for n in range(4)], file=output)

    text = output.getvalue()
    assert total == 4950 and "100%" in text and "sum" in text
    return {
        "total": total,
        "nested": nested,
        "squares": squares,
        "applied": applied,
        "written": written,
        "gathered": asyncio.run(work()),
        "meter": tqdm.format_meter(5, 10, 2.0, ncols=40, ascii=True),
        "quiet": sum(tqdm([1, 2], disable=True)),
    }
