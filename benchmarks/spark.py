"""How close do reading and writing the queue come to what Spark itself needs to move the rows?

Closed loop, Spark on two cores of this machine, a queue in a folder, objects of 16 MiB without compression in four
partitions. Each query and its ceiling run in turn, so that whatever else the machine does hits both, and the fastest
run of each counts. What the same query takes with a single row in each partition, to plan and to start its tasks, is
subtracted from both.

* read: `SELECT sum(length(payload))` over the queue. Its ceiling is a data source that yields one Arrow record batch,
  made beforehand, again and again.
* write: rows of that same source into the queue. Its ceiling is a sink that takes the same Arrow record batches and
  drops them.

`columns` is `record` for sequence, record_index and payload, `all` for these and what comes from the entries. `mixed`
records have half to one and a half times their size, the others all have the same. `ratio` is the ceiling's time by
the queue's: 1.0 would be perfect. `processor_ratio` is the same of the processor time of all processes of Spark, which
depends less on what else the machine does. One JSON object a line, on stdout. On Linux, with the package and its extra
`spark` installed, or its folder in PYTHONPATH:

    python benchmarks/spark.py [--megabytes 1024] [--runs 3] [--sizes 100 1024 10240]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from buffer import Producer, ProducerConfig, open_store
from buffer.spark.columns import MAX_BYTES, MAX_ROWS
from buffer.spark.schema import read_schema

MIB = 1024 * 1024
PARTITIONS = 4
OBJECT_BYTES = 16 * MIB


@dataclass(frozen=True)
class Data:
    """What goes through: records of one size, or of sizes around it."""

    size: int
    mixed: bool
    count: int

    def sizes(self) -> np.ndarray:
        """Return the sizes of the records of one object."""
        count = OBJECT_BYTES // self.size
        if not self.mixed:
            return np.full(count, self.size)
        return np.random.default_rng(1).integers(self.size // 2, self.size * 3 // 2, count)


class Ready(DataSource):
    """Rows that are there before anybody asks for them."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "ready"

    def schema(self) -> StructType:
        """Return the columns that are asked for."""
        return read_schema(metadata_columns=self.options["columns"] == "all")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the source."""
        return ReadyReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the sink."""
        return Drop()


class ReadyReader(DataSourceReader):
    """Yields one record batch again and again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.data = Data(int(options["size"]), options["mixed"] == "True", int(options["count"]))
        self.planned = schema

    def partitions(self) -> list[InputPartition]:
        """Return as many as the queue has."""
        return [InputPartition(n) for n in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's share of the rows."""
        sizes = self.data.sizes()
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        rows = min(MAX_ROWS, int(np.searchsorted(offsets, MAX_BYTES)), len(sizes))
        content = pa.py_buffer(np.zeros(offsets[rows], dtype=np.uint8))
        payload = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), content])
        values = {
            "sequence": pa.repeat(pa.scalar(7, pa.int64()), rows),
            "record_index": pa.array(np.arange(rows, dtype=np.int32)),
            "payload": payload,
            "ingestion_time": pa.repeat(pa.scalar(7, pa.timestamp("us", tz="UTC")), rows),
            "metadata": pa.repeat(pa.scalar(b"", pa.binary()), rows),
            "location": pa.repeat(pa.scalar("ingest/01J00000000000000000000000.batch", pa.string()), rows),
        }
        batch = pa.RecordBatch.from_arrays(
            [values[name] for name in self.planned.fieldNames()],
            schema=to_arrow_schema(self.planned, timezone="UTC"),
        )
        left = self.data.count // PARTITIONS
        while left > 0:
            yield batch.slice(0, min(left, rows))
            left -= rows


class Drop(DataSourceArrowWriter):
    """Takes rows and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Look at each record batch, so that it has really come."""
        for batch in iterator:
            assert batch.num_columns
        return WriterCommitMessage()


def fill(url: str, data: Data) -> None:
    """Put the records into the queue."""

    async def produce() -> None:
        rng = random.Random(1)
        records = [rng.randbytes(1) * int(size) for size in data.sizes()]
        config = ProducerConfig(flush_size_bytes=2 * OBJECT_BYTES, flush_interval=60.0)
        async with open_store(url) as store, Producer(store, config) as producer:
            left = data.count
            while left > 0:
                await producer.produce(records[:left])
                await producer.flush()
                left -= len(records)

    anyio.run(produce)


@dataclass(frozen=True)
class Cost:
    """What an action took.

    Attributes:
        elapsed: Seconds on the clock.
        processor: Seconds of processor time, of this process and of those that come from it and are still there.
    """

    elapsed: float
    processor: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.elapsed - other.elapsed, self.processor - other.processor)


def least(runs: int, *actions: Callable[[], object]) -> list[Cost]:
    """Return what each action took at least, all of them called in turn, once before it counts."""
    for action in actions:
        action()
    best = [Cost(float("inf"), float("inf"))] * len(actions)
    for _ in range(runs):
        for number, action in enumerate(actions):
            began, before = time.perf_counter(), processor_ticks()
            action()
            elapsed, after = time.perf_counter() - began, processor_ticks()
            spent = sum(ticks - before.get(process, 0) for process, ticks in after.items())
            processor = spent / os.sysconf("SC_CLK_TCK")
            best[number] = Cost(min(best[number].elapsed, elapsed), min(best[number].processor, processor))
    return best


def processor_ticks() -> dict[int, int]:
    """Return the processor time of this process and of all that come from it, by their numbers."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        parents[int(path.parent.name)] = int(fields[1])
        ticks[int(path.parent.name)] = int(fields[11]) + int(fields[12])

    def is_ours(process: int) -> bool:
        while process not in {0, os.getpid()}:
            process = parents.get(process, 0)
        return process != 0

    return {process: spent for process, spent in ticks.items() if is_ours(process)}


def report(action: str, data: Data, columns: str, queue: Cost, ceiling: Cost) -> None:
    """Print a line."""

    def rates(cost: Cost) -> dict[str, float]:
        return {
            "rows_per_s": round(data.count / cost.elapsed),
            "mb_per_s": round(data.count * data.size / cost.elapsed / 1e6, 1),
            "processor_s_per_gb": round(cost.processor / (data.count * data.size / 1e9), 2),
        }

    line = {
        "action": action,
        "record_bytes": data.size,
        "mixed": data.mixed,
        "columns": columns,
        "queue": rates(queue),
        "ceiling": rates(ceiling),
        "ratio": round(ceiling.elapsed / queue.elapsed, 2),
        "processor_ratio": round(ceiling.processor / queue.processor, 2),
    }
    print(json.dumps(line), flush=True)


def sum_up(rows: DataFrame) -> None:
    """Let Spark go through all rows."""
    rows.selectExpr("sum(length(payload))").collect()


class Bench:
    """Measures one kind of data.

    Args:
        spark: The session.
        folder: Where queues are.
        data: The records.
        runs: How often each query runs.
    """

    def __init__(self, spark: SparkSession, folder: str, data: Data, runs: int) -> None:
        self._spark = spark
        self._folder = folder
        self._data = data
        self._runs = runs

    def measure(self) -> None:
        """Print a line for each action."""
        fill(self._url("source"), self._data)
        for _ in range(PARTITIONS):
            fill(self._url("start"), Data(self._data.size, mixed=False, count=1))
        for columns in ("record", "all"):
            self._compare("read", columns, partial(self._read, columns), partial(self._read_ready, columns))
        self._compare("write", "payload", self._write, self._drop)

    def _compare(
        self, action: str, columns: str, queue: Callable[[int], None], ceiling: Callable[[int], None]
    ) -> None:
        count = self._data.count
        full, full_ceiling, start, start_ceiling = least(
            self._runs,
            lambda: queue(count),
            lambda: ceiling(count),
            lambda: queue(PARTITIONS),
            lambda: ceiling(PARTITIONS),
        )
        report(action, self._data, columns, full - start, full_ceiling - start_ceiling)

    def _read(self, columns: str, count: int) -> None:
        name = "start" if count == PARTITIONS else "source"
        objects = PARTITIONS if count == PARTITIONS else -(-count // len(self._data.sizes()))
        reader = self._spark.read.format("opendata_buffer")
        reader = reader.option("batchesPerPartition", -(-objects // PARTITIONS))
        # The objects are in memory already: more of them at a time would only take fresh memory.
        reader = reader.option("metadataColumns", str(columns == "all").lower()).option("fetchWorkers", 1)
        sum_up(reader.load(self._url(name)))

    def _read_ready(self, columns: str, count: int) -> None:
        sum_up(self._ready(count, columns))

    def _ready(self, count: int, columns: str) -> DataFrame:
        reader = self._spark.read.format("ready").option("columns", columns).option("count", count)
        return reader.option("size", self._data.size).option("mixed", str(self._data.mixed)).load()

    def _write(self, count: int) -> None:
        shutil.rmtree(f"{self._folder}/sink", ignore_errors=True)
        writer = self._ready(count, "record").select("payload").write.format("opendata_buffer")
        writer.option("flushSizeBytes", OBJECT_BYTES).mode("append").save(self._url("sink"))

    def _drop(self, count: int) -> None:
        writer = self._ready(count, "record").select("payload").write.format("ready")
        writer.option("columns", "record").mode("append").save()

    def _url(self, name: str) -> str:
        return f"file://{self._folder}/{name}?fsync=false"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="bytes of records, in MiB")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024, 10_240], help="sizes of records")
    parser.add_argument("--runs", type=int, default=3, help="times that each query runs; the fastest counts")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.dataSource.register(Ready)
    try:
        for size in arguments.sizes:
            for mixed in (False, True):
                data = Data(size, mixed, arguments.megabytes * MIB // size)
                with tempfile.TemporaryDirectory() as folder:
                    Bench(spark, folder, data, arguments.runs).measure()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
