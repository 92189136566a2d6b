"""Queries that die at every step of their life, and are started again: nothing lost, nothing twice, no ack too early."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark import driver, faulty
from tests.spark.queues import Queue, expected, wait_until

pytestmark = pytest.mark.slow

OVER_SECONDS = 150

PLANNING: list[tuple[faulty.How, str]] = [
    ("kill", "initialOffset"),
    ("kill", "after put manifest"),
    ("kill", "after prepareForTriggerAvailableNow"),
    ("kill", "before latestOffset"),
    ("kill", "after latestOffset"),
    ("kill", "before partitions"),
    ("kill", "after partitions"),
]
READING: list[tuple[faulty.How, str]] = [
    ("kill", "during read"),
    ("kill", "after read"),
    ("kill", "before put manifest again"),
    ("kill", "after put manifest again"),
    ("kill", "before commit"),
    ("kill", "after commit"),
]
# Spark's own word comes late, or, after an error, never.
ACKING_ON_COMMIT: list[tuple[faulty.How, str]] = [
    ("raise", "during read"),
    ("kill", "before commit"),
    ("raise", "before put manifest again"),
    ("kill", "after put manifest again"),
]
UPLOADING: list[tuple[faulty.How, str]] = [
    ("kill", "after put batch"),
    ("kill", "after write"),
    ("kill", "before sink commit"),
]
COMMITTING: list[tuple[faulty.How, str]] = [
    ("kill", "before put manifest"),
    ("kill", "after put manifest"),
    ("kill", "after sink commit"),
    ("raise", "before put manifest"),
    ("raise", "after put manifest"),
]


def committed(checkpoint: Path) -> int:
    """Return how far Spark's commit log has come: the sequence after the last one of a finished micro-batch."""
    finished = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not finished:
        return 0
    last_line = (checkpoint / "offsets" / str(max(finished))).read_text().splitlines()[-1]
    end: int = json.loads(last_line)["next"]
    return end


def dies(
    run: DataFrame, folder: Path, step: str, how: faulty.How = "kill", sink: str = "parquet", **options: str
) -> None:
    """Run a query until it dies at a step."""
    faulty.order(step, how)
    query = start(run, folder, sink, **options)
    with pytest.raises(PySparkException):
        query.awaitTermination(OVER_SECONDS)
    assert not faulty.order_is_open(), f"no process came to {step!r}"


def start(run: DataFrame, folder: Path, sink: str = "parquet", **options: str) -> StreamingQuery:
    writer = (
        run.writeStream.format(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .options(**options)
    )
    writer = writer.trigger(availableNow=True)
    return writer.start(str(folder / "rows")) if sink == "parquet" else writer.start()


@pytest.mark.parametrize(
    ("store", "steps", "ack_mode"),
    [
        ("queue", PLANNING, "eager"),
        ("queue", READING, "eager"),
        ("queue", ACKING_ON_COMMIT, "commit"),
        ("s3_queue", PLANNING, "eager"),
        ("s3_queue", READING, "eager"),
    ],
    ids=["planning", "reading", "commit", "planning-s3", "reading-s3"],
)
def test_a_reading_query_may_die_anywhere(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    *,
    store: str,
    steps: list[tuple[faulty.How, str]],
    ack_mode: str,
) -> None:
    """One query ends at each step in turn, with more in the queue each time; its acks never pass its commits."""
    queue: Queue = request.getfixturevalue(store)
    faulty.forget()
    stream = spark.readStream.format("faulty_buffer").option("minPollInterval", "0.01")
    total = 0
    for how, step in steps:
        queue.fill(2)
        total += 2
        run = stream.option("maxBatchesPerTrigger", "1").option("ackMode", ack_mode).load(queue.url)
        dies(run, tmp_path, step, how)
        assert queue.view().first_sequence <= committed(tmp_path / "checkpoint")
    rest = stream.option("maxBatchesPerTrigger", "1000").option("ackMode", "eager").load(queue.url)
    assert start(rest, tmp_path).awaitTermination(OVER_SECONDS)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("sequence", "record_index").collect()
    assert [bytes(row.payload) for row in rows] == expected(range(total))
    assert queue.view().first_sequence == queue.view().next_sequence == total


@pytest.mark.parametrize(
    ("store", "steps"),
    [
        ("queue", UPLOADING),
        ("queue", COMMITTING),
        ("s3_queue", UPLOADING),
        ("s3_queue", COMMITTING),
    ],
    ids=["uploading", "committing", "uploading-s3", "committing-s3"],
)
def test_a_writing_query_may_die_anywhere(
    spark: SparkSession,
    store: str,
    steps: list[tuple[faulty.How, str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Killed or failing at each step in turn: every row is in the queue once, and in order."""
    queue: Queue = request.getfixturevalue(store)
    faulty.forget()
    source = Queue(f"file://{tmp_path}/source?fsync=false")
    run = (
        spark.readStream.format("opendata_buffer")
        .option("minPollInterval", "0.01")
        .load(source.url)
        .select("payload")
    )
    for how, step in steps:
        source.fill(1)
        dies(run, tmp_path, step, how, "faulty_buffer", path=queue.url)
    assert start(run, tmp_path, "faulty_buffer", path=queue.url).awaitTermination(OVER_SECONDS)
    assert queue.read_plainly() == expected(range(len(steps)))
    micro_batches = {entry.location[-22:-9] for entry in queue.view()}
    seen = [step for _, step in faulty.steps()]
    assert seen.count("after put manifest") == len(micro_batches)
    # Nobody deletes anything, whoever may think that it failed.
    assert "before delete" not in seen
    assert ("abort" in seen) >= (("raise", "after put manifest") in steps)


def test_a_query_may_be_stopped_anywhere(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """Its processes hang at a step, and are killed there by Spark; the next run goes on."""
    queue.fill(4)
    faulty.forget()
    stream = spark.readStream.format("faulty_buffer").option("maxBatchesPerTrigger", "1").load(queue.url)
    for step in ("before latestOffset", "during read", "before put manifest again"):
        faulty.order(step, "hang")
        query = start(stream, tmp_path)
        wait_until(lambda: not faulty.order_is_open())
        query.stop()
        assert queue.view().first_sequence <= committed(tmp_path / "checkpoint") < 4
    assert start(stream, tmp_path).awaitTermination(OVER_SECONDS)
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("sequence", "record_index").collect()
    assert [bytes(row.payload) for row in rows] == expected(range(4))
    assert queue.view().first_sequence == 4


def test_a_driver_may_die(
    spark: SparkSession, spark_environment: dict[str, str], queue: Queue, tmp_path: Path
) -> None:
    """Another Spark moves records from queue to queue, and loses its JVM when they are in the second one."""
    queue.fill(3)
    sink = Queue(f"file://{tmp_path}/sink?fsync=false")
    faulty.forget()
    faulty.order("after put manifest", "kill-java")
    checkpoint = str(tmp_path / "checkpoint")
    ended = subprocess.run(
        [sys.executable, "-m", driver.__name__, queue.url, sink.url, checkpoint, str(tmp_path)],
        env=os.environ | spark_environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=OVER_SECONDS,
    )
    assert ended.returncode != 0 and not faulty.order_is_open(), ended.stderr
    assert committed(tmp_path / "checkpoint") == 0 and len(sink.view()) == 1
    assert queue.view().first_sequence == 0
    driver.move(spark, queue.url, sink.url, checkpoint)
    assert sink.read_plainly() == expected(range(3))
    assert queue.view().first_sequence == 3


def test_a_database_gets_every_row_once_though_the_function_fails(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """With the micro-batch's number in the same transaction, a repeated micro-batch changes nothing."""
    queue.fill(4)
    failures = ["before", "after"]

    def store(rows: DataFrame, number: int) -> None:
        found = [(row.sequence, bytes(row.payload)) for row in rows.collect()]
        if failures and failures[0] == "before":
            raise RuntimeError(failures.pop(0))
        with closing(sqlite3.connect(tmp_path / "database")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS done (number INTEGER PRIMARY KEY)")
            database.execute("CREATE TABLE IF NOT EXISTS rows (sequence INTEGER, payload BLOB)")
            if database.execute("INSERT OR IGNORE INTO done VALUES (?)", (number,)).rowcount:
                database.executemany("INSERT INTO rows VALUES (?, ?)", found)
        if failures:
            raise RuntimeError(failures.pop(0))

    def run() -> None:
        stream = (
            spark.readStream.format("opendata_buffer").option("maxBatchesPerTrigger", "2").load(queue.url)
        )
        query = (
            stream.writeStream.foreachBatch(store)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(OVER_SECONDS)

    for _ in range(2):
        with pytest.raises(PySparkException):
            run()
        assert queue.view().first_sequence == 0
    run()
    with closing(sqlite3.connect(tmp_path / "database")) as database:
        found = [
            bytes(payload)
            for (payload,) in database.execute("SELECT payload FROM rows ORDER BY sequence, payload")
        ]
    assert found == expected(range(4))
    assert queue.view().first_sequence == 4
