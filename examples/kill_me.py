"""A slow job to kill: end it at any moment, even with kill -9, start it again, and nothing is lost or doubled.

    python examples/kill_me.py       # kill it; run it again until it says "done"

It works under out/kill_me in the current folder. Remove that folder to begin from the start.
"""

import os
import time
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import tidegate as tg

FOLDER = Path("out/kill_me")
ROWS = 40_000
INPUT = "k long, v long"


class Number(StatefulProcessor):
    """Numbers the rows of each key. One lost or doubled row would show in every number after it."""

    def __init__(self, row_cost_s):
        self.row_cost_s = row_cost_s

    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = self.seen.get()[0] if self.seen.exists() else 0
        for _ in rows:
            time.sleep(self.row_cost_s)
            n += 1
            yield Row(k=key[0], n=n)
        self.seen.update((n,))

    def close(self):
        pass


def numbered(rows, *, row_cost_s):
    return rows.groupBy("k").transformWithState(Number(row_cost_s), "k long, n long", "Append", "None")


if __name__ == "__main__":
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[3]").config(map=quiet).getOrCreate()
    if not (FOLDER / "in" / "_SUCCESS").exists():
        spark.range(0, ROWS, 1, 4).selectExpr("id % 7 AS k", "id AS v").write.mode("overwrite").parquet(
            str(FOLDER / "in")
        )
    rows = spark.readStream.schema(INPUT).parquet(str(FOLDER / "in"))
    query = (
        tg.writeStream(numbered(rows, row_cost_s=0.001))
        .format("parquet")
        .option("checkpointLocation", str(FOLDER / "checkpoints"))
        .option("checkpoint.interval", "1s")
        .trigger(availableNow=True)
        .start(str(FOLDER / "out"))
    )
    print(f"To end it the hard way: kill -9 {os.getpid()}", flush=True)
    newest = 0
    while not query.awaitTermination(0.2):
        completed = [c for c in query.checkpoints if c.status == "completed"]
        if completed and completed[0].id > newest:
            newest = completed[0].id
            c = completed[0]
            print(
                f"checkpoint {c.id}: {c.kind}, {c.duration_ms:.0f} ms, {c.inflight_bytes} bytes in flight", flush=True
            )

    committed = sorted(tuple(row) for row in spark.read.parquet(str(FOLDER / "out")).collect())
    expected = sorted((k, n + 1) for k in range(7) for n in range(len(range(k, ROWS, 7))))
    print(f"done: {len(committed)} rows committed, {'as' if committed == expected else 'NOT as'} expected")
    spark.stop()
