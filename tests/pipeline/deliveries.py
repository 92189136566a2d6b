"""Small ways to use a pipeline."""

from __future__ import annotations

from buffer import Delivery, PipelinedConsumer

__all__ = ["deliver_all", "take"]


async def take(pipeline: PipelinedConsumer, number: int) -> list[Delivery]:
    """Return the next deliveries; they stay in hand."""
    return [await anext(pipeline) for _ in range(number)]


async def deliver_all(pipeline: PipelinedConsumer) -> list[int]:
    """Iterate to the end, each delivery done at once, and return the sequences."""
    sequences = []
    async for delivery in pipeline:
        assert delivery.batch.entries == (b"data %d" % delivery.sequence,)
        sequences.append(delivery.sequence)
        delivery.done()
    return sequences
