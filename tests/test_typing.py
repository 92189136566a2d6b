"""What a type checker tells users: right programs pass in strict mode, wrong ones are caught where they are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

RIGHT = """
from typing import assert_type

import anyio
from opentelemetry.metrics import MeterProvider

from buffer import (
    BatchDescriptor,
    Collection,
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    ConsumerFetchHandle,
    Error,
    FencedError,
    GarbageCollector,
    MemoryStore,
    Metadata,
    ObjectStore,
    Producer,
    ProducerConfig,
    RawBatch,
    Receipt,
    StorageError,
    WriteHandle,
    decode_batch,
    encode_batch,
    open_store,
    parse_manifest,
)


class Recording(MemoryStore):
    async def aclose(self) -> None:
        await super().aclose()


async def produce(store: ObjectStore, meters: MeterProvider) -> Receipt:
    async with Producer(store, ProducerConfig(flush_interval=1), meter_provider=meters) as producer:
        assert_type(producer, Producer)
        handle = await producer.produce([b"one", b"two"], metadata=b"mine")
        assert_type(handle, WriteHandle)
        assert_type(handle.watcher.result(), Receipt | None)
        await producer.flush()
        assert_type(producer.conflict_rate, float)
        return await handle.watcher.await_durable()


async def consume(store: ObjectStore, last: int | None) -> list[bytes]:
    records: list[bytes] = []
    async with Consumer(store, ConsumerConfig(), last_acked_sequence=last) as consumer:
        assert_type(consumer, Consumer)
        while (batch := await consumer.next_batch()) is not None:
            assert_type(batch, ConsumedBatch)
            records += batch.entries
            await consumer.ack(batch.sequence)
        await consumer.flush()
    return records


async def read_ahead(consumer: Consumer) -> None:
    handle: ConsumerFetchHandle = consumer.fetch_handle()

    async def fetch(descriptor: BatchDescriptor) -> None:
        raw: RawBatch = await handle.fetch_raw(descriptor)
        assert_type(decode_batch(raw.data), list[bytes])

    while descriptors := await consumer.next_descriptors(8):
        assert_type(descriptors[0].metadata, tuple[Metadata, ...])
        async with anyio.create_task_group() as tasks:
            for descriptor in descriptors:
                tasks.start_soon(fetch, descriptor)
        await consumer.ack_through(descriptors[-1].sequence)


async def main() -> None:
    async with open_store("file:///tmp/queue", fsync=False) as store:
        assert_type(store, ObjectStore)
        try:
            await consume(store, None)
        except FencedError as exc:
            assert_type(exc.epoch, int | None)
        except StorageError as exc:
            assert_type(exc.transient, bool)
        except Error as exc:
            assert_type(exc.message, str)
        collection = await GarbageCollector(store, ConsumerConfig()).collect_once(dry_run=True)
        assert_type(collection, Collection)
        view = parse_manifest((await store.get("ingest/manifest")).body)
        assert_type([entry.sequence for entry in view], list[int])
    await consume(Recording(), 4)
    encode_batch([b"one"])


anyio.run(main)
"""

WRONG = """
from buffer import Consumer, ConsumerConfig, FileStore, MemoryStore, ObjectStore, Producer, ProducerConfig, open_store


async def produce(store: ObjectStore) -> None:
    producer = Producer("memory://")  # arg-type
    producer = Producer(store, ConsumerConfig())  # arg-type
    ProducerConfig(0.1)  # call-arg arg-type
    ProducerConfig(flush_intervall=0.1)  # call-arg
    ProducerConfig().flush_interval = 1.0  # misc
    await producer.produce(["text"])  # list-item
    await producer.produce(b"not in a list")  # arg-type
    await producer.produce([b"record"], "text")  # arg-type
    handle = await producer.produce([b"record"])
    handle.watcher.result().sequence  # union-attr
    store = FileStore(1)  # arg-type
    open_store("memory://", fsnyc=True)  # call-arg


async def consume(store: ObjectStore) -> None:
    consumer = Consumer(store, last_acked_sequence="4")  # arg-type
    with consumer:  # attr-defined
        pass
    batch = await consumer.next_batch()
    await consumer.ack(batch.sequence)  # union-attr
    await consumer.ack(batch)  # arg-type
    consumer.epoch = 4  # misc
    descriptors = await consumer.next_descriptors(4)
    descriptors[0].sequence = 5  # misc
    (await consumer.fetch_handle().fetch(descriptors[0])).entries.append(b"")  # attr-defined


class Incomplete:
    async def get(self, key: str) -> bytes:
        return b""


Consumer(Incomplete())  # arg-type
stores: list[ObjectStore] = [MemoryStore(), FileStore("/tmp/queue")]
"""

ERROR = re.compile(r"^wrong\.py:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


@pytest.mark.slow
def test_a_type_checker_knows_right_from_wrong(tmp_path: Path) -> None:
    """The right program has no error; the wrong one has exactly those that its comments name, in their lines."""
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    strict = ["--strict", "--no-error-summary", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[int, set[str]] = {}
    for line, code in ERROR.findall(checked.stdout):
        found.setdefault(int(line), set()).add(code)
    expected = {
        number: set(line.rpartition("  # ")[2].split())
        for number, line in enumerate(WRONG.splitlines(), start=1)
        if "  # " in line
    }
    assert found == expected, checked.stdout
    others = [line for line in checked.stdout.splitlines() if not line.startswith("wrong.py:")]
    assert others == [], checked.stderr
