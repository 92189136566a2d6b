"""The data source, with a death that can be ordered at each step of its life. Spark's processes import this module.

A test writes a step into a file; the first process that comes to the step deletes the file and does what is ordered.
Every step is also written down, with its time, so that a test can see what happened in other processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from buffer.errors import StorageError
from buffer.spark import OpendataBufferDataSource
from buffer.spark.options import Purpose
from buffer.spark.partitions import WrittenPartition
from buffer.spark.schema import check_read_schema, check_write_schema
from buffer.spark.stream_reader import QueueStreamReader
from buffer.spark.writers import QueueStreamWriter
from buffer.store import OVERWRITE, ByteRange, GetResult, ListPage, ObjectStore, PutMode, Suffix, open_store
from buffer.store.forwarding import ForwardingStore
from tests.helpers import MANIFEST

FOLDER = "OPENDATA_BUFFER_TEST_FOLDER"
"""Environment variable with the folder for orders and for the record of steps."""

PATIENCE = 120.0
"""Seconds that a process hangs which nobody kills."""


How: TypeAlias = Literal["kill", "kill-java", "raise", "hang"]
"""Die, let Spark's JVM die, raise an error, or do nothing until Spark kills the process."""


def order(step: str, how: How = "kill") -> None:
    """Tell the next process that comes to `step` what to do there."""
    Path(os.environ[FOLDER], "order").write_text(f"{how} {step}")


def order_is_open() -> bool:
    """Whether nobody has come to the step."""
    return Path(os.environ[FOLDER], "order").exists()


def forget() -> None:
    """Begin a new record, without an order."""
    for path in Path(os.environ[FOLDER]).iterdir():
        path.unlink()


def steps() -> list[tuple[float, str]]:
    """Return what happened, in order, with the time of the monotonic clock."""
    record = Path(os.environ[FOLDER], "steps")
    lines = record.read_text().splitlines() if record.exists() else []
    return [(float(at), step) for at, _, step in (line.partition(" ") for line in lines)]


def reach(step: str) -> None:
    """Come to a step."""
    folder = Path(os.environ[FOLDER])
    with (folder / "steps").open("a") as record:
        record.write(f"{time.monotonic()} {step}\n")
    try:
        how, _, ordered = (folder / "order").read_text().partition(" ")
        if ordered != step:
            return
        # Only one of several processes gets to do it.
        (folder / "order").unlink()
    except FileNotFoundError:
        return
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "kill-java":
        os.kill(_java_above(os.getpid()), signal.SIGKILL)
    else:
        if how == "hang":
            time.sleep(PATIENCE)
        raise RuntimeError(f"ordered to {how} at {step!r}")


def _java_above(pid: int) -> int:
    """Return the process of the JVM that this one comes from."""
    while pid:
        # The name is in parentheses; the parent is the second field behind it.
        name, _, rest = Path("/proc", str(pid), "stat").read_text().rpartition(")")
        if name.endswith("(java"):
            return pid
        pid = int(rest.split()[1])
    raise AssertionError("this process does not come from a JVM")


class FaultyStore(ForwardingStore):
    """Passes everything on, with a step before and after each request."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._manifest_writes = 0

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        reach(f"before get {_kind(key)}")
        found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        reach(f"after get {_kind(key)}")
        return found

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        kind = _kind(key)
        if key == MANIFEST:
            # A reader's first write fences, those after it ack.
            kind = "manifest again" if self._manifest_writes else kind
            self._manifest_writes += 1
        reach(f"before put {kind}")
        etag = await self._inner.put(key, body, mode)
        reach(f"after put {kind}")
        return etag

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        reach("before list")
        return self._inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        reach("before delete")
        return await self._inner.delete(keys)

    async def aclose(self) -> None:
        """Leave the inner store to whoever opened it."""


def _kind(key: str) -> str:
    return "manifest" if key == MANIFEST else "batch"


class FaultyReader(QueueStreamReader):
    """A streaming reader with a step before and after each call."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        reach("initialOffset")
        return super().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        reach("before prepareForTriggerAvailableNow")
        super().prepareForTriggerAvailableNow()
        reach("after prepareForTriggerAvailableNow")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        reach("before latestOffset")
        end = super().latestOffset(start, limit)
        reach("after latestOffset")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        reach("before partitions")
        found = super().partitions(start, end)
        reach("after partitions")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reach("before read")
        for part in super().read(partition):
            yield part
            reach("during read")
        reach("after read")

    def commit(self, end: dict[str, Any]) -> None:
        reach("before commit")
        super().commit(end)
        reach("after commit")


class FaultyWriter(QueueStreamWriter):
    """A streaming writer with a step before and after each call."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        reach("before write")
        written = super().write(iterator)
        reach("after write")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("before sink commit")
        super().commit(messages, batchId)
        reach("after sink commit")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("abort")
        super().abort(messages, batchId)


class FaultySource(OpendataBufferDataSource):
    """The data source under another name, that takes orders to die."""

    @staticmethod
    @asynccontextmanager
    async def open_store(url: str) -> AsyncIterator[ObjectStore]:
        """Open the store, and see every request."""
        async with open_store(url) as store:
            yield FaultyStore(store)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "faulty_buffer"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that takes orders."""
        options = self._settings.check(Purpose.STREAM_READ)
        return FaultyReader(options, check_read_schema(schema), self.open_store)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer that takes orders."""
        check_write_schema(schema)
        assert not overwrite
        return FaultyWriter(self._settings.check(Purpose.STREAM_WRITE), self.open_store)
