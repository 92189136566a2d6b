"""The parts of the simulated world that its findings stand on: stopped processes, the network, the book of rules."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import anyio
import pytest

from buffer.errors import PreconditionError, StorageError
from buffer.format import ManifestView, NewEntry
from buffer.store.base import CREATE, Match
from buffer.testing.faults import FaultStore
from buffer.testing.world.clocks import NodeClock
from buffer.testing.world.dice import Dice
from buffer.testing.world.history import History
from buffer.testing.world.ledger import SENDER, Ledger
from buffer.testing.world.loop import NODE, Freezer, run_world
from buffer.testing.world.weather import Weather
from buffer.testing.world.wire import Network, Wire

T = TypeVar("T")
MANIFEST = "q/manifest"


def in_world(main: Callable[[Freezer], Awaitable[T]]) -> T:
    return run_world(main, seed=1)


def test_a_frozen_node_takes_no_step_until_it_is_thawed() -> None:
    """Its timers expire without it, and it finds that out when it goes on; others are not held up."""

    async def main(freezer: Freezer) -> list[tuple[str, float]]:
        steps: list[tuple[str, float]] = []

        async def tick(node: str) -> None:
            NODE.set(node)
            for _ in range(3):
                await anyio.sleep(1.0)
                steps.append((node, anyio.current_time()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick, "stopped")
            tasks.start_soon(tick, "other")
            await anyio.sleep(1.5)
            freezer.freeze("stopped")
            await anyio.sleep(10.0)
            freezer.thaw("stopped")
        return steps

    steps = in_world(main)
    assert [at for node, at in steps if node == "other"] == [1.0, 2.0, 3.0]
    assert [at for node, at in steps if node == "stopped"] == [1.0, 11.5, 12.5]


def test_tasks_run_in_another_order_for_another_seed() -> None:
    """The order of ready tasks is chosen by the seed, and by nothing else."""

    async def main(freezer: Freezer) -> tuple[int, ...]:
        order: list[int] = []

        async def step(number: int) -> None:
            order.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(step, number)
        return tuple(order)

    orders = [run_world(main, seed=seed) for seed in range(20)]
    assert len(set(orders)) > 5
    assert orders == [run_world(main, seed=seed) for seed in range(20)]


def world_of(main: Callable[[Ledger, Network], Awaitable[T]], history: History) -> T:
    async def with_network(freezer: Freezer) -> T:
        ledger = Ledger(history, NodeClock(), MANIFEST, on_new_queue=lambda: None)
        async with anyio.create_task_group() as tasks:
            weather = Weather(
                dice=Dice(1),
                manifest_path=MANIFEST,
                now=anyio.current_time,
                rates={},
                outages=(),
                only=None,
                longest=1.0,
                longest_listing=1.0,
                longest_late=1.0,
                tasks=tasks,
            )
            store = FaultStore(ledger, rng=random.Random(1), chaos=weather)
            network = Network(
                store=store,
                weather=weather,
                dice=Dice(1),
                tasks=tasks,
                latency=1.0,
                manifest_path=MANIFEST,
                witnesses=ledger.witnesses,
            )
            return await main(ledger, network)
        raise AssertionError("unreachable")

    return in_world(with_network)


def test_a_write_arrives_although_its_node_has_given_up() -> None:
    """Cancelling a call does not call the request back."""

    async def main(ledger: Ledger, network: Network) -> None:
        with anyio.move_on_after(0.001) as scope:
            await Wire(network, "a").put("q/x.batch", b"")
        assert scope.cancelled_caught
        await anyio.sleep(5.0)
        assert ledger.garbage() == ["q/x.batch"]

    world_of(main, History())


def test_nothing_comes_from_a_dead_node() -> None:
    """What it had sent before still arrives."""

    async def main(ledger: Ledger, network: Network) -> None:
        wire = Wire(network, "a")
        with anyio.move_on_after(0.001):
            await wire.put("q/before.batch", b"")
        network.dead.add("a")
        with pytest.raises(StorageError):
            await wire.put("q/after.batch", b"")
        await anyio.sleep(5.0)
        assert ledger.garbage() == ["q/before.batch"]

    world_of(main, History())


def test_a_conditional_write_is_refused_through_the_wire() -> None:
    """The network changes when things happen, not what they mean."""

    async def main(ledger: Ledger, network: Network) -> None:
        wire = Wire(network, "a")
        etag = await wire.put("q/x", b"1", CREATE)
        await wire.put("q/x", b"2", Match(etag))
        with pytest.raises(PreconditionError):
            await wire.put("q/x", b"3", Match(etag))

    world_of(main, History())


def written(*steps: tuple[str, ManifestView | bytes], processed: Collection[int] = ()) -> list[str]:
    """Return the rules that are broken when these nodes write these manifests, one after the other."""
    history = History()

    async def main(ledger: Ledger, network: Network) -> None:
        ledger.sink.processed.update(processed)
        await ledger.put("q/a.batch", b"\x00\x00\x00\x00\x00\x01\x00")
        await ledger.put("q/b.batch", b"\x00\x00\x00\x00\x00\x01\x00")
        for node, manifest in steps:
            SENDER.set(node)
            await ledger.put(MANIFEST, manifest if isinstance(manifest, bytes) else manifest.data)
        history.note("world", "end")

    world_of(main, history)
    return [violation.rule for violation in history.violations]


EMPTY = ManifestView.empty()
ONE = EMPTY.append([NewEntry("q/a.batch", ())])
TWO = ONE.append([NewEntry("q/b.batch", ())])
HELD = TWO.with_epoch(1)


@pytest.mark.parametrize(
    ("steps", "processed", "rule"),
    [
        ((("p", b"torn"),), (), "only well-formed manifests are written"),
        (
            (("p", EMPTY.append([NewEntry("q/z.batch", ())])),),
            (),
            "nothing is enqueued before it is stored, or after it is gone",
        ),
        ((("p", ONE), ("p", ONE.append([NewEntry("q/a.batch", ())]))), (), "no location twice"),
        ((("p", TWO), ("p", ONE)), (), "entries stay as they are until they leave from the front"),
        ((("p", TWO), ("c", HELD), ("d", HELD.dequeue(0))), (0,), "only the holder of the queue dequeues"),
        ((("p", TWO), ("c", HELD), ("c", HELD.dequeue(1))), (0,), "nothing is acked that was not done"),
        ((("p", ONE), ("p", TWO.with_epoch(5))), (), "one write has one purpose"),
        ((("p", TWO), ("c", HELD), ("c", EMPTY.with_epoch(1))), (0, 1), "sequences have no gaps"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_ledger_notices(
    steps: tuple[tuple[str, ManifestView | bytes], ...], processed: tuple[int, ...], rule: str
) -> None:
    """Each rule of the queue is noticed in the moment in which a write breaks it."""
    assert rule in written(*steps, processed=processed)


def test_the_ledger_accepts_what_is_right() -> None:
    """Appending, taking over and dequeuing what was processed break no rule."""
    assert written(("p", ONE), ("p", TWO), ("c", HELD), ("c", HELD.dequeue(1)), processed={0, 1}) == []


def test_the_ledger_notices_that_something_needed_is_deleted() -> None:
    """An object that an entry names may not go."""
    history = History()

    async def main(ledger: Ledger, network: Network) -> None:
        await ledger.put("q/a.batch", b"\x00\x00\x00\x00\x00\x01\x00")
        await ledger.put(MANIFEST, ONE.data)
        await ledger.delete(["q/a.batch"])

    world_of(main, history)
    assert [violation.rule for violation in history.violations] == ["nothing referenced is deleted"]


def test_dice_are_the_same_everywhere() -> None:
    """The numbers of a name are fixed for good: seeds that are written down keep their meaning."""
    first = Dice(7).numbers("p0.1#3")
    assert first == Dice(7).numbers("p0.1#3") != Dice(8).numbers("p0.1#3")
    assert first == pytest.approx(
        (0.9970104268778075, 0.4218237047501104, 0.7754639341908299, 0.3024045696875048)
    )
