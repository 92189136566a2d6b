"""A store whose calls stop where a test wants them to, until the test lets them go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import anyio

from buffer.errors import StorageError
from buffer.store.base import OVERWRITE, ByteRange, GetResult, ListPage, ObjectStore, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore
from buffer.testing.calls import Call, Operation

__all__ = ["GatedStore", "HeldCall", "Side"]

T = TypeVar("T")

Side: TypeAlias = Literal["before", "after"]
"""Whether a call stops before it has any effect, or with its effect made and its answer not yet given."""


class HeldCall:
    """A call that stands at a gate.

    Attributes:
        call: The call.
        side: On which side of its effect it stands.
    """

    def __init__(self, call: Call, side: Side) -> None:
        self.call = call
        self.side = side
        self._go = anyio.Event()
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<HeldCall {self.side} {self.call!r}>"

    def release(self) -> None:
        """Let the call go on."""
        self._go.set()

    def fail(self, error: Exception) -> None:
        """Let the call raise this instead of going on."""
        self._error = error
        self._go.set()

    async def _wait(self) -> None:
        await self._go.wait()
        if self._error is not None:
            raise self._error


class GatedStore(ForwardingStore):
    """Passes every call on to another store, and stops those that a predicate selects.

    To see what a cancelled call leaves behind, hold it `before` (nothing was done) or `after` (all was done, but
    nobody was told), wait until it stands there, and cancel its task. A listing is one call, which stops before
    its first page and after its last.

    Args:
        inner: The store that does the work.
        before: Selects the calls to stop before they have an effect. By default all, unless `after` is given.
        after: Selects the calls to stop after they have had it.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        before: Callable[[Call], bool] | None = None,
        after: Callable[[Call], bool] | None = None,
    ) -> None:
        super().__init__(inner)
        self.before = before
        self.after = after
        if before is None and after is None:
            self.before = _every
        self._waiting: list[HeldCall] = []
        self._changed = anyio.Event()

    @property
    def waiting(self) -> Sequence[HeldCall]:
        """The calls that stand at a gate now, in the order in which they came there."""
        return tuple(self._waiting)

    async def wait_for(
        self, operation: Operation | None = None, key: str | None = None, *, side: Side | None = None
    ) -> HeldCall:
        """Wait until such a call stands at a gate, and return it; the first, if there are several."""
        while True:
            for held in self._waiting:
                if held.call.concerns(operation, key) and side in {None, held.side}:
                    return held
            await self._changed.wait()

    def open(self) -> None:
        """Release all waiting calls and stop no more."""
        self.before = self.after = None
        for held in self._waiting:
            held.release()

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        call = Call("get", (key,), part=part, if_none_match=if_none_match)
        return await self._pass(call, lambda: self._inner.get(key, part=part, if_none_match=if_none_match))

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        return await self._pass(Call("put", (key,), mode=mode), lambda: self._inner.put(key, body, mode))

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return _GatedListing(self._inner.list(prefix), self._hold, Call("list", (prefix,)))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        return await self._pass(Call("delete", tuple(keys)), lambda: self._inner.delete(keys))

    async def _pass(self, call: Call, apply: Callable[[], Awaitable[T]]) -> T:
        await self._hold(call, "before")
        result = await apply()
        await self._hold(call, "after")
        return result

    async def _hold(self, call: Call, side: Side) -> None:
        selects = self.before if side == "before" else self.after
        if selects is None or not selects(call):
            return
        held = HeldCall(call, side)
        self._waiting.append(held)
        self._changed.set()
        self._changed = anyio.Event()
        try:
            await held._wait()
        finally:
            self._waiting.remove(held)


class _GatedListing(AsyncIterator[ListPage]):
    def __init__(
        self,
        pages: AsyncIterator[ListPage],
        hold: Callable[[Call, Side], Awaitable[None]],
        call: Call,
    ) -> None:
        self._pages = pages
        self._hold = hold
        self._call = call
        self._begun = False

    async def __anext__(self) -> ListPage:
        if not self._begun:
            self._begun = True
            await self._hold(self._call, "before")
        try:
            return await anext(self._pages)
        except StopAsyncIteration:
            await self._hold(self._call, "after")
            raise


def _every(call: Call) -> bool:
    return True
