"""The guards of the library, each taken away from outside: what the simulator must find.

Each function patches one guard of one module. None of them is a switch of the product.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import anyio
import zstandard
from pytest import MonkeyPatch  # noqa: PT013 - the type of every function here

from buffer.consumer.consumer import Consumer
from buffer.errors import FormatError, NotFoundError, UnknownOutcomeError
from buffer.format import ManifestView, parse_manifest
from buffer.gc import rules
from buffer.gc.rules import Moment, Queue
from buffer.gc.watch import ManifestWatch
from buffer.pipeline.watermark import Watermark
from buffer.producer.batch import Batch
from buffer.producer.delivery import Delivery
from buffer.queue.append import QueueProducer
from buffer.queue.consume import QueueConsumer
from buffer.queue.manifest_object import ManifestObject

Mutation = Callable[[MonkeyPatch], None]


def no_look_up_after_a_lost_answer(patch: MonkeyPatch) -> None:
    patch.setattr(ManifestView, "find", lambda self, location, from_sequence: None)


def no_doubt_about_dequeued_entries(patch: MonkeyPatch) -> None:
    update = ManifestObject.update

    async def without_doubt(self: ManifestObject, propose: Any, *, deadline: float) -> None:
        await update(self, lambda view, in_doubt: propose(view, False), deadline=deadline)

    patch.setattr(ManifestObject, "update", without_doubt)


def doubt_is_not_sticky(patch: MonkeyPatch) -> None:
    patch.setattr(QueueProducer, "in_doubt", False)


def a_lost_answer_counts_as_a_conflict(patch: MonkeyPatch) -> None:
    write = ManifestObject._write

    async def forgetful(self: ManifestObject, wanted: ManifestView) -> Any:
        failure = await write(self, wanted)
        if isinstance(failure, UnknownOutcomeError):
            self.in_doubt = False
        return failure

    patch.setattr(ManifestObject, "_write", forgetful)


def no_enqueue_deadline(patch: MonkeyPatch) -> None:
    patch.setattr(Delivery, "_is_too_old", lambda self, batch: False)


def no_epoch_check(patch: MonkeyPatch) -> None:
    patch.setattr(QueueConsumer, "_check_epoch", lambda self, view: None)


def a_fence_in_doubt_is_looked_for(patch: MonkeyPatch) -> None:
    update = ManifestObject.update

    async def looking(self: ManifestObject, propose: Any, *, deadline: float) -> None:
        wanted: ManifestView | None = None
        if "fence" not in propose.__qualname__:
            await update(self, propose, deadline=deadline)
            return

        def once(view: ManifestView, in_doubt: bool) -> ManifestView | None:
            nonlocal wanted
            if in_doubt and wanted is not None and view.epoch == wanted.epoch:
                return None
            wanted = propose(view, in_doubt)
            return wanted

        await update(self, once, deadline=deadline)

    patch.setattr(ManifestObject, "update", looking)


def a_lost_manifest_is_created_anew(patch: MonkeyPatch) -> None:
    read = ManifestObject.read

    async def naive(self: ManifestObject) -> ManifestView:
        try:
            return await read(self)
        except NotFoundError:
            self.view, self._etag, self._current = ManifestView.empty(), None, True
            return self.view

    patch.setattr(ManifestObject, "read", naive)


def commits_in_order_of_upload(patch: MonkeyPatch) -> None:
    upload = Delivery._upload

    async def overtaking(self: Delivery, batch: Batch) -> None:
        await upload(self, batch)
        if batch in self._line and batch not in self._committing:
            self._line.remove(batch)
            committing = sum(other in self._committing for other in self._line)
            self._line.insert(committing, batch)

    patch.setattr(Delivery, "_upload", overtaking)


def commits_before_the_upload_is_done(patch: MonkeyPatch) -> None:
    put = Delivery._put

    async def hasty(self: Delivery, location: str, data: bytes, deadline: float) -> None:
        with anyio.move_on_after(0.02):
            await put(self, location, data, deadline)

    patch.setattr(Delivery, "_put", hasty)


def the_ack_cursor_moves_before_the_dequeue(patch: MonkeyPatch) -> None:
    dequeue = Consumer._dequeue

    async def early(self: Consumer, through: int) -> None:
        self._cursors.ack(through)
        await dequeue(self, through)

    patch.setattr(Consumer, "_dequeue", early)


def the_read_cursor_moves_before_the_fetch(patch: MonkeyPatch) -> None:
    fetch = Consumer._fetch_one

    async def early(self: Consumer, descriptor: Any) -> Any:
        self._cursors.hand_out([descriptor])
        return await fetch(self, descriptor)

    patch.setattr(Consumer, "_fetch_one", early)


def dequeues_what_was_handed_out(patch: MonkeyPatch) -> None:
    dequeue = Consumer._dequeue

    async def generous(self: Consumer, through: int) -> None:
        await dequeue(self, max(through, self._queue.view.next_sequence - 1))

    patch.setattr(Consumer, "_dequeue", generous)


def acks_are_forgotten_on_failure(patch: MonkeyPatch) -> None:
    dequeue = Consumer._dequeue

    async def optimistic(self: Consumer, through: int) -> None:
        self._cursors.wrote(through)
        await dequeue(self, through)

    patch.setattr(Consumer, "_dequeue", optimistic)


def the_watermark_ignores_gaps(patch: MonkeyPatch) -> None:
    complete = Watermark.complete

    def eager(self: Watermark, sequence: int) -> int:
        passed = complete(self, sequence)
        if passed or (self.high is not None and sequence <= self.high):
            return passed
        self.high = sequence
        return 1

    patch.setattr(Watermark, "complete", eager)


def the_collector_trusts_names_alone(patch: MonkeyPatch) -> None:

    reason = rules.reason_to_keep

    def by_name(key: str, batch: Any, *, queue: Any, moment: Any) -> Any:
        return reason(key, batch._replace(modified_ms=batch.named_ms), queue=queue, moment=moment)

    patch.setattr("buffer.gc.cycle.reason_to_keep", by_name)


def the_collector_has_no_grace(patch: MonkeyPatch) -> None:
    patch.setattr(Moment, "spares", lambda self, time_ms: False)


def the_collector_reads_the_manifest_only_before_listing(patch: MonkeyPatch) -> None:
    refresh = ManifestWatch.refresh

    async def once(self: ManifestWatch) -> bool:
        return False if self._etag is not None else await refresh(self)

    patch.setattr(ManifestWatch, "refresh", once)


def the_collector_takes_no_manifest_for_an_empty_one(patch: MonkeyPatch) -> None:
    refresh = ManifestWatch.refresh

    async def naive(self: ManifestWatch) -> bool:
        try:
            return await refresh(self)
        except NotFoundError:
            self.view = ManifestView.empty()
            return True

    patch.setattr(ManifestWatch, "refresh", naive)


def the_collector_ignores_references(patch: MonkeyPatch) -> None:
    def blind(cls: type[Queue], *args: Any, **kwargs: Any) -> Queue:
        return Queue(frozenset(), None, None)

    patch.setattr(Queue, "of", classmethod(blind))


def a_manifest_that_cannot_be_read_counts_as_empty(patch: MonkeyPatch) -> None:
    def lax(data: bytes, *, known: ManifestView | None = None) -> ManifestView:
        try:
            return parse_manifest(data, known=known)
        except FormatError:
            return ManifestView.empty()

    patch.setattr("buffer.queue.manifest_object.parse_manifest", lax)


def a_frame_may_end_early(patch: MonkeyPatch) -> None:
    def careless(data: bytes, end: int, limit: int) -> bytes:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data[:end])

    patch.setattr("buffer.format.batch.zstd.decompress", careless)


def bytes_may_be_left_over_in_a_batch(patch: MonkeyPatch) -> None:
    def careless(data: bytes, end: int, count: int) -> list[bytes]:
        records, at = [], 0
        for _ in range(count):
            size = int.from_bytes(data[at : at + 4], "little")
            if at + 4 + size > end:
                raise FormatError("truncated")
            records.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return records

    patch.setattr("buffer.format.batch.read_records", careless)


def metadata_may_reach_into_the_next_entry(patch: MonkeyPatch) -> None:
    patch.setattr("buffer.format.validation._items_fill", lambda data, at, stop, count: True)


def known_entries_are_not_compared(patch: MonkeyPatch) -> None:
    def trusting(known: ManifestView | None, data: bytes, end: int, first: int, count: int) -> Any:
        if (
            known is not None
            and first == known.first_sequence
            and 0 < len(known) <= count
            and known._at(len(known)) <= end
        ):
            return known._positions[:]
        return array("Q", (0,))

    patch.setattr("buffer.format.manifest._known_positions", trusting)


def an_older_manifest_is_believed(patch: MonkeyPatch) -> None:
    patch.setattr("buffer.queue.manifest_object._is_older", lambda view, known: False)


MUTATIONS: tuple[Mutation, ...] = (
    no_look_up_after_a_lost_answer,
    no_doubt_about_dequeued_entries,
    doubt_is_not_sticky,
    a_lost_answer_counts_as_a_conflict,
    no_enqueue_deadline,
    no_epoch_check,
    a_fence_in_doubt_is_looked_for,
    a_lost_manifest_is_created_anew,
    commits_in_order_of_upload,
    commits_before_the_upload_is_done,
    the_ack_cursor_moves_before_the_dequeue,
    the_read_cursor_moves_before_the_fetch,
    dequeues_what_was_handed_out,
    acks_are_forgotten_on_failure,
    the_watermark_ignores_gaps,
    the_collector_trusts_names_alone,
    the_collector_has_no_grace,
    the_collector_reads_the_manifest_only_before_listing,
    the_collector_takes_no_manifest_for_an_empty_one,
    the_collector_ignores_references,
    a_manifest_that_cannot_be_read_counts_as_empty,
    a_frame_may_end_early,
    bytes_may_be_left_over_in_a_batch,
    metadata_may_reach_into_the_next_entry,
    known_entries_are_not_compared,
    an_older_manifest_is_believed,
)
