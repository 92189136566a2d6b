"""A store that fails on demand: by a script, or at random from a seed."""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from buffer.errors import Error, InvalidInputError, NotFoundError, StorageError
from buffer.store.base import (
    OVERWRITE,
    ByteRange,
    GetResult,
    ListPage,
    ObjectStore,
    PutMode,
    Suffix,
)
from buffer.store.forwarding import ForwardingStore
from buffer.store.rules import not_found, part_bounds
from buffer.testing.calls import Call, Operation
from buffer.testing.fault_kinds import (
    ApplyLate,
    CutBody,
    Delay,
    FailAfter,
    FailBefore,
    Fault,
    FaultSource,
    IgnoreCondition,
    ListShape,
    MissingAs,
    RefuseKeys,
    StaleRead,
)

__all__ = ["FaultStore", "Injection"]

T = TypeVar("T")
_REMEMBERED_CALLS: Final = 10_000
_REMEMBERED_WRITES: Final = 8


class Injection:
    """A fault that waits for its calls.

    Attributes:
        fault: What happens to them.
        hits: How many it has happened to.
    """

    def __init__(
        self, fault: Fault, operation: Operation, key: str | None, times: int | None, skip: int
    ) -> None:
        self.fault = fault
        self.hits = 0
        self._operation: Operation = operation
        self._key = key
        self._times = times
        self._skip = skip

    def takes(self, call: Call) -> bool:
        """Tell whether this call gets the fault, and count it if so."""
        if not call.concerns(self._operation, self._key) or self.hits == self._times:
            return False
        if self._skip:
            self._skip -= 1
            return False
        self.hits += 1
        return True


class FaultStore(ForwardingStore):
    """Passes calls on to another store, except for those that are to fail.

    Without faults it is as good a store as the inner one. Time is the event loop's.

    Args:
        inner: The store that does the work.
        rng: Source of all random decisions; by default one that always starts the same.
        chaos: Faults for calls that no injected fault takes, such as `Chaos`; may be set and cleared at any time.

    Attributes:
        requests: Number of calls by operation and key, also of those that failed; a `delete` counts for each key.
        calls: The last 10,000 calls.
        late: How each `ApplyLate` ended, in order: None if it was applied, or the error that it met.
    """

    def __init__(
        self, inner: ObjectStore, *, rng: random.Random | None = None, chaos: FaultSource | None = None
    ) -> None:
        super().__init__(inner)
        self._rng = rng or random.Random(0)
        self.chaos: FaultSource | None = chaos
        self.requests: Counter[tuple[Operation, str]] = Counter()
        self.calls: deque[Call] = deque(maxlen=_REMEMBERED_CALLS)
        self.late: deque[Error | None] = deque(maxlen=_REMEMBERED_CALLS)
        self._injections: deque[Injection] = deque()
        self._history: dict[str, deque[GetResult | None]] = {}
        self._intervals: dict[str, float] = {}
        self._free_at: dict[str, float] = {}

    def inject(
        self,
        operation: Operation,
        fault: Fault,
        *,
        key: str | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> Injection:
        """Let the next calls of an operation fail. Of several faults, a call gets the one injected first.

        Args:
            operation: Which calls.
            fault: What happens to them.
            key: Key, or prefix of a `list`, that they must have; None takes any.
            times: How many calls; None goes on for ever.
            skip: Number of such calls that pass before.

        Raises:
            InvalidInputError: The operation cannot fail like this.
        """
        if operation not in fault.operations:
            raise InvalidInputError(f"{type(fault).__name__} is no fault of a {operation}")
        injection = Injection(fault, operation, key, times, skip)
        self._injections.append(injection)
        return injection

    def clear(self) -> None:
        """Remove all faults, random ones and rate limits too; what is under way goes on."""
        self.chaos = None
        self._injections.clear()
        self._intervals.clear()

    def limit_writes(self, key: str, interval: float) -> None:
        """Refuse writes of a key that come less than `interval` seconds after the last that was let through.

        They raise a transient error with status 429 and a `retry_after` of the time that is left.
        """
        self._intervals[key] = interval

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        call = Call("get", (key,), part=part, if_none_match=if_none_match)
        fault = self._next_fault(call)

        async def apply() -> GetResult | None:
            if isinstance(fault, StaleRead):
                return await self._stale(call, fault.writes)
            try:
                result = await self._inner.get(key, part=part, if_none_match=if_none_match)
            except NotFoundError as exc:
                if isinstance(fault, MissingAs):
                    raise _own(fault.error, call) from exc
                raise
            if result is not None and part is None:
                self._history.setdefault(key, deque([result], maxlen=_REMEMBERED_WRITES + 1))
            if result is not None and isinstance(fault, CutBody):
                body = result.body[: fault.at]
                return GetResult(body=body, etag=result.etag, size_bytes=len(body))
            return result

        return await self._perform(call, fault, apply)

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        call = Call("put", (key,), mode=mode)
        fault = self._next_fault(call)

        async def apply() -> str:
            etag = await self._inner.put(key, body, OVERWRITE if isinstance(fault, IgnoreCondition) else mode)
            self._remember(key, GetResult(body=body, etag=etag, size_bytes=len(body)))
            return etag

        return await self._perform(call, fault, apply)

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        call = Call("list", (prefix,))
        return _FaultyListing(self._inner.list(prefix), call, self._next_fault(call), self._rng)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        call = Call("delete", tuple(keys))
        fault = self._next_fault(call)

        async def apply() -> Mapping[str, StorageError]:
            refused = fault.errors if isinstance(fault, RefuseKeys) else {}
            failed = dict(await self._inner.delete([key for key in keys if key not in refused]))
            for key in keys:
                if key in refused:
                    failed[key] = refused[key]
                elif key not in failed:
                    self._remember(key, None)
            return failed

        return await self._perform(call, fault, apply)

    def _next_fault(self, call: Call) -> Fault | None:
        self.calls.append(call)
        self.requests.update((call.operation, key) for key in call.keys)
        for injection in self._injections:
            if injection.takes(call):
                return injection.fault
        if call.operation == "put" and call.keys[0] in self._intervals:
            return self._throttled(call.keys[0])
        return None if self.chaos is None else self.chaos.pick(call, self._rng)

    def _throttled(self, key: str) -> Fault | None:
        now = anyio.current_time()
        left = self._free_at.get(key, now) - now
        if left <= 0:
            self._free_at[key] = now + self._intervals[key]
            return None
        return FailBefore(
            StorageError(
                "too many writes of one object",
                status=429,
                code="TooManyRequests",
                transient=True,
                retry_after=left,
            )
        )

    async def _perform(self, call: Call, fault: Fault | None, apply: Callable[[], Awaitable[T]]) -> T:
        match fault:
            case FailBefore(error):
                await checkpoint()
                raise _own(error, call)
            case FailAfter(error):
                await apply()
                raise _own(error, call)
            case ApplyLate(seconds, tasks, error):
                tasks.start_soon(self._apply_late, seconds, apply)
                await checkpoint()
                raise _own(error, call)
            case Delay(seconds):
                await anyio.sleep(seconds)
                return await apply()
            case _:
                return await apply()

    async def _apply_late(self, seconds: float, apply: Callable[[], Awaitable[object]]) -> None:
        await anyio.sleep(seconds)
        try:
            await apply()
        except Error as exc:
            # Nobody waits for this call any more; the test can look at what became of it.
            self.late.append(exc)
        else:
            self.late.append(None)

    def _remember(self, key: str, state: GetResult | None) -> None:
        history = self._history.setdefault(key, deque([None], maxlen=_REMEMBERED_WRITES + 1))
        history.append(state)

    async def _stale(self, call: Call, writes: int) -> GetResult | None:
        await checkpoint()
        key = call.keys[0]
        history = self._history.get(key, deque([None]))
        state = history[max(0, len(history) - 1 - writes)]
        if state is None:
            raise not_found(key)
        if state.etag == call.if_none_match:
            return None
        start, end = part_bounds(key, call.part, state.size_bytes)
        return GetResult(body=state.body[start:end], etag=state.etag, size_bytes=state.size_bytes)


class _FaultyListing(AsyncIterator[ListPage]):
    def __init__(
        self, pages: AsyncIterator[ListPage], call: Call, fault: Fault | None, rng: random.Random
    ) -> None:
        self._pages = pages
        self._call = call
        self._fault = fault
        self._rng = rng
        self._begun = False
        self._reshaped: deque[ListPage] | None = None

    async def __anext__(self) -> ListPage:
        if not self._begun:
            self._begun = True
            await self._begin()
        if self._reshaped is not None:
            return await self._next_reshaped(self._reshaped)
        try:
            return await anext(self._pages)
        except StopAsyncIteration:
            if isinstance(self._fault, FailAfter):
                raise _own(self._fault.error, self._call) from None
            raise

    async def _begin(self) -> None:
        match self._fault:
            case FailBefore(error):
                await checkpoint()
                raise _own(error, self._call)
            case Delay(seconds):
                await anyio.sleep(seconds)
            case ListShape() as shape:
                self._reshaped = deque(_reshape([page async for page in self._pages], shape, self._rng))

    async def _next_reshaped(self, pages: deque[ListPage]) -> ListPage:
        await checkpoint()
        if pages:
            return pages.popleft()
        if isinstance(self._fault, ListShape) and self._fault.error is not None:
            raise _own(self._fault.error, self._call)
        raise StopAsyncIteration


def _reshape(pages: Sequence[ListPage], shape: ListShape, rng: random.Random) -> Sequence[ListPage]:
    objects = [meta for page in pages for meta in page.objects]
    if shape.order == "reversed":
        objects.reverse()
    elif shape.order == "shuffled":
        rng.shuffle(objects)
    size = shape.page_size or max(1, len(objects))
    cut = [objects[at : at + size] for at in range(0, max(1, len(objects)), size)]
    if shape.repeat:
        cut.append(cut[0])
    now_ms = pages[-1].now_ms if pages else None
    return [ListPage(objects=page, now_ms=now_ms) for page in cut[: shape.pages]]


def _own(error: Exception, call: Call) -> Exception:
    """Return a copy for this call: one exception raised twice would collect both tracebacks."""
    own = copy.copy(error)
    if isinstance(own, StorageError) and own.path is None and call.operation != "list":
        own.path = call.keys[0] if len(call.keys) == 1 else None
    return own
