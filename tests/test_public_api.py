"""What users may import: exactly these names, documented, typed, and inert until they are entered."""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import inspect
import pickle
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import buffer
from buffer import (
    AccessDeniedError,
    BatchDescriptor,
    Compression,
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    ConsumerFetchHandle,
    Error,
    FencedError,
    FileStore,
    GarbageCollector,
    MemoryStore,
    Metadata,
    NotFoundError,
    PipelinedConsumer,
    Producer,
    ProducerConfig,
    RawBatch,
    Receipt,
    StorageError,
    open_store,
)
from buffer.testing import FailBefore, FaultStore

NAMES = {
    # Parties, and what they hand out.
    *("Producer", "ProducerConfig", "ProducerStatistics", "WriteHandle", "DurabilityWatcher", "Receipt"),
    *("Consumer", "ConsumerConfig", "ConsumerFetchHandle"),
    *("PipelinedConsumer", "PipelineConfig", "PipelineStatistics", "WaitingFor", "Delivery"),
    *("BatchDescriptor", "ConsumedBatch", "RawBatch", "Metadata"),
    *("GarbageCollector", "Collection", "KeepReason"),
    # Stores.
    *("ObjectStore", "MemoryStore", "FileStore", "S3Store", "S3Config", "open_store"),
    *("verify_store", "VerificationReport"),
    # Bytes.
    *("encode_batch", "decode_batch", "Compression", "parse_manifest", "ManifestView"),
    # Components that are passed in.
    *("Clock", "CpuWorkers"),
    # Errors.
    *("Error", "StorageError", "NotFoundError", "PreconditionError", "AccessDeniedError"),
    *("UnknownOutcomeError", "FormatError", "InvalidInputError", "AckOrderError", "FencedError"),
    *("ClosedError", "QueueFullError"),
}

ERRORS = {
    "Error": "Exception",
    "StorageError": "Error",
    "NotFoundError": "StorageError",
    "PreconditionError": "StorageError",
    "AccessDeniedError": "StorageError",
    "UnknownOutcomeError": "StorageError",
    "FormatError": "Error",
    "InvalidInputError": "Error",
    "AckOrderError": "Error",
    "FencedError": "Error",
    "ClosedError": "Error",
    "QueueFullError": "Error",
}

CLASSES = sorted(name for name in NAMES if inspect.isclass(getattr(buffer, name, None)))
DATACLASSES = [name for name in CLASSES if dataclasses.is_dataclass(getattr(buffer, name))]


def test_exactly_these_names_are_exported() -> None:
    """A name appears or goes only on purpose."""
    assert set(buffer.__all__) == NAMES
    assert len(buffer.__all__) == len(NAMES)
    assert [name for name in NAMES if not hasattr(buffer, name)] == []


def test_no_name_shadows_one_of_pythons() -> None:
    """`from buffer import *` takes nothing away; Python has a `BufferError` of its own, for one."""
    assert set(buffer.__all__) & set(dir(builtins)) == set()


def test_errors_form_this_tree() -> None:
    """Who catches a class catches what the tree says; a wrong value is also a `ValueError`."""
    assert {name: getattr(buffer, name).__bases__[0].__name__ for name in ERRORS} == ERRORS
    assert {name for name in NAMES if name.endswith("Error")} == set(ERRORS)
    assert issubclass(buffer.InvalidInputError, ValueError)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_are_documented(name: str) -> None:
    """Every name has a docstring of its own."""
    documented = getattr(buffer, name)
    assert documented.__doc__ and not documented.__doc__.startswith(f"{name}("), name


@pytest.mark.parametrize("name", CLASSES)
def test_members_are_documented(name: str) -> None:
    """So has every public method and property that the library defines."""
    undocumented = [
        member
        for member, value in inspect.getmembers(getattr(buffer, name))
        if not member.startswith("_")
        and (isinstance(value, property) or inspect.isroutine(value))
        and (getattr(value, "__module__", None) or "buffer").startswith("buffer")
        and not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", DATACLASSES)
def test_values_and_settings_are_frozen_and_their_fields_documented(name: str) -> None:
    """Each field is explained in the docstring of the class, or in a string below it."""
    cls = getattr(buffer, name)
    assert cls.__dataclass_params__.frozen
    explained = set(fields_with_a_docstring(cls))
    fields = {field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")}
    assert {field for field in fields - explained if f"{field}: " not in cls.__doc__} == set()


def fields_with_a_docstring(cls: type) -> Iterator[str]:
    (statement,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(statement, ast.ClassDef)
    for field, below in zip(statement.body, statement.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str())):
                yield name


METADATA = (Metadata(0, 1_700_000_000_000, b"topic"),)
VALUES = [
    Receipt(4, "ingest/a.batch", 2),
    METADATA[0],
    BatchDescriptor(4, "ingest/a.batch", METADATA),
    ConsumedBatch((b"one", b""), 4, "ingest/a.batch", METADATA),
    RawBatch(b"bytes", 4, "ingest/a.batch", METADATA),
    ProducerConfig(batch_compression=Compression.ZSTD),
    ConsumerConfig(gc_interval=7.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_can_be_compared_hashed_and_sent_to_another_process(value: object) -> None:
    """They are equal by value, and what comes out of a pickle equals what went in."""
    there_and_back = pickle.loads(pickle.dumps(value))  # noqa: S301 - just pickled
    assert there_and_back == value == copy.copy(value)
    assert hash(there_and_back) == hash(value)


ERROR_FACTS = [
    StorageError("slow down", path="a/b", status=503, code="SlowDown", transient=True, retry_after=2.0),
    NotFoundError("gone", path="a/b", status=404, request_id="1F", sequence=4),
    FencedError("fenced", path="ingest/manifest", epoch=3, manifest_epoch=4),
    buffer.FormatError("too short", path="a/b", offset=7, sequence=4, location="a/b"),
    buffer.AckOrderError("out of order", sequence=5, expected=4),
    buffer.QueueFullError("full", path="ingest/manifest", size_bytes=11, limit_bytes=10),
]


@pytest.mark.parametrize("error", ERROR_FACTS, ids=lambda error: type(error).__name__)
def test_errors_carry_their_facts_as_attributes_also_across_processes(error: Error) -> None:
    """No caller has to read the sentence; a human who does finds the facts there too."""
    there_and_back = pickle.loads(pickle.dumps(error))  # noqa: S301 - just pickled
    assert type(there_and_back) is type(error)
    assert vars(there_and_back) == vars(error)
    assert str(there_and_back) == str(error)
    for name in error._facts:
        value = getattr(error, name)
        assert value is None or f"{name}={value!r}" in str(error)


def test_a_fact_is_told_once() -> None:
    """An error whose message quotes another one about the same object does not repeat its place."""
    cause = StorageError("slow down", path="a/b", status=503)
    assert (
        str(StorageError(f"given up: {cause}", path="a/b")) == "given up: slow down [path='a/b', status=503]"
    )
    assert str(StorageError(f"given up: {cause}", path="c")).endswith("status=503] [path='c']")


class Untouchable(MemoryStore):
    """A store that may be looked at, and must not be used."""

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name not in {"get", "put", "list", "delete", "aclose"}:
            return found

        def refuse(*_arguments: object, **_options: object) -> object:
            raise AssertionError(f"a constructor called {name}")

        return refuse


def test_constructors_do_nothing(tmp_path: Path) -> None:
    """Objects can be made outside of any event loop, and nothing happens until they are entered."""
    store = Untouchable()
    Producer(store)
    Consumer(store, last_acked_sequence=4).fetch_handle()
    ConsumerFetchHandle(store)
    PipelinedConsumer(store, last_acked_sequence=4).statistics()
    GarbageCollector(store, ConsumerConfig())
    FileStore(tmp_path / "store")
    open_store((tmp_path / "store").as_uri())
    assert list(tmp_path.iterdir()) == []


REFUSAL = FailBefore(AccessDeniedError("refused"))


async def leave_producer(store: FaultStore) -> None:
    store.inject("put", REFUSAL, times=None)
    async with Producer(store) as producer:
        await producer.produce([b"record"])


async def wait_for_receipt(store: FaultStore) -> None:
    store.inject("put", REFUSAL, times=None)
    async with Producer(store) as producer:
        handle = await producer.produce([b"record"])
        await handle.watcher.await_durable()


async def enter_consumer(store: FaultStore) -> None:
    store.inject("put", REFUSAL)
    async with Consumer(store):
        pass


async def leave_consumer(store: FaultStore) -> None:
    async with Producer(store) as producer:
        await producer.produce([b"record"])
    async with Consumer(store) as consumer:
        await consumer.next_batch()
        await consumer.ack(0)
        store.inject("put", REFUSAL)


async def collect(store: FaultStore) -> None:
    async with Consumer(store):
        store.inject("list", REFUSAL)
        await GarbageCollector(store, ConsumerConfig()).collect_once()


async def fail_in_the_body(store: FaultStore) -> None:
    async with Producer(store), Consumer(store):
        raise AccessDeniedError("refused")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "fail",
    [leave_producer, wait_for_receipt, enter_consumer, leave_consumer, collect, fail_in_the_body],
    ids=lambda fail: fail.__name__,
)
async def test_a_single_failure_leaves_as_itself(fail: Callable[[FaultStore], Awaitable[None]]) -> None:
    """Whatever tasks are at work inside, a caller never meets an exception group."""
    with pytest.raises(AccessDeniedError, match="refused") as raised:
        await fail(FaultStore(MemoryStore()))
    assert type(raised.value) is AccessDeniedError
