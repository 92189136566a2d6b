"""Reading and decoding batches: no cursor, no manifest, no fence. Source: RFC 0003, "Concurrency Model"."""

from __future__ import annotations

import anyio
from opentelemetry.metrics import MeterProvider

from buffer.config import ConsumerConfig, chosen
from buffer.errors import FormatError, InvalidInputError, StorageError
from buffer.format import decode_batch
from buffer.metrics import Instruments
from buffer.model import BatchDescriptor, ConsumedBatch, RawBatch
from buffer.store.base import ObjectStore, check_store
from buffer.store.stray import own_time_out
from buffer.workers import CpuWorkers

__all__ = ["ConsumerFetchHandle"]


class ConsumerFetchHandle:
    """Fetches batches for any number of tasks at once.

    It holds no state of the consumer it came from: it never notices a fence, and a descriptor can be fetched as
    long as its object exists, any number of times. It can be pickled when its store can; on the other side it
    records into the global meter provider.

    Args:
        store: Where the batches lie.
        config: Its `max_batch_bytes` bounds what decoding may allocate.
        workers: Where large batches are decoded.
        meter_provider: OpenTelemetry provider; the global one by default.
    """

    __slots__ = ("_config", "_instruments", "_store", "_workers")

    def __init__(
        self,
        store: ObjectStore,
        config: ConsumerConfig | None = None,
        *,
        workers: CpuWorkers | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        check_store(store)
        self._store = store
        self._config = chosen("config", config, ConsumerConfig)
        self._workers = workers or CpuWorkers()
        self._instruments = Instruments(meter_provider)

    def __reduce__(self) -> tuple[type[ConsumerFetchHandle], tuple[ObjectStore, ConsumerConfig]]:
        return ConsumerFetchHandle, (self._store, self._config)

    def __copy__(self) -> ConsumerFetchHandle:
        return self

    async def fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Read and decode one batch: one GET. Fetching a descriptor twice gives equal batches.

        Raises:
            NotFoundError: The object is gone; it may have been collected after its entry was dequeued.
            FormatError: The object is not a batch; carries sequence and location.
            StorageError: It could not be read; carries sequence and path, and `transient` says whether trying
                again may help.
        """
        began = anyio.current_time()
        raw = await self.fetch_raw(descriptor)
        batch = await self.decode(raw)
        metrics = self._instruments
        metrics.batches_collected.add(1)
        metrics.entries_collected.add(len(batch.entries))
        metrics.bytes_collected.add(len(raw.data))
        metrics.fetch_duration_seconds.record(anyio.current_time() - began)
        return batch

    async def fetch_raw(self, descriptor: BatchDescriptor) -> RawBatch:
        """Read one batch and leave it encoded: one GET.

        Raises:
            FormatError: The manifest names a location that this store cannot hold.
            NotFoundError, StorageError: As `fetch`.
        """
        try:
            found = await self._store.get(descriptor.location)
        except InvalidInputError as exc:
            # The key is not the caller's but the manifest's, which may hold any text.
            raise FormatError(
                f"no batch can be where the manifest says it is: {exc}",
                sequence=descriptor.sequence,
                location=descriptor.location,
            ) from exc
        except StorageError as exc:
            exc.sequence = descriptor.sequence
            raise
        except TimeoutError as exc:
            error = own_time_out(exc, descriptor.location)
            error.sequence = descriptor.sequence
            raise error from exc
        return RawBatch(found.body, descriptor.sequence, descriptor.location, descriptor.metadata)

    async def decode(self, raw: RawBatch) -> ConsumedBatch:
        """Decode a batch, in a worker thread when it is large.

        Raises:
            FormatError: The bytes are not a batch; carries sequence and location.
        """
        try:
            records = await self._workers.run(
                len(raw.data), decode_batch, raw.data, max_bytes=self._config.max_batch_bytes
            )
        except FormatError as exc:
            exc.sequence, exc.location = raw.sequence, raw.location
            raise
        return ConsumedBatch(tuple(records), raw.sequence, raw.location, raw.metadata)
