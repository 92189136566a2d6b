"""What tasks write and the driver commits, without Spark around it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer import (
    Compression,
    GarbageCollector,
    InvalidInputError,
    KeepReason,
    ManifestView,
    MemoryStore,
    Metadata,
    StorageError,
    UnknownOutcomeError,
    decode_batch,
    parse_manifest,
)
from buffer.config import ConsumerConfig
from buffer.naming import batch_time_ms
from buffer.spark import Options
from buffer.spark.batching import UnsentBatch, cut_batches
from buffer.spark.commit import append_once, commit_write
from buffer.spark.marks import (
    MARK_CHARACTERS,
    MarkedNamer,
    carries,
    mark_of_key,
    mark_of_micro_batch,
    random_mark,
)
from buffer.spark.partitions import WrittenBatch, WrittenPartition
from buffer.spark.uploading import write_partition
from buffer.store import open_store
from buffer.testing import FaultStore, conflict, lost_answer, unavailable
from tests.helpers import MANIFEST, read_manifest
from tests.spark.queues import Queue, lend

NOW_MS = 1_800_000_000_000
OPTIONS = Options(path="memory://lent", commit_within=3600.0)


class FixedClock:
    """A wall clock that stands where a test puts it."""

    def __init__(self, now: int = NOW_MS) -> None:
        self.now = now

    def now_ms(self) -> int:
        """Return that time."""
        return self.now


def columns(
    payload: Sequence[bytes | None], metadata: Sequence[bytes | None] | None = None, *, large: bool = False
) -> pa.RecordBatch:
    kind = pa.large_binary() if large else pa.binary()
    arrays = {"payload": pa.array(payload, kind)}
    if metadata is not None:
        arrays["metadata"] = pa.array(metadata, kind)
    return pa.RecordBatch.from_pydict(arrays)


def cut(
    parts: Sequence[pa.RecordBatch], flush_size_bytes: int = 1000, max_block_bytes: int = 1 << 28
) -> list[UnsentBatch]:
    found = cut_batches(
        iter(parts),
        flush_size_bytes=flush_size_bytes,
        max_block_bytes=max_block_bytes,
        clock=FixedClock(),
    )
    return list(found)


def content(batches: Sequence[UnsentBatch]) -> list[list[bytes]]:
    return [decode_batch(batch.encode(Compression.NONE)) for batch in batches]


rows = st.lists(st.tuples(st.binary(max_size=8), st.one_of(st.none(), st.sampled_from([b"", b"m", b"nn"]))))


@given(st.lists(rows, max_size=5), st.integers(1, 90), st.integers(12, 60), st.booleans())
def test_batches_hold_the_rows_in_order_with_their_metadata(
    parts: list[list[tuple[bytes, bytes | None]]], flush_size_bytes: int, max_block_bytes: int, large: bool
) -> None:
    """However Spark cuts the rows, and wherever a batch is full."""
    found = cut(
        [columns([p for p, _ in part], [m for _, m in part], large=large) for part in parts],
        flush_size_bytes,
        max_block_bytes,
    )
    seen = []
    blocks = []
    for batch in found:
        records = decode_batch(batch.encode(Compression.NONE))
        assert len(records) == batch.records > 0
        starts = [item.start_index for item in batch.metadata]
        assert starts[0] == 0 and starts == sorted(set(starts))
        # A new item only where something changes.
        assert all(a.payload != b.payload for a, b in zip(batch.metadata, batch.metadata[1:], strict=False))
        for index, record in enumerate(records):
            item = [item for item in batch.metadata if item.start_index <= index][-1]
            seen.append((record, item.payload))
        assert batch.size_bytes == sum(map(len, records)) + sum(
            16 + len(item.payload) for item in batch.metadata
        )
        assert batch.block_bytes == sum(4 + len(record) for record in records) <= max_block_bytes
        blocks.append((batch, 4 + len(records[0])))
    assert seen == [(payload, metadata or b"") for part in parts for payload, metadata in part]
    for (batch, _), (_, next_record) in pairwise(blocks):
        full = batch.block_bytes + next_record > max_block_bytes
        assert full or batch.size_bytes >= flush_size_bytes


def test_a_batch_ends_with_the_record_that_fills_it() -> None:
    """Also in the middle of what Spark hands over, and over the end of it."""
    found = cut([columns([b"xxxx"] * 5), columns([b"yyyy"])], 8 + 16)
    assert content(found) == [[b"xxxx", b"xxxx"], [b"xxxx", b"xxxx"], [b"xxxx", b"yyyy"]]


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_batch_ends_before_it_is_larger_than_consumers_accept(size: int) -> None:
    """Short records make a block that is mostly lengths; it stays readable, however large a flush may be."""
    limit = 5 * (4 + size)
    found = cut([columns([b"x" * size] * 7), columns([b"x" * size] * 4)], 1 << 28, limit)
    assert [batch.records for batch in found] == [5, 5, 1]
    for batch in found:
        decode_batch(batch.encode(Compression.NONE), max_bytes=limit)


def test_a_row_that_consumers_would_not_accept_is_refused() -> None:
    """With its size and what is accepted; one that just fits has a batch of its own."""
    assert [batch.records for batch in cut([columns([b"a", b"x" * 96, b"b"])], 1000, 100)] == [1, 1, 1]
    with pytest.raises(
        InvalidInputError, match=r"97 bytes in the column 'payload'.*block of 101; .*accept 100"
    ):
        cut([columns([b"a", b"x" * 97])], 1000, 100)


def test_what_a_sink_writes_the_library_reads_by_default() -> None:
    """The limit of a written batch is the one that consumers have unless they are told otherwise."""
    assert (
        OPTIONS.producer_config.max_batch_bytes == ConsumerConfig().max_batch_bytes == OPTIONS.max_batch_bytes
    )


def test_metadata_of_each_row_fills_a_batch_too() -> None:
    """With what the manifest needs for an item besides its payload."""
    found = cut([columns([b""] * 10, [b"a", b"b"] * 5)], 4 * 17)
    assert [len(batch.metadata) for batch in found] == [4, 4, 2]


def test_many_small_parts_share_one_batch() -> None:
    """One object by size, not one for each part."""
    found = cut([columns([b"a"])] * 100)
    assert content(found) == [[b"a"] * 100]
    assert found[0].metadata == [Metadata(0, NOW_MS, b"")]


def test_no_rows_make_no_batch() -> None:
    """Also if Spark hands over empty parts."""
    assert cut([]) == cut([columns([]), columns([], [])]) == []


def test_a_null_payload_is_refused() -> None:
    """By the column's name; a record may be empty but not null."""
    with pytest.raises(InvalidInputError, match="1 of 2 rows have a null in the column 'payload'"):
        cut([columns([b"a", None])])


def test_a_mark_is_the_same_for_the_same_write_only() -> None:
    """Query and batch, or the user's key; never the one for the other."""
    mark = mark_of_micro_batch("query", "7")
    assert len(mark) == MARK_CHARACTERS and mark == mark_of_micro_batch("query", "7")
    others = {
        mark_of_micro_batch("query", "8"),
        mark_of_micro_batch("query2", "7"),
        mark_of_key("query"),
        mark_of_key("query\0007"),
        random_mark(random.Random(1)),
        random_mark(random.Random(2)),
    }
    assert len(others | {mark}) == 7


def test_a_marked_name_is_a_batch_name_with_the_time_of_the_commit() -> None:
    """Collectors see a batch that is not old before then."""
    mark = mark_of_key("k")
    namer = MarkedNamer("a/b", mark, commit_within=60.0, clock=FixedClock(), rng=random.Random(1))
    names = {namer.next_location() for _ in range(50)}
    assert len(names) == 50
    for name in names:
        assert name.startswith("a/b/") and carries(name, mark) and not carries(name, mark_of_key("other"))
        assert batch_time_ms(name) == NOW_MS + 60_000
    assert not carries(f"a/{mark}", mark) and not carries("x" * 10 + mark + "x" * 9, mark)


def written(mark: str, *partitions: int, commit_within: float = 3600.0) -> list[WrittenPartition]:
    """Partitions with one batch each, as their tasks would report them."""
    namer = MarkedNamer(
        "ingest", mark, commit_within=commit_within, clock=FixedClock(), rng=random.Random(repr(partitions))
    )
    return [
        WrittenPartition(n, mark, (WrittenBatch(namer.next_location(), (Metadata(0, n, b"%d" % n),)),), 1)
        for n in partitions
    ]


async def commit(store: MemoryStore | FaultStore, parts: Sequence[WrittenPartition]) -> int | None:
    return await append_once(store, OPTIONS, parts, FixedClock())


async def test_a_commit_is_one_write_in_the_order_of_the_partitions() -> None:
    """Whatever the order in which tasks end; partitions without rows add nothing."""
    store = FaultStore(MemoryStore())
    parts = [*written("M" * 13, 2, 0, 1), WrittenPartition(3, "M" * 13, (), 0)]
    assert await commit(store, parts) == 0
    view = await read_manifest(store)
    assert [entry.metadata[0].payload for entry in view] == [b"0", b"1", b"2"]
    assert store.requests["put", MANIFEST] == 1


async def test_a_repeated_write_appends_nothing_while_one_of_its_entries_is_there() -> None:
    """Also if the others have been acked, and if the uploads are new."""
    store = MemoryStore()
    mark = mark_of_micro_batch("query", "3")
    assert await commit(store, written(mark, 0, 1)) == 0
    assert await commit(store, written(mark_of_micro_batch("query", "4"), 0)) == 2
    before = await read_manifest(store)
    assert await commit(store, written(mark, 5, 6, 7)) is None
    assert await read_manifest(store) == before
    await store.put(MANIFEST, before.dequeue(0).data)
    assert await commit(store, written(mark, 8)) is None
    assert await read_manifest(store) == before.dequeue(0)


async def test_a_repeated_write_is_not_recognized_once_all_of_it_is_acked() -> None:
    """The documented limit: then nothing in the queue tells of it."""
    store = MemoryStore()
    mark = mark_of_key("k")
    assert await commit(store, written(mark, 0)) == 0
    await store.put(MANIFEST, (await read_manifest(store)).dequeue(0).data)
    assert await commit(store, written(mark, 1)) == 1


async def test_a_mark_in_somebody_elses_bytes_means_nothing() -> None:
    """Only a name can carry it, not a payload and not another kind of location."""
    store = MemoryStore()
    mark = mark_of_key("k")
    foreign = WrittenPartition(
        0,
        "X" * 13,
        (WrittenBatch(written("Y" * 13, 0)[0].batches[0].location, (Metadata(0, 0, mark.encode()),)),),
        1,
    )
    assert await commit(store, [foreign]) == 0
    assert await commit(store, written(mark, 0)) == 1


async def test_an_answer_that_gets_lost_appends_once() -> None:
    """The write is found in the manifest."""
    store = FaultStore(MemoryStore())
    store.inject("put", lost_answer(), key=MANIFEST)
    assert await commit(store, written(mark_of_key("k"), 0, 1)) == 0
    assert len(await read_manifest(store)) == 2


@pytest.mark.virtual_time
async def test_conflicts_and_passing_failures_are_worked_through() -> None:
    """Other producers write at the same time."""
    store = FaultStore(MemoryStore())
    store.inject("put", conflict(), key=MANIFEST, times=5)
    store.inject("put", unavailable(), key=MANIFEST, times=3)
    assert await commit(store, written(mark_of_key("k"), 0)) == 0
    assert len(await read_manifest(store)) == 1


async def test_of_two_commits_of_one_write_at_the_same_time_one_appends() -> None:
    """The second sees the first one's entries before it writes: looking and writing are one step."""
    inner = MemoryStore()
    mark = mark_of_micro_batch("query", "3")

    class Rival(FaultStore):
        async def put(self, *args: object, **kwargs: object) -> str:
            if not self.requests["put", MANIFEST]:
                self.requests["put", MANIFEST] += 1
                assert await commit(inner, written(mark, 8)) == 0
            return await super().put(*args, **kwargs)  # type: ignore[arg-type]

    assert await commit(Rival(inner), written(mark, 0)) is None
    assert [entry.metadata[0].payload for entry in await read_manifest(inner)] == [b"8"]


async def test_a_write_that_took_too_long_is_refused() -> None:
    """Its objects may have been collected; nothing is appended."""
    store = MemoryStore()
    parts = written(mark_of_key("k"), 0)
    with pytest.raises(InvalidInputError, match=r"took 3600 s from its first upload.*raise commitWithin"):
        await append_once(store, OPTIONS, parts, FixedClock(NOW_MS + 3_600_000))
    assert await append_once(store, OPTIONS, parts, FixedClock(NOW_MS + 3_599_999)) == 0


async def test_collectors_spare_what_is_not_committed_yet() -> None:
    """For as long as the commit is allowed, and the grace period; then the objects of a write that failed go."""
    clock = FixedClock()
    store = MemoryStore(clock=clock)
    (part,) = written(mark_of_key("k"), 0, commit_within=3600.0)
    key = part.batches[0].location
    await store.put(key, b"data")
    await store.put(MANIFEST, ManifestView.empty().data)
    collector = GarbageCollector(store, ConsumerConfig(), clock=clock)
    clock.now += 3_600_000 + 599_999
    collection = await collector.collect_once()
    assert collection.kept[key] is KeepReason.WITHIN_GRACE_PERIOD
    clock.now += 1
    assert list((await collector.collect_once()).deleted) == [key]


def write(queue: Queue, parts: Iterator[pa.RecordBatch], options: Options, mark: str) -> WrittenPartition:
    return write_partition(parts, partition=4, mark=mark, options=options, opener=open_store)


def test_a_partition_is_uploaded_under_marked_names_and_not_in_the_queue(queue: Queue) -> None:
    """Only the driver's commit makes it visible."""
    options = Options(path=queue.url, flush_size_bytes=10, compression=Compression.ZSTD)
    mark = mark_of_key("k")
    found = write(queue, iter([columns([b"0123456789"] * 7, [b"m"] * 7)]), options, mark)
    assert (found.partition, found.mark, found.records, len(found.batches)) == (4, mark, 7, 7)
    assert queue.batch_keys() == {batch.location for batch in found.batches}
    assert all(carries(key, mark) for key in queue.batch_keys())
    assert not queue.view()
    assert commit_write([found], options, open_store) == 0
    assert queue.read_plainly() == [b"0123456789"] * 7


def test_an_empty_partition_uploads_nothing_and_an_empty_write_touches_nothing(queue: Queue) -> None:
    """Not even the manifest is created."""
    options = Options(path=queue.url)
    found = write(queue, iter([]), options, mark_of_key("k"))
    assert found.batches == () and found.records == 0
    assert commit_write([found], options, open_store) is None
    assert not queue.objects()


def test_rows_that_end_with_an_error_are_not_reported(queue: Queue) -> None:
    """What was uploaded before stays where it is, unnamed."""

    def parts() -> Iterator[pa.RecordBatch]:
        yield columns([b"0123456789"])
        raise RuntimeError("the job's own failure")

    with pytest.raises(RuntimeError, match="own failure"):
        write(queue, parts(), Options(path=queue.url, flush_size_bytes=10), mark_of_key("k"))
    assert not queue.view()


def test_a_name_that_is_taken_is_left_alone() -> None:
    """An upload gets another name, and never overwrites; an answer that got lost leaves an orphan behind."""
    store = FaultStore(MemoryStore())
    store.inject("put", lost_answer())
    part = write_partition(
        iter([columns([b"a"])]),
        partition=0,
        mark=mark_of_key("k"),
        options=OPTIONS,
        opener=lambda _: lend(store),
    )
    keys = [key for (operation, key) in store.requests if operation == "put"]
    assert len(set(keys)) == 2
    assert part.batches[0].location == keys[-1]


def test_a_store_that_says_every_name_is_taken_is_an_error() -> None:
    """Not an endless loop."""
    store = FaultStore(MemoryStore())
    store.inject("put", conflict(), times=None)
    with pytest.raises(StorageError, match="new names were all taken"):
        write_partition(
            iter([columns([b"a"])]),
            partition=0,
            mark=mark_of_key("k"),
            options=OPTIONS,
            opener=lambda _: lend(store),
        )


async def test_an_append_that_nobody_can_tell_about_says_so() -> None:
    """No answer, and the entries that would show it are gone."""
    inner = MemoryStore()
    await inner.put(MANIFEST, ManifestView.empty().data)

    class Gone(FaultStore):
        async def put(self, *args: object, **kwargs: object) -> str:
            await super().put(*args, **kwargs)  # type: ignore[arg-type]
            view = parse_manifest((await inner.get(MANIFEST)).body)
            await inner.put(MANIFEST, view.dequeue(view.next_sequence - 1).data)
            raise UnknownOutcomeError("no answer")

    with pytest.raises(UnknownOutcomeError, match="have been dequeued"):
        await commit(Gone(inner), written(mark_of_key("k"), 0))


def test_the_files_of_a_queue_are_where_the_options_say(tmp_path: Path) -> None:
    """Manifest and batches have their own keys."""
    queue = Queue(f"file://{tmp_path}/q?fsync=false")
    options = Options(path=queue.url, manifest_path="x/m", data_path_prefix="y/data")
    found = write(queue, iter([columns([b"a"])]), options, mark_of_key("k"))
    commit_write([found], options, open_store)
    assert {key.rpartition("/")[0] for key in queue.objects()} == {"x", "y/data"}
