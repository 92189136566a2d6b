"""One world from its seed to its verdict.

Owns: the processes, when they start, what happens to them, and when the storm ends.
Does not own: what they do (`producers`, `consumers`), what fails (`weather`), what is right (`ledger`, `sink`).

A world has two parts. In the storm everything may fail. Then the weather clears, one consumer is left, and the
promises of liveness fall due: every call has an outcome, the queue runs empty, the garbage goes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
from anyio.abc import TaskGroup

from buffer.config import ConsumerConfig
from buffer.testing.faults import FaultStore
from buffer.testing.world.clocks import NodeClock
from buffer.testing.world.consumers import ConsumingApp, collect_alone
from buffer.testing.world.dice import Dice
from buffer.testing.world.history import History
from buffer.testing.world.ledger import Ledger
from buffer.testing.world.loop import Freezer
from buffer.testing.world.node import Node
from buffer.testing.world.pipelines import PipelinedApp
from buffer.testing.world.plan import MODES, Action, ConsumerMode, Plan
from buffer.testing.world.producers import Call, ProducingApp
from buffer.testing.world.scene import Scene
from buffer.testing.world.weather import Weather
from buffer.testing.world.wire import Network

__all__ = ["World"]

_LIVENESS_SECONDS = 150.0
_LOOK_SECONDS = 1.0


class World:
    """Nodes, a network, and one store.

    Args:
        seed: Chooses everything that the plan leaves open.
        plan: What there is, and what will happen.
        only: Names of the faults and actions that may happen; None allows all.
        freezer: What stops nodes.
    """

    def __init__(self, seed: int, plan: Plan, *, only: frozenset[str] | None, freezer: Freezer) -> None:
        self._seed = seed
        self._plan = plan
        self._only = only
        self._freezer = freezer
        self._over = anyio.CancelScope()
        self.history = History(on_violation=self._over.cancel)
        self.clocks = {slot: NodeClock(offset) for slot, offset in plan.offsets.items()}
        self.ledger = Ledger(
            self.history,
            self.clocks["store"],
            plan.consumer.manifest_path,
            on_new_queue=self._begin_anew,
        )
        self.calls: list[Call] = []
        self.acted: dict[str, str] = {}
        self.weather: Weather
        self._network: Network
        self._running: dict[str, Node] = {}
        self._dead: list[Node] = []
        self._back_at = self._quiet_until = 0.0
        self._calm = self._finished = False

    async def run(self) -> None:
        """Live through it; afterwards `history` has the violations."""
        plan, dice = self._plan, Dice(self._seed)
        async with anyio.create_task_group() as tasks:
            self.weather = Weather(
                dice=dice,
                manifest_path=plan.consumer.manifest_path,
                now=anyio.current_time,
                rates=plan.rates,
                outages=plan.outages,
                only=self._only,
                longest=plan.longest,
                longest_listing=plan.longest_listing,
                longest_late=plan.longest_late,
                tasks=tasks,
            )
            store = FaultStore(self.ledger, rng=random.Random(self._seed), chaos=self.weather)
            if plan.write_interval:
                store.limit_writes(plan.consumer.manifest_path, plan.write_interval)
            self._network = Network(
                store=store,
                weather=self.weather,
                dice=dice,
                tasks=tasks,
                latency=plan.latency,
                manifest_path=plan.consumer.manifest_path,
                witnesses=self.ledger.witnesses,
            )
            with self._over:
                await self._live(tasks)
                store.clear()
            for node in [*self._dead, *self._running.values()]:
                node.dead = True
                self._network.dead.add(node.name)
                node.clear_away()
            tasks.cancel_scope.cancel()

    async def _live(self, tasks: TaskGroup) -> None:
        plan = self._plan
        scene = self._scene(lambda: self._calm, handling=plan.handling, config=plan.consumer)
        for number in range(len(plan.producers)):
            tasks.start_soon(self._slot, tasks, f"p{number}", self._producing(number))
        for number, mode in enumerate(plan.modes):
            tasks.start_soon(self._slot, tasks, f"c{number}", partial(_consume, scene, mode))
        if plan.lone_collector:
            tasks.start_soon(self._slot, tasks, "g", partial(_collect, scene))
        for action in plan.actions:
            if self._only is None or action.name in self._only:
                tasks.start_soon(self._act, action)
        await anyio.sleep(plan.seconds)

        self.history.note("world", "the weather clears")
        self._calm = self.weather.clear = True
        if self.ledger.manifest_lost:
            await anyio.sleep(30.0)
            return
        for name, node in sorted(self._running.items()):
            if name.startswith("c"):
                self._freezer.thaw(node.name)
                node.cancel()
        tasks.start_soon(self._last_consumers, tasks)
        await self._within(_LIVENESS_SECONDS, self._is_done, "everything ends once the faults do")
        await self._collected()
        self._finished = True
        await self._within(30.0, lambda: "z" not in self._running, "a consumer that is told to stop stops")

    def _begin_anew(self) -> None:
        """Somebody has begun a new queue in the place of a lost one, of which this world's rules know nothing."""
        self.history.close()
        self._over.cancel()

    async def _within(self, seconds: float, condition: Callable[[], bool], rule: str) -> None:
        with anyio.move_on_after(seconds):
            while not condition():  # noqa: ASYNC110 - about the whole world, which tells nobody when it changes
                await anyio.sleep(_LOOK_SECONDS)
            return
        self.history.violate(rule, f"not within {seconds:g} s: {self._state()}")

    def _state(self) -> str:
        pending = Counter(c.node.name for c in self.calls if not (c.receipt or c.error or c.node.dead))
        return (
            f"{len(self.ledger.entries)} entries, processed through {self.ledger.sink.through}, calls pending {dict(pending)}, "
            f"running {sorted(node.name for node in self._running.values())}"
        )

    def _is_done(self) -> bool:
        producing = [slot for slot in self._running if slot.startswith("p")]
        return not producing and not self.ledger.entries

    async def _collected(self) -> None:
        """Wait until nothing is left that the collector should have taken."""
        consumer = self._plan.consumer
        ahead = max(0.0, *self._plan.offsets.values())
        if abs(self.clocks["store"].offset) > consumer.gc_grace_period / 2:
            # The collector sees that it cannot trust the store's clock, or its own, and deletes nothing.
            return
        patience = consumer.gc_grace_period + 4 * consumer.gc_interval + 2 * ahead + 130.0
        await self._within(patience, lambda: not self.ledger.garbage(), "garbage goes in the end")

    def _producing(self, number: int) -> Callable[[Node], Awaitable[None]]:
        def app(node: Node) -> Awaitable[None]:
            plan = self._plan
            return ProducingApp(
                node,
                plan.producers[number],
                calls=plan.calls,
                calls_made=self.calls,
                ledger=self.ledger,
                history=self.history,
                stopping=lambda: self._calm,
                quiet_until=lambda: self._quiet_until,
                pause=plan.seconds / plan.calls * 0.8,
            ).run()

        return app

    def _scene(self, stopping: Callable[[], bool], *, handling: float, config: ConsumerConfig) -> Scene:
        return Scene(
            config=config,
            ledger=self.ledger,
            history=self.history,
            stopping=stopping,
            misled=lambda node: node in self.weather.misled,
            handling=handling,
        )

    async def _slot(self, tasks: TaskGroup, slot: str, app: Callable[[Node], Awaitable[None]]) -> None:
        """Run one process after the other, as a supervisor does, while the storm lasts."""
        rng = random.Random(f"{self._seed} slot {slot}")
        await anyio.sleep(rng.uniform(0.0, 1.0))
        number = 0
        while not (self._calm or self.ledger.manifest_lost):
            number += 1
            node = self._start(slot, number)
            tasks.start_soon(node.run, partial(app, node))
            await node.ended.wait()
            if self._running.get(slot) is node:
                del self._running[slot]
            await anyio.sleep(rng.uniform(0.2, self._plan.restart))
            if slot.startswith("c"):
                await anyio.sleep_until(min(self._back_at, self._plan.seconds))

    async def _last_consumers(self, tasks: TaskGroup) -> None:
        """Keep a consumer running: the fence of one from the storm may still be on its way."""
        config = replace(self._plan.consumer, manifest_timeout=60.0)
        scene = self._scene(lambda: self._finished, handling=0.0, config=config)
        for number in range(1, 1_000):
            node = self._start("z", number)
            tasks.start_soon(node.run, partial(_consume, scene, node.rng.choice(MODES), node))
            await node.ended.wait()
            if self._finished:
                del self._running["z"]
                return
            await anyio.sleep(1.0)

    def _start(self, slot: str, number: int) -> Node:
        name = f"{slot}.{number}"
        node = Node(
            name,
            network=self._network,
            history=self.history,
            freezer=self._freezer,
            clock=self.clocks.get(slot) or NodeClock(),
            rng=random.Random(f"{self._seed} node {name}"),
        )
        self._running[slot] = node
        return node

    async def _drained(self) -> None:
        """Wait until the consumers have done everything, or for a while, and let producers be quiet until later."""
        self._quiet_until = anyio.current_time() + 8.0
        with anyio.move_on_after(5.0):
            while self.ledger.entries:  # noqa: ASYNC110 - as above
                await anyio.sleep(_LOOK_SECONDS / 20)
        self._quiet_until = anyio.current_time() + 3.0

    def _kill(self, node: Node) -> None:
        node.kill()
        self._dead.append(node)

    async def _act(self, action: Action) -> None:
        await anyio.sleep(action.at)
        self.acted[action.name] = action.kind
        if action.kind == "lose manifest":
            await self.ledger.lose_manifest()
            return
        if action.kind == "away":
            await self._drained()
            self._back_at = anyio.current_time() + action.value
            for slot in [slot for slot in self._running if slot.startswith(action.slot)]:
                self._kill(self._running[slot])
            return
        node = self._running.get(action.slot)
        if node is None:
            return
        match action.kind:
            case "kill":
                self._kill(node)
            case "pause":
                await node.pause(action.value)
            case "cancel":
                node.cancel()
            case "step":
                node.clock.offset += action.value
                node.note("clock steps", action.value)


async def _consume(scene: Scene, mode: ConsumerMode, node: Node) -> None:
    if mode in {"ordered", "unordered"}:
        await PipelinedApp(node, scene, ordered=mode == "ordered").run()
    else:
        await ConsumingApp(node, scene, ahead=mode == "ahead").run()


async def _collect(scene: Scene, node: Node) -> None:
    await collect_alone(node, scene)
