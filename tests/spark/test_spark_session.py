"""What users of Spark see: tables, streams and sinks, run by Spark itself."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.helpers import MANIFEST
from tests.s3.servers import Server
from tests.spark import faulty
from tests.spark.queues import Queue, expected, wait_until

pytestmark = pytest.mark.slow

BUFFER = "opendata_buffer"
OVER_SECONDS = 150


def numbers(spark: SparkSession, count: int, partitions: int = 1) -> DataFrame:
    """Rows 0 to count - 1 as text, in order over the partitions; metadata is the tens."""
    return spark.range(0, count, 1, partitions).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS payload",
        "CAST(CAST(id DIV 10 AS STRING) AS BINARY) AS metadata",
    )


def read(spark: SparkSession, queue: Queue, **options: str) -> DataFrame:
    return spark.read.format(BUFFER).options(**options).load(queue.url)


def run_until_caught_up(
    spark: SparkSession, queue: Queue, folder: Path, source: str = BUFFER, **options: str
) -> StreamingQuery:
    """Read everything there is into Parquet files, from where the folder's checkpoint says."""
    query = (
        spark.readStream.format(source)
        .options(**options)
        .load(queue.url)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(OVER_SECONDS)
    return query


def payloads(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder / "rows")).orderBy("sequence", "record_index").collect()
    return [bytes(row.payload) for row in rows]


def ranges(query: StreamingQuery) -> list[tuple[int, int]]:
    """The sequences that each micro-batch took."""
    ends = [json.loads(progress.sources[0].endOffset) for progress in query.recentProgress]
    return [(end["first"], end["next"]) for end in ends]


def test_what_spark_writes_is_read_by_spark_and_by_a_plain_consumer(
    spark: SparkSession, any_queue: Queue
) -> None:
    """Found by its name alone; partitions in order, metadata in ranges, one manifest write for all."""
    queue = any_queue
    numbers(spark, 100, partitions=3).write.format(BUFFER).mode("append").option("compression", "zstd").save(
        queue.url
    )
    rows = read(spark, queue).orderBy("sequence", "record_index").collect()
    assert [bytes(row.payload) for row in rows] == [b"%d" % n for n in range(100)] == queue.read_plainly()
    assert [bytes(row.metadata) for row in rows] == [b"%d" % (n // 10) for n in range(100)]
    assert {row.sequence for row in rows} == {0, 1, 2}
    entries = list(queue.view())
    assert [row.location for row in rows] == [entries[row.sequence].location for row in rows]
    assert all(abs(row.ingestion_time.timestamp() - time.time()) < 3600 for row in rows)


def test_a_schema_of_its_own_reads_these_columns_only(spark: SparkSession, queue: Queue) -> None:
    """In its order; and an empty queue is an empty table."""
    assert read(spark, queue).count() == 0
    queue.fill(2)
    table = spark.read.format(BUFFER).schema("payload BINARY, sequence BIGINT").load(queue.url)
    assert [(bytes(p), s) for p, s in table.collect()] == [
        (b"%d/%d" % (s, n), s) for s in range(2) for n in range(3)
    ]
    assert read(spark, queue, metadataColumns="false").columns == ["sequence", "record_index", "payload"]


@pytest.mark.parametrize(
    ("options", "columns", "mode", "message"),
    [
        (
            {"maxBatchPerTrigger": "1"},
            "CAST('a' AS BINARY) AS payload",
            "append",
            "'maxbatchpertrigger' is unknown",
        ),
        ({"ackMode": "none"}, "CAST('a' AS BINARY) AS payload", "append", "means nothing to a batch write"),
        ({}, "CAST('a' AS BINARY) AS payload, 1 AS x", "append", "cannot take the columns 'x'"),
        ({}, "'a' AS payload", "append", "cast it"),
        ({}, "CAST('a' AS BINARY) AS payload", "overwrite", "use mode('append')"),
        ({}, "CAST('a' AS BINARY) AS payload", "errorifexists", 'Please use either the "Append"'),
    ],
)
def test_a_write_that_cannot_work_fails_before_any_task(
    spark: SparkSession, queue: Queue, *, options: dict[str, str], columns: str, mode: str, message: str
) -> None:
    """With a message that names the reason."""
    with pytest.raises(PySparkException) as caught:
        spark.range(1).selectExpr(*columns.split(", ")).write.format(BUFFER).options(**options).mode(
            mode
        ).save(queue.url)
    assert message in str(caught.value)
    assert not queue.objects()


def test_an_unknown_option_of_a_read_fails_at_once(spark: SparkSession, queue: Queue) -> None:
    """When the table is named, not when it is read."""
    with pytest.raises(PySparkException, match="'startsequenz' is unknown"):
        read(spark, queue, startSequenz="1")


def test_a_job_that_fails_leaves_the_queue_as_it_was(spark: SparkSession, queue: Queue) -> None:
    """One partition has a null; the others' uploads stay unnamed."""
    rows = spark.range(0, 4, 1, 4).selectExpr("CASE WHEN id < 3 THEN CAST('a' AS BINARY) END AS payload")
    with pytest.raises(PySparkException, match="null in the column 'payload'"):
        rows.write.format(BUFFER).mode("append").save(queue.url)
    assert not queue.view()
    numbers(spark, 0).write.format(BUFFER).mode("append").save(queue.url)
    assert "ingest/manifest" not in queue.objects()


def test_a_job_with_a_key_is_written_once(spark: SparkSession, queue: Queue) -> None:
    """A scheduler may run it again."""
    for _ in range(2):
        writer = numbers(spark, 10).write.format(BUFFER).option("idempotencyKey", "2026-11-27")
        writer.mode("append").save(queue.url)
    assert queue.read_plainly() == [b"%d" % n for n in range(10)]


def test_available_now_takes_what_is_there_in_limited_micro_batches(
    spark: SparkSession, any_queue: Queue, tmp_path: Path
) -> None:
    """Acks all of it, ends, and goes on in the next run where it ended."""
    queue = any_queue
    queue.fill(5)
    query = run_until_caught_up(spark, queue, tmp_path, maxBatchesPerTrigger="2")
    assert ranges(query) == [(0, 2), (2, 4), (4, 5)]
    assert payloads(spark, tmp_path) == expected(range(5))
    assert (queue.view().first_sequence, queue.view().epoch) == (5, 1)
    queue.fill(2)
    run_until_caught_up(spark, queue, tmp_path)
    assert payloads(spark, tmp_path) == expected(range(7))
    assert (queue.view().first_sequence, queue.view().epoch) == (7, 2)


def test_a_query_that_acks_on_commit_leaves_its_last_micro_batch(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """Spark says that one is done only when it plans another; a later run acks it."""
    queue.fill(3)
    run_until_caught_up(spark, queue, tmp_path, ackMode="commit", maxBatchesPerTrigger="2")
    assert queue.view().first_sequence == 2
    queue.fill(1)
    run_until_caught_up(spark, queue, tmp_path, ackMode="commit")
    assert queue.view().first_sequence == 3
    assert payloads(spark, tmp_path) == expected(range(4))


def test_a_checkpoint_whose_entries_are_gone_fails_and_says_which(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """Somebody else acked them while the query was down; on request it goes on behind them."""
    queue.fill(2)
    run_until_caught_up(spark, queue, tmp_path)
    queue.fill(3)
    queue.ack(3)
    with pytest.raises(PySparkException, match="sequences 2 to 3 should be read and have left the queue"):
        run_until_caught_up(spark, queue, tmp_path)
    run_until_caught_up(spark, queue, tmp_path, failOnDataLoss="false")
    assert payloads(spark, tmp_path) == expected(range(2)) + expected(range(4, 5))


def test_a_checkpoint_of_a_queue_that_was_created_anew_fails_and_says_so(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """What is in the new one is neither read nor acked."""
    queue.fill(2)
    run_until_caught_up(spark, queue, tmp_path)
    queue.delete(MANIFEST)
    queue.fill(1)
    with pytest.raises(PySparkException, match="this queue was created anew"):
        run_until_caught_up(spark, queue, tmp_path)
    assert len(queue.view()) == 1


def test_a_second_query_fences_the_first_which_fails_and_says_so(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """The queue has one consumer at a time."""
    queue.fill(1)
    first = (
        spark.readStream.format(BUFFER)
        .option("minPollInterval", "0.1")
        .load(queue.url)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "first"))
        .start()
    )
    try:
        wait_until(lambda: queue.view().epoch == 1 and not queue.view())
        queue.fill(1)
        run_until_caught_up(spark, queue, tmp_path)
        with pytest.raises(PySparkException, match="another query or consumer has taken over the queue"):
            first.awaitTermination(OVER_SECONDS)
    finally:
        first.stop()


def test_an_idle_query_asks_the_store_once_in_an_interval(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """Though Spark asks the source about a hundred times a second."""
    faulty.forget()
    query = (
        spark.readStream.format("faulty_buffer")
        .option("minPollInterval", "0.25")
        .load(queue.url)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: len([step for _, step in faulty.steps() if step == "after get manifest"]) >= 8)
    finally:
        query.stop()
    requests = [
        at for at, step in faulty.steps() if step.startswith("before") and step.split()[1] in {"get", "put"}
    ]
    took = requests[-1] - requests[0]
    # Taking the queue costs a read and a write, and the collection at the start two reads.
    assert len(requests) <= took / 0.25 + 5


def test_secrets_are_in_no_plan_and_no_checkpoint(
    spark: SparkSession, s3_queue: Queue, s3_server: Server, tmp_path: Path
) -> None:
    """Each process takes them from its own environment."""
    s3_queue.fill(1, records=1)
    table = read(spark, s3_queue)
    assert table.count() == 1
    run_until_caught_up(spark, s3_queue, tmp_path)
    kept = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) > 5
    for text in (*kept, table._jdf.queryExecution().toString()):
        assert s3_server.secret_access_key not in text and s3_server.access_key_id not in text
