"""The network between a node and the store: requests travel, have their effect, and are answered.

Owns: what is on its way. Does not own: what happens on arrival (`FaultStore`, then `Ledger`).

A write that has left its node is out of its hands: it arrives also if the node has given up on it, has been
stopped, or is dead. Only the answer then finds nobody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from buffer.errors import Error, StorageError
from buffer.store.base import OVERWRITE, ByteRange, GetResult, ListPage, PutMode, Suffix
from buffer.store.forwarding import ForwardingStore
from buffer.testing.faults import FaultStore
from buffer.testing.world.dice import Dice
from buffer.testing.world.ledger import SENDER
from buffer.testing.world.loop import outside
from buffer.testing.world.weather import Weather

__all__ = ["Network", "Wire"]

T = TypeVar("T")


@dataclass(slots=True)
class Network:
    """What all wires share.

    Attributes:
        store: What fails on demand.
        weather: Chooses who fails.
        dice: Source of travel times.
        tasks: Where requests travel.
        latency: Seconds that one way takes about.
        manifest_path: Key of the manifest.
        witnesses: Nodes that know that there is a manifest.
        dead: Nodes from which nothing comes any more.
    """

    store: FaultStore
    weather: Weather
    dice: Dice
    tasks: TaskGroup
    latency: float
    manifest_path: str
    witnesses: set[str]
    dead: set[str] = field(default_factory=set)


class _Answer(Generic[T]):
    """Where a node waits for what the network brings."""

    def __init__(self) -> None:
        self._arrived = anyio.Event()
        self._result: list[T] = []
        self._error: Error | None = None

    def give(self, result: T) -> None:
        self._result.append(result)
        self._arrived.set()

    def fail(self, error: Error) -> None:
        self._error = error
        self._arrived.set()

    async def wait(self) -> T:
        await self._arrived.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


class Wire(ForwardingStore):
    """One node's `ObjectStore`.

    Args:
        network: What it leads to.
        node: Whose it is.
    """

    def __init__(self, network: Network, node: str) -> None:
        super().__init__(network.store)
        self._network = network
        self._node = node
        self._calls = 0

    async def _get(
        self, key: str, part: ByteRange | Suffix | None, if_none_match: str | None
    ) -> GetResult | None:
        number, there, back = self._begin()
        await _travel(there)
        self._network.weather.announce(self._node, number)
        try:
            found = await self._inner.get(key, part=part, if_none_match=if_none_match)
        finally:
            await _travel(back)
        self._saw(key)
        return found

    async def put(self, key: str, body: bytes, mode: PutMode = OVERWRITE) -> str:
        """See `ObjectStore.put`."""
        etag = await self._send(lambda: self._inner.put(key, body, mode))
        self._saw(key)
        return etag

    def list(self, prefix: str) -> AsyncIterator[ListPage]:
        """See `ObjectStore.list`."""
        return _Listing(self, prefix)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StorageError]:
        """See `ObjectStore.delete`."""
        return await self._send(lambda: self._inner.delete(keys))

    async def aclose(self) -> None:
        """Do nothing: the store is every node's."""
        await anyio.lowlevel.checkpoint()

    def _saw(self, key: str) -> None:
        if key == self._network.manifest_path:
            self._network.witnesses.add(self._node)

    def _begin(self) -> tuple[int, float, float]:
        """Count a call and return its number and the seconds of its way there and back."""
        if self._node in self._network.dead:
            raise StorageError(f"{self._node} is dead")
        self._calls += 1
        first, second, _, _ = self._network.dice.numbers(f"{self._node}~{self._calls}")
        seconds = self._network.latency * (1 + first * 2)
        # All on one way: half the steps, and what can happen on either way still does.
        return (self._calls, seconds, 0.0) if second < 0.5 else (self._calls, 0.0, seconds)

    async def _send(self, apply: Callable[[], Awaitable[T]]) -> T:
        number, there, back = self._begin()
        answer = _Answer[T]()
        with outside():
            self._network.tasks.start_soon(self._carry, number, there, back, apply, answer)
        return await answer.wait()

    async def _carry(
        self, number: int, there: float, back: float, apply: Callable[[], Awaitable[T]], answer: _Answer[T]
    ) -> None:
        SENDER.set(self._node)
        await _travel(there)
        self._network.weather.announce(self._node, number)
        try:
            result = await apply()
        except Error as exc:
            await _travel(back)
            answer.fail(exc)
        else:
            await _travel(back)
            answer.give(result)


async def _travel(seconds: float) -> None:
    if seconds:
        await anyio.sleep(seconds)


class _Listing(AsyncIterator[ListPage]):
    """One request for each page."""

    def __init__(self, wire: Wire, prefix: str) -> None:
        self._wire = wire
        self._prefix = prefix
        self._pages: AsyncIterator[ListPage] | None = None

    async def __anext__(self) -> ListPage:
        network, node = self._wire._network, self._wire._node
        number, there, back = self._wire._begin()
        await _travel(there)
        if self._pages is None:
            network.weather.announce(node, number)
            self._pages = network.store.list(self._prefix)
        try:
            return await anext(self._pages)
        finally:
            await _travel(back)
