"""What a store or a caller does that nobody expects: the pipeline goes on, or says at once what is wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from buffer import (
    AccessDeniedError,
    ConsumerConfig,
    FormatError,
    InvalidInputError,
    MemoryStore,
    PipelineConfig,
    PipelinedConsumer,
    PreconditionError,
    StorageError,
    UnknownOutcomeError,
)
from buffer.errors import without_frames
from buffer.testing import CutBody, Delay, FailBefore, GatedStore
from buffer.testing.time import VirtualTimeLoop
from tests.helpers import StrayStore

if TYPE_CHECKING:
    from tests.pipeline.conftest import Queue

pytestmark = pytest.mark.virtual_time

ON_ASYNCIO = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualTimeLoop})], ids=["asyncio"]
)


@ON_ASYNCIO
async def test_a_stray_cancellation_in_a_fetch_is_that_batchs_failure(queue: Queue) -> None:
    """A worker that ended of it would be missed by nobody, and iteration would wait for its batch for ever."""
    store = StrayStore(queue.bare)
    first, *_ = await queue.fill(3)
    store.strays = [("get", first.location)]
    with anyio.fail_after(1000):
        async with queue.pipeline(PipelineConfig(until_caught_up=True), store=store) as pipeline:
            with pytest.raises(StorageError, match="something that it waited for was cancelled") as caught:
                await anext(pipeline)
            assert (caught.value.sequence, caught.value.path) == (0, first.location)
            pipeline.skip(0)
            assert [delivery.sequence async for delivery in pipeline] == [1, 2]


@ON_ASYNCIO
async def test_a_stray_cancellation_in_a_look_ends_the_pipeline_with_an_error(queue: Queue) -> None:
    """The owner does not go missing either."""
    store = StrayStore(queue.bare)
    await queue.fill(1)
    with anyio.fail_after(1000):
        async with queue.pipeline(store=store) as pipeline:
            (await anext(pipeline)).done()
            store.strays = [("get", queue.manifest_key)]
            with pytest.raises(StorageError, match="something that it waited for was cancelled"):
                await anext(pipeline)


async def test_who_cleans_up_after_a_cancellation_can_go_on_iterating(queue: Queue) -> None:
    """The pipeline works until it is left, also inside a scope that was cancelled."""
    await queue.fill(30)
    handled = []
    with anyio.CancelScope() as scope:
        async with queue.pipeline(PipelineConfig(until_caught_up=True, fetch_workers=2)) as pipeline:
            try:
                (await anext(pipeline)).done()
                scope.cancel()
                await anyio.sleep(1)
            finally:
                with anyio.move_on_after(20, shield=True) as limit:
                    async for delivery in pipeline:
                        handled.append(delivery.sequence)
                        delivery.done()
                assert not limit.cancelled_caught
    assert handled == list(range(1, 30))
    assert await queue.sequences() == []


def test_a_kept_failure_holds_no_frames() -> None:
    """Neither do its causes: the frames of decoding hold the whole batch."""

    def decode(body: bytes) -> None:
        try:
            body.decode("ascii")
        except UnicodeDecodeError as exc:
            raise FormatError("bad") from exc

    with pytest.raises(FormatError) as caught:
        decode(b"\xff" * 100)
    error = without_frames(caught.value)
    assert error is caught.value and error.__traceback__ is None
    assert error.__cause__ is not None and error.__cause__.__traceback__ is None


async def test_a_failure_that_is_raised_again_does_not_grow(queue: Queue) -> None:
    """It does not remember every place it was ever raised at."""
    async with queue.pipeline() as pipeline:
        queue.store.inject("get", FailBefore(AccessDeniedError("no")), key=queue.manifest_key, times=None)
        depths = []
        for _ in range(50):
            with pytest.raises(AccessDeniedError) as caught:
                await anext(pipeline)
            depths.append(len(caught.traceback))
    assert depths[-1] == depths[0]


async def test_a_last_ack_without_an_answer_may_have_been_written(queue: Queue) -> None:
    """So leaving does not say that it was not."""
    await queue.fill(2)
    gates = GatedStore(queue.store, after=lambda call: call.operation == "put" and armed)
    armed = False
    pipeline = queue.pipeline(PipelineConfig(ack_batches=100, ack_interval=1e6), store=gates)
    await pipeline.__aenter__()
    (await anext(pipeline)).done()
    armed = True
    with pytest.raises(UnknownOutcomeError, match="may be delivered again"):
        await pipeline.__aexit__(None, None, None)
    assert await queue.sequences() == [1]


async def test_refusals_that_nobody_is_the_reason_of_are_not_answered_at_once(queue: Queue) -> None:
    """A proxy that spoils conditions gets a few requests, not as many as there is time for."""
    await queue.fill(2)
    async with queue.pipeline(PipelineConfig(ack_batches=1)) as pipeline:
        delivery = await anext(pipeline)
        queue.store.inject(
            "put", FailBefore(PreconditionError("no", status=412)), key=queue.manifest_key, times=None
        )
        queue.requests()
        delivery.done()
        await anext(pipeline)
        with pytest.raises(PreconditionError):
            await anext(pipeline)
        assert queue.requests()["put manifest"] < 30
        queue.store.clear()


@pytest.mark.parametrize("backoff", [math.inf, 1e6])
async def test_the_first_wait_for_a_fetch_is_bounded_too(queue: Queue, backoff: float) -> None:
    """However long a backoff is configured."""
    first, *_ = await queue.fill(1)
    queue.store.inject("get", FailBefore(StorageError("no", transient=True)), key=first.location)
    with anyio.fail_after(21):
        async with queue.pipeline(PipelineConfig(fetch_backoff=backoff)) as pipeline:
            assert (await anext(pipeline)).sequence == 0


async def test_stopping_ends_the_fetching(queue: Queue) -> None:
    """What cannot be delivered any more is not downloaded."""
    for batch in await queue.fill(40):
        queue.store.inject("get", Delay(1.0), key=batch.location)
    async with queue.pipeline(PipelineConfig(fetch_workers=4)) as pipeline:
        await anext(pipeline)
        pipeline.stop()
        under_way = queue.requests()["get batch"]
        await anyio.sleep(60)
        assert under_way <= 8 and "get batch" not in queue.requests()


async def test_a_manifest_that_was_cut_once_is_read_again(queue: Queue) -> None:
    """As batches are: a proxy may have cut it for this reader only. One that stays so ends the pipeline."""
    async with queue.pipeline() as pipeline:
        cut = queue.store.inject("get", CutBody(at=10), key=queue.manifest_key)
        await queue.fill(1)
        with anyio.fail_after(60):
            assert (await anext(pipeline)).sequence == 0
        assert cut.hits == 1
        queue.store.inject("get", CutBody(at=10), key=queue.manifest_key, times=None)
        await queue.fill(1)
        with anyio.fail_after(60), pytest.raises(FormatError):
            await anext(pipeline)


async def test_a_stores_own_time_out_is_told_from_ours(queue: Queue) -> None:
    """The error does not name a limit that was not reached."""
    first, *_ = await queue.fill(1)
    queue.store.inject("get", FailBefore(TimeoutError("theirs")), key=first.location, times=None)
    async with queue.pipeline(PipelineConfig(fetch_attempts=1)) as pipeline:
        with pytest.raises(StorageError, match=r"the store gave up: TimeoutError\('theirs'\)"):
            await anext(pipeline)


async def test_leaving_frees_what_was_fetched(queue: Queue) -> None:
    """Also if the program keeps the pipeline."""
    await queue.fill(10)
    async with queue.pipeline() as pipeline:
        await anext(pipeline)
        await anyio.sleep(1)
        assert len(pipeline._progress.ready) == 9
    assert pipeline._progress.ready == ()


async def handle(_batch: object) -> None:
    raise AssertionError("there is none")


@pytest.mark.parametrize("concurrency", [0, -1, 2.5, math.inf, math.nan, "4", None, True], ids=repr)
async def test_a_concurrency_that_is_none_is_refused(queue: Queue, concurrency: Any) -> None:
    """At once, and never inside a group."""
    async with queue.pipeline() as pipeline:
        with pytest.raises(InvalidInputError, match="concurrency must be a whole number"):
            await pipeline.run(handle, concurrency=concurrency)


async def test_a_handler_that_is_not_async_is_refused(queue: Queue) -> None:
    """Its batch is not taken for done."""
    await queue.fill(1)

    def handler(_batch: object) -> str:
        return "handled"

    async with queue.pipeline(PipelineConfig(until_caught_up=True)) as pipeline:
        with pytest.raises(InvalidInputError, match="handler must be an async function"):
            await pipeline.run("handler")  # type: ignore[arg-type]
        with pytest.raises(
            InvalidInputError, match=r"handler must be an async function.*has returned 'handled'"
        ):
            await pipeline.run(handler)  # type: ignore[arg-type]
    assert await queue.sequences() == [0]


async def test_only_a_number_can_be_skipped(queue: Queue) -> None:
    """Anything else is refused by name."""
    async with queue.pipeline() as pipeline:
        with pytest.raises(InvalidInputError, match="sequence must be a whole number"):
            pipeline.skip([1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [(PipelineConfig(),), (None, ConsumerConfig()), (None, {}), (None, PipelineConfig), ({},)],
    ids=["swapped", "also swapped", "dict", "class", "dict for the consumer"],
)
def test_settings_of_the_wrong_kind_are_refused_by_name(settings: tuple[Any, ...]) -> None:
    """The likeliest slip is one object in the place of the other."""
    with pytest.raises(
        InvalidInputError, match=r"config must be a (Consumer|Pipeline)Config, but is (a|the class) "
    ):
        PipelinedConsumer(MemoryStore(), *settings)


@pytest.mark.parametrize(
    "fields", [{"ordered": "no"}, {"until_caught_up": 1}, {"fetch_timeout": 10**400}, {"ack_interval": "1"}]
)
def test_values_that_only_look_like_settings_are_refused(fields: dict[str, Any]) -> None:
    """What Python would take for true, or a number too large to count seconds with."""
    (name,) = fields
    with pytest.raises(InvalidInputError, match=name):
        PipelineConfig(**fields)
