"""The readers, called as Spark calls them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles

from buffer import (
    FencedError,
    FormatError,
    InvalidInputError,
    ManifestView,
    MemoryStore,
    NotFoundError,
    StorageError,
    encode_batch,
)
from buffer.spark import OpendataBufferDataSource, Options
from buffer.spark.batch_reader import QueueReader
from buffer.spark.fetching import read_partition
from buffer.spark.offsets import Offset
from buffer.spark.partitions import BatchPartition
from buffer.spark.schema import read_schema
from buffer.spark.stream_reader import QueueStreamReader
from buffer.testing import FaultStore, unavailable
from tests.helpers import MANIFEST
from tests.spark.queues import Queue, expected, lend

ALL = ReadAllAvailable()


class Query:
    """Drives one reader through micro-batches, as Spark's engine does."""

    def __init__(self, queue: Queue, **options: str) -> None:
        source = OpendataBufferDataSource({"path": queue.url, "minPollInterval": "0.01", **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, QueueStreamReader)
        self.reader = reader

    def latest(self, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        """Ask for the end of the next micro-batch."""
        end = self.reader.latestOffset(through_json(start), limit or self.reader.getDefaultReadLimit())
        return through_json(end)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        """Plan a micro-batch and read all of it."""
        return [
            payload
            for partition in self.reader.partitions(start, end)
            for part in self.reader.read(partition)
            for payload in part.column("payload").to_pylist()
        ]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def offset(first: int, end: int) -> dict[str, Any]:
    return Offset(first, end).to_json()


@pytest.fixture
def query(queue: Queue) -> Iterator[Query]:
    """A query of an empty queue."""
    found = Query(queue)
    yield found
    found.reader.stop()


def test_a_query_reads_from_the_earliest_entry(queue: Queue, query: Query) -> None:
    """The first offset is always the same; the second has the range that was read."""
    queue.fill(5)
    queue.ack(1)
    start = query.reader.initialOffset()
    end = query.latest(start)
    assert start == query.reader.initialOffset() == offset(0, 0)
    assert end == offset(2, 5)
    assert query.read(start, end) == expected(range(2, 5))


def test_nothing_new_is_the_same_offset(queue: Queue, query: Query) -> None:
    """To the letter, as Spark compares text; so it plans nothing."""
    queue.fill(1)
    start = query.latest(query.reader.initialOffset())
    assert json.dumps(query.latest(start)) == json.dumps(start)
    assert query.reader.partitions(start, start) == []


def test_micro_batches_follow_one_another(queue: Queue, query: Query) -> None:
    """Each begins where the one before ended."""
    queue.fill(2)
    first = query.latest(query.reader.initialOffset())
    queue.fill(3)
    second = query.latest(first)
    assert (first, second) == (offset(0, 2), offset(2, 5))
    assert query.read(first, second) == expected(range(2, 5))


def test_an_eager_query_acks_what_spark_has_committed(queue: Queue, query: Query) -> None:
    """Spark asks from the end of the last micro-batch in its commit log. The one that it plans stays."""
    queue.fill(2)
    first = query.latest(query.reader.initialOffset())
    query.read(query.reader.initialOffset(), first)
    assert queue.view().first_sequence == 0
    queue.fill(1)
    query.latest(first)
    assert queue.view().first_sequence == 2


def test_an_eager_query_fails_if_spark_is_ahead_of_its_commit_log(queue: Queue) -> None:
    """As with asynchronous progress tracking: nothing more is acked, and the error says which modes there are."""
    queue.fill(4)
    query = Query(queue, maxBatchesPerTrigger="1")
    first = query.latest(query.reader.initialOffset())
    second = query.latest(first)
    with pytest.raises(InvalidInputError, match="use ackMode=commit or none"):
        query.latest(second)
    assert queue.view().first_sequence == 1
    query.reader.commit(first)
    assert query.latest(second) == offset(2, 3)
    query.reader.stop()


@pytest.mark.parametrize("mode", ["commit", "none"])
def test_other_queries_may_be_asked_ahead(queue: Queue, mode: str) -> None:
    """They do not ack before Spark says so."""
    queue.fill(4)
    query = Query(queue, maxBatchesPerTrigger="1", ackMode=mode)
    at = query.reader.initialOffset()
    for _ in range(4):
        at = query.latest(at)
    assert at == offset(3, 4) and queue.view().first_sequence == 0
    query.reader.stop()


def test_asking_again_acks_nothing_more(queue: Queue, query: Query) -> None:
    """Spark may ask three times before it reads."""
    queue.fill(2)
    for _ in range(3):
        query.latest(query.reader.initialOffset())
    assert len(queue.view()) == 2


def test_a_committing_query_acks_when_spark_says_so(queue: Queue) -> None:
    """Only then; twice, late and out of order do no harm."""
    query = Query(queue, ackMode="commit")
    queue.fill(6)
    query.latest(offset(1, 2))
    assert queue.view().first_sequence == 0
    for end, first in ((2, 2), (2, 2), (4, 4), (3, 4)):
        query.reader.commit(offset(0, end))
        assert queue.view().first_sequence == first
    query.reader.stop()


def test_a_watching_query_leaves_the_queue_alone(queue: Queue) -> None:
    """Neither epoch nor entries change."""
    queue.fill(2)
    before = queue.view()
    query = Query(queue, ackMode="none")
    end = query.latest(query.reader.initialOffset())
    assert query.read(query.reader.initialOffset(), end) == expected(range(2))
    query.latest(end)
    query.reader.commit(end)
    query.reader.stop()
    assert queue.view() == before


def test_one_query_takes_one_epoch(queue: Queue, query: Query) -> None:
    """At its first call; tasks do not come near the manifest."""
    queue.fill(2)
    assert queue.view().epoch == 0
    query.reader.initialOffset()
    assert query.reader.reportLatestOffset() is None
    assert queue.view().epoch == 0
    end = query.latest(query.reader.initialOffset())
    query.read(query.reader.initialOffset(), end)
    query.reader.commit(end)
    assert queue.view().epoch == 1


def test_a_second_query_fences_the_first(queue: Queue, query: Query) -> None:
    """The first one's next look at the queue raises, and so does its next ack."""
    queue.fill(2)
    end = query.latest(query.reader.initialOffset())
    other = Query(queue)
    other.latest(other.reader.initialOffset())
    with pytest.raises(FencedError, match="another query or consumer has taken over"):
        query.latest(end)
    with pytest.raises(FencedError, match="another query or consumer has taken over"):
        query.reader.commit(end)
    assert len(queue.view()) == 2
    other.reader.stop()


def test_a_restart_reads_exactly_the_logged_range(queue: Queue, query: Query) -> None:
    """Also if more has come meanwhile, and without being asked for the latest offset first."""
    queue.fill(3)
    end = query.latest(query.reader.initialOffset())
    query.reader.stop()
    queue.fill(2)
    restarted = Query(queue)
    assert restarted.read(restarted.reader.initialOffset(), end) == expected(range(3))
    assert restarted.read(end, offset(3, 5)) == expected(range(3, 5))
    restarted.reader.stop()


@pytest.mark.parametrize("start", ["0", "2", "4", "6", "8"])
def test_a_changed_start_does_not_change_a_logged_micro_batch(queue: Queue, start: str) -> None:
    """Lowered, raised, even behind its end: it reads what was logged, and this alone is acked."""
    queue.fill(9)
    query = Query(queue, startSequence="4", maxBatchesPerTrigger="3")
    end = query.latest(query.reader.initialOffset())
    query.reader.stop()
    restarted = Query(queue, startSequence=start)
    begin = restarted.reader.initialOffset()
    assert end == offset(4, 7) and begin == offset(int(start), int(start))
    assert restarted.read(begin, end) == expected(range(4, 7))
    assert restarted.latest(end) == offset(7, 9)
    assert queue.view().first_sequence == 7
    restarted.reader.stop()


def test_micro_batches_that_were_not_logged_are_repeated_with_the_one_that_was(
    queue: Queue, query: Query
) -> None:
    """As asynchronous progress tracking leaves some out: Spark then repeats from the last that it knows."""
    queue.fill(6)
    assert query.read(offset(0, 2), offset(4, 6)) == expected(range(2, 6))


def test_a_logged_range_that_is_gone_fails(queue: Queue) -> None:
    """Also the very first one, whose beginning only its end tells."""
    queue.fill(4)
    queue.ack(1)
    query = Query(queue)
    with pytest.raises(NotFoundError, match="sequences 0 to 1 should be read"):
        query.reader.partitions(offset(0, 0), offset(0, 4))
    with pytest.raises(NotFoundError, match="sequences 1 to 1 "):
        query.reader.partitions(offset(0, 1), offset(1, 2))
    with pytest.raises(NotFoundError, match="sequences 1 to 1 "):
        query.latest(offset(0, 1))
    query.reader.stop()


def test_lost_entries_can_be_passed(queue: Queue) -> None:
    """With `failOnDataLoss` false the query goes on behind them."""
    queue.fill(4)
    queue.ack(1)
    query = Query(queue, failOnDataLoss="false")
    assert query.read(offset(0, 0), offset(0, 4)) == expected(range(2, 4))
    assert query.latest(offset(0, 1)) == offset(2, 4)
    query.reader.stop()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_queue_that_was_created_anew_fails(queue: Queue, fail: str) -> None:
    """Whatever `failOnDataLoss` says; and nothing is acked in it."""
    queue.fill(2)
    query = Query(queue, failOnDataLoss=fail)
    for call in (
        lambda: query.latest(offset(2, 3)),
        lambda: query.reader.partitions(offset(2, 2), offset(2, 3)),
        lambda: query.reader.commit(offset(2, 3)),
    ):
        with pytest.raises(InvalidInputError, match="this queue was created anew"):
            call()
    query.reader.stop()
    assert len(queue.view()) == 2


def test_a_queue_that_is_created_anew_under_a_watching_query_fails(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No epoch tells, but the sequences do; the store may only lag behind, so it is asked for a while."""
    monkeypatch.setattr("buffer.spark.bridge.PATIENCE", 0.2)
    queue.fill(3)
    query = Query(queue, ackMode="none")
    end = query.latest(query.reader.initialOffset())
    queue.put(MANIFEST, ManifestView.empty().data)
    with pytest.raises(StorageError, match="an older manifest than before"):
        query.latest(end)
    query.reader.stop()


def test_a_start_of_its_own_begins_there(queue: Queue) -> None:
    """What lies before is acked with the first micro-batch, not before."""
    queue.fill(4)
    query = Query(queue, startSequence="2")
    start = query.reader.initialOffset()
    end = query.latest(start)
    assert (start, end) == (offset(2, 2), offset(2, 4))
    assert query.read(start, end) == expected(range(2, 4))
    assert queue.view().first_sequence == 0
    query.latest(end)
    assert queue.view().first_sequence == 4
    query.reader.stop()


def test_a_start_that_the_queue_has_not_reached_fails(queue: Queue) -> None:
    """It is another queue's."""
    queue.fill(1)
    query = Query(queue, startSequence="9")
    with pytest.raises(InvalidInputError, match="goes on at sequence 9"):
        query.latest(query.reader.initialOffset())
    query.reader.stop()


def test_admission_is_limited_by_batches_and_by_bytes(queue: Queue) -> None:
    """Either, or both; one batch always comes."""
    queue.produce([[b"x" * 989]] * 6)
    for options, limit, end in (
        ({"maxBatchesPerTrigger": "2"}, ReadMaxFiles(2), 2),
        ({"maxBytesPerTrigger": "3000"}, ReadMaxBytes(3000), 3),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), 1),
        ({"maxBatchesPerTrigger": "5", "maxBytesPerTrigger": "4000"}, ReadMaxFiles(5), 4),
        ({}, ALL, 6),
    ):
        query = Query(queue, ackMode="none", **options)
        assert query.reader.getDefaultReadLimit() == limit
        assert query.latest(query.reader.initialOffset()) == offset(0, end)
        # A trigger that takes everything overrules the options.
        assert query.latest(query.reader.initialOffset(), ALL) == offset(0, 6)
        query.reader.stop()


def test_available_now_ends_where_the_queue_ended_when_it_began(queue: Queue) -> None:
    """In as many micro-batches as the limit makes of it; later entries are for the next run."""
    queue.fill(5)
    query = Query(queue, maxBatchesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    queue.fill(5)
    ends, at = [], query.reader.initialOffset()
    while (end := query.latest(at)) != at:
        ends.append(end)
        query.reader.commit(at)
        at = end
    assert ends == [offset(0, 2), offset(2, 4), offset(4, 5)]
    assert queue.view().first_sequence == 5
    query.reader.stop()


def test_progress_is_reported_without_a_request(queue: Queue, query: Query) -> None:
    """From what was seen last."""
    queue.fill(3)
    query.latest(query.reader.initialOffset())
    queue.fill(1)
    assert query.reader.reportLatestOffset() == offset(0, 3)


def test_stopping_may_be_repeated_and_comes_before_anything(query: Query) -> None:
    """Spark stops readers that it has never asked anything."""
    query.reader.stop()
    query.latest(query.reader.initialOffset())
    query.reader.stop()
    query.reader.stop()


def test_a_reader_at_work_can_be_pickled(queue: Queue, query: Query) -> None:
    """The copy for the tasks has no store, no event loop and no hold on the queue."""
    queue.fill(1)
    end = query.latest(query.reader.initialOffset())
    (partition,) = query.reader.partitions(query.reader.initialOffset(), end)
    copy, there = pickle.loads(pickle.dumps((query.reader, partition)))  # noqa: S301 - just pickled
    assert [part.num_rows for part in copy.read(there)] == [3]
    assert copy.reportLatestOffset() is None
    assert queue.view().epoch == 1


def test_a_partition_can_be_read_again_after_its_ack(queue: Queue, query: Query) -> None:
    """An executor may be slow to learn that its attempt is not wanted any more; objects outlive their entries."""
    queue.fill(1)
    end = query.latest(query.reader.initialOffset())
    (partition,) = query.reader.partitions(query.reader.initialOffset(), end)
    query.reader.commit(end)
    assert not queue.view()
    for _ in range(2):
        assert [part.num_rows for part in query.reader.read(partition)] == [3]


def test_entries_are_grouped_into_partitions_in_their_order(queue: Queue) -> None:
    """As many as the option says for each task."""
    queue.fill(7)
    query = Query(queue, batchesPerPartition="3", ackMode="none")
    partitions = query.reader.partitions(offset(0, 0), offset(0, 7))
    assert [
        [entry.sequence for entry in part.descriptors]
        for part in partitions
        if isinstance(part, BatchPartition)
    ] == [[0, 1, 2], [3, 4, 5], [6]]
    query.reader.stop()


def snapshot(queue: Queue, **options: str) -> QueueReader:
    source = OpendataBufferDataSource({"path": queue.url, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, QueueReader)
    return reader


def rows(reader: QueueReader) -> list[tuple[int, int, bytes]]:
    return [
        (row["sequence"], row["record_index"], row["payload"])
        for partition in reader.partitions()
        for part in reader.read(partition)
        for row in part.to_pylist()
    ]


def test_a_batch_read_is_a_snapshot_that_changes_nothing(queue: Queue) -> None:
    """Rows by sequence and index; epoch and entries stay."""
    queue.fill(3, records=2)
    before = queue.view()
    found = rows(snapshot(queue))
    assert found == [(s, n, b"%d/%d" % (s, n)) for s in range(3) for n in range(2)]
    assert queue.view() == before


def test_a_batch_read_takes_a_range(queue: Queue) -> None:
    """From the start, up to the end and without it."""
    queue.fill(5, records=1)
    queue.ack(0)
    assert [row[0] for row in rows(snapshot(queue, startSequence="2", endSequence="4"))] == [2, 3]
    assert [row[0] for row in rows(snapshot(queue, endSequence="2"))] == [1]
    assert rows(snapshot(queue, startSequence="5")) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startSequence": "1"}, NotFoundError),
        ({"startSequence": "6"}, InvalidInputError),
        ({"endSequence": "6"}, InvalidInputError),
    ],
)
def test_a_batch_read_of_what_is_not_there_fails(
    queue: Queue, options: dict[str, str], error: type[Exception]
) -> None:
    """Gone, or not there yet."""
    queue.fill(5)
    queue.ack(1)
    with pytest.raises(error):
        snapshot(queue, **options).partitions()


def test_an_empty_queue_is_an_empty_table(queue: Queue) -> None:
    """Also before any producer has come. Spark then asks for one partition that it makes itself."""
    reader = snapshot(queue)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
    assert not queue.objects()


def test_a_missing_object_fails_or_is_skipped(queue: Queue) -> None:
    """As `failOnDataLoss` says; the error tells how it can come about."""
    queue.fill(3, records=1)
    queue.delete(queue.view().after(0, 1)[0].location)
    with pytest.raises(NotFoundError) as caught:
        rows(snapshot(queue))
    assert caught.value.sequence == 1 and "collector" in caught.value.__notes__[0]
    assert [row[0] for row in rows(snapshot(queue, failOnDataLoss="false"))] == [0, 2]


def test_a_broken_object_fails_with_its_place(queue: Queue) -> None:
    """What is no batch is no data loss that could be skipped."""
    queue.fill(2)
    location = queue.view().after(0, 1)[0].location
    queue.put(location, b"no batch at all")
    with pytest.raises(FormatError) as caught:
        rows(snapshot(queue, failOnDataLoss="false"))
    assert caught.value.sequence == 1 and caught.value.location == location


def fetch(queue: Queue, store: FaultStore, **options: Any) -> Iterator[pa.RecordBatch]:
    partition = BatchPartition(tuple(queue.view()))
    settings = Options(path=queue.url, **options)
    return read_partition(partition, settings, read_schema(metadata_columns=False), lambda _: lend(store))


def test_a_batch_without_records_in_the_place_of_a_broken_one_mends_a_query(queue: Queue) -> None:
    """With its own checkpoint, which repeats the micro-batch: nothing before or behind it is left out."""
    queue.fill(5)
    location = queue.view().after(1, 1)[0].location
    queue.put(location, b"no batch at all")
    query = Query(queue)
    end = query.latest(query.reader.initialOffset())
    with pytest.raises(FormatError):
        query.read(query.reader.initialOffset(), end)
    query.reader.stop()
    queue.put(location, encode_batch([]))
    again = Query(queue)
    assert again.read(again.reader.initialOffset(), end) == expected(range(2)) + expected(range(3, 5))
    again.reader.stop()


def test_a_batch_read_up_to_a_broken_batch_and_a_query_behind_it_leave_nothing_else_out(
    queue: Queue,
) -> None:
    """The micro-batch that failed was not acked, so what is good in it is there for the batch read."""
    queue.fill(6)
    # The one with sequence 3.
    queue.put(queue.view().after(2, 1)[0].location, b"no batch at all")
    query = Query(queue, maxBatchesPerTrigger="2")
    first = query.latest(query.reader.initialOffset())
    second = query.latest(first)
    with pytest.raises(FormatError):
        query.read(first, second)
    query.reader.stop()
    assert second == offset(2, 4) and queue.view().first_sequence == 2
    before = snapshot(queue, startSequence="2", endSequence="3")
    assert [payload for _, _, payload in rows(before)] == expected(range(2, 3))
    behind = Query(queue, startSequence="4")
    end = behind.latest(behind.reader.initialOffset())
    assert behind.read(behind.reader.initialOffset(), end) == expected(range(4, 6))
    behind.latest(end)
    assert not queue.view()
    behind.reader.stop()


def in_memory(queue: Queue) -> FaultStore:
    """Return the batches of a queue in a memory store, without its manifest."""

    async def copy(store: Any) -> MemoryStore:
        inner = MemoryStore()
        for entry in queue_entries:
            await inner.put(entry.location, (await store.get(entry.location)).body)
        return inner

    queue_entries = list(queue.view())
    return FaultStore(queue.run(copy))


@pytest.fixture
def memory(queue: Queue) -> FaultStore:
    """Eight batches of one record each."""
    queue.fill(8, records=1)
    return in_memory(queue)


def test_a_task_fetches_ahead_and_never_touches_the_manifest(queue: Queue, memory: FaultStore) -> None:
    """One request for each object."""
    found = [part.column("sequence").to_pylist() for part in fetch(queue, memory, fetch_workers=3)]
    assert found == [[n] for n in range(8)]
    assert memory.requests == {("get", entry.location): 1 for entry in queue.view()}


def test_how_far_a_task_fetches_ahead_is_bounded(queue: Queue, memory: FaultStore) -> None:
    """One object at first, then as many as there are workers; leaving early fetches no more."""
    parts = fetch(queue, memory, fetch_workers=3)
    next(parts)
    assert sum(memory.requests.values()) <= 1 + 3
    parts.close()  # type: ignore[attr-defined]
    assert sum(memory.requests.values()) <= 1 + 3


def test_large_objects_are_fetched_one_at_a_time(
    queue: Queue, memory: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When two of them would be more than a task may hold, the next comes when the last is done."""
    monkeypatch.setattr("buffer.spark.fetching.MAX_BYTES_AHEAD", 20)
    for number, part in enumerate(fetch(queue, memory, fetch_workers=8)):
        assert part.num_rows == 1
        assert sum(memory.requests.values()) == number + 1


def test_batches_that_get_larger_do_not_come_all_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One small batch is no promise: fetches get more as more batches are here, and few once a large one is."""
    monkeypatch.setattr("buffer.spark.fetching.MAX_BYTES_AHEAD", 1000)
    queue.produce([[b"x"]] + [[b"x" * 600]] * 12)
    store = in_memory(queue)
    started = [sum(store.requests.values()) for _ in fetch(queue, store, fetch_workers=16)]
    # The first shows that four fit, each of which shows that only one does.
    assert max(now - done for done, now in enumerate(started)) <= 1 + 4
    assert started[5:] == list(range(6, 14))


def test_a_fetch_that_fails_for_a_while_is_repeated(queue: Queue, memory: FaultStore) -> None:
    """A task that fails may end the query."""
    memory.inject("get", unavailable(), times=2)
    assert len(list(fetch(queue, memory))) == 8
