"""What one seed stands for: the nodes of a world, their settings, and what will happen to them.

Every dimension is drawn for itself, so that any two dangers meet in some seed.

Two bounds are kept, and no correct implementation could do without them. A write is on its way for less than
the collector's grace period minus the producers' enqueue deadline. And the store's clock does not step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from buffer.config import ConsumerConfig, ProducerConfig
from buffer.model import Compression
from buffer.testing.world.weather import Outage

__all__ = ["MODES", "Action", "ConsumerMode", "Plan", "plan_of"]

ConsumerMode: TypeAlias = Literal["serial", "ahead", "ordered", "unordered"]

MODES: tuple[ConsumerMode, ...] = ("serial", "ahead", "ordered", "unordered")

_WEIGHTS: Mapping[str, float] = {
    "unavailable": 1.0,
    "throttled": 0.5,
    "denied": 0.05,
    "slow": 1.0,
    "slow listing": 6.0,
    "lost request": 1.0,
    "lost answer": 2.0,
    "late": 1.5,
    "conflict": 0.7,
    "own write refused": 0.7,
    "stale": 0.4,
    "cut": 0.3,
    "missing": 0.3,
    "shuffled": 3.0,
    "short": 1.0,
    "refused keys": 3.0,
}


@dataclass(frozen=True, slots=True)
class Action:
    """Something that happens to a node, or to the world.

    Attributes:
        name: As of a fault: an action can be left out too.
        at: Seconds from the beginning.
        kind: `kill`, `pause`, `cancel`, `step`, `away`, `lose manifest`.
        slot: Whose running node it happens to; `away` happens to all consumers.
        value: Seconds: of a pause, of a step of the clock, or for which no consumer runs.
    """

    name: str
    at: float
    kind: str
    slot: str
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One world.

    Attributes:
        seconds: How long the faults go on.
        latency: Seconds of one way.
        producers: Settings of each producer.
        consumer: Settings of all consumers.
        modes: How the consumers read, one for each that competes for the queue: by themselves, or with a pipeline.
        lone_collector: Whether a collector runs on its own beside them.
        offsets: Seconds each slot's clock is ahead of the world's; also the store's.
        rates: Probability of each kind of fault.
        outages: Times without success.
        actions: What happens to nodes.
        write_interval: Seconds the store wants between two writes of the manifest, or 0.
        longest: Seconds that a slow call may take.
        longest_listing: The same for listings.
        longest_late: Seconds for which a write without an answer may still be on its way.
        calls: Number of `produce` calls of each producer.
        handling: Seconds that a consumer takes for one batch, at most.
        restart: Seconds after which a process that has ended is started again, at most.
    """

    seconds: float
    latency: float
    producers: tuple[ProducerConfig, ...]
    consumer: ConsumerConfig
    modes: tuple[ConsumerMode, ...]
    lone_collector: bool
    offsets: Mapping[str, float]
    rates: Mapping[str, float]
    outages: tuple[Outage, ...]
    actions: tuple[Action, ...]
    write_interval: float
    longest: float
    longest_listing: float
    longest_late: float
    calls: int
    handling: float
    restart: float


def plan_of(seed: int) -> Plan:
    """Return the plan that belongs to a seed."""

    def about(dimension: str) -> random.Random:
        # A source of its own for each, so that what is added to one leaves the others as they were.
        return random.Random(f"{seed} {dimension}")

    times, kinds, sizes = about("times"), about("kinds"), about("sizes")
    seconds = times.uniform(12.0, 32.0)
    grace = times.uniform(5.0, 12.0)
    deadline = grace * times.uniform(0.3, 0.5)
    spare = (grace - deadline) * 0.8
    away = _away(about("away"), seconds, grace)
    request_timeout = times.uniform(0.8, 3.0)
    consumer = ConsumerConfig(
        gc_interval=0.5 if away else about("collector").uniform(1.5, 4.0),
        gc_grace_period=grace,
        request_timeout=request_timeout,
        manifest_timeout=times.choice((4.0, 12.0, 30.0)),
        close_timeout=times.choice((1.0, 5.0)),
    )
    number = kinds.choice((1, 2, 2, 3))
    producers = tuple(_producer(about(f"producer {i}"), deadline, request_timeout) for i in range(number))
    modes = tuple(about(f"consumer {i}").choice(MODES) for i in range(kinds.choice((1, 2, 2))))
    slots = [f"p{i}" for i in range(len(producers))] + [f"c{i}" for i in range(len(modes))]
    scale = kinds.choice((0.0, 0.005, 0.01, 0.02, 0.04))
    rates = {kind: weight * scale for kind, weight in _WEIGHTS.items() if about(kind).random() < 0.6}
    offsets = _offsets(about("clocks"), [*slots, "g", "store"], grace)
    if away:
        # The collector's bad day: it lists for longer than the grace period while nobody consumes, by a good clock.
        rates["slow listing"] = 0.3
        offsets = {**offsets, "g": 0.0, "store": 0.0}
    return Plan(
        seconds=seconds,
        latency=times.uniform(0.002, 0.06),
        producers=producers,
        consumer=consumer,
        modes=modes,
        lone_collector=kinds.random() < 0.4 or bool(away),
        offsets=offsets,
        rates=rates,
        outages=_outages(about("outages"), seconds, grace),
        actions=(*_actions(about("actions"), seconds, slots), *away),
        write_interval=kinds.choice((0.0, 0.0, 0.0, 0.0, 1.0)),
        longest=min(spare, request_timeout * 1.5),
        longest_listing=grace * (2.5 if away else times.choice((0.3, 1.5))),
        longest_late=spare,
        calls=sizes.randint(8, 32),
        handling=sizes.choice((0.0, 0.0, 0.2, 1.5)),
        restart=sizes.choice((2.0, 6.0, 20.0)),
    )


def _producer(rng: random.Random, deadline: float, request_timeout: float) -> ProducerConfig:
    return ProducerConfig(
        flush_interval=rng.uniform(0.02, 0.5),
        flush_size_bytes=rng.choice((100, 400, 2000)),
        max_buffered_inputs=rng.choice((3, 20, 1000)),
        batch_compression=rng.choice(tuple(Compression)),
        upload_concurrency=rng.randint(1, 4),
        enqueue_deadline=deadline,
        delivery_timeout=rng.choice((4.0, 15.0, 120.0)),
        request_timeout=request_timeout,
        close_timeout=rng.choice((1.0, 5.0, 60.0)),
        max_manifest_bytes=rng.choice((700, 1 << 20, 1 << 20, 1 << 20)),
    )


def _offsets(rng: random.Random, slots: list[str], grace: float) -> Mapping[str, float]:
    spread = rng.choice((0.0, 0.0, 0.3 * grace, 1.5 * grace, 600.0))
    return {slot: rng.uniform(-spread, spread) for slot in slots}


def _outages(rng: random.Random, seconds: float, grace: float) -> tuple[Outage, ...]:
    outages = []
    for number in range(rng.choice((0, 1, 1, 2))):
        start = rng.uniform(0.0, seconds * 0.7)
        operations = rng.choice(
            (("match",), ("match",), ("match", "create", "get"), ("put", "get", "list", "delete"))
        )
        outages.append(
            Outage(
                name=f"outage {number}",
                start=start,
                end=start + grace * rng.uniform(0.2, 1.8),
                manifest="match" in operations,
                operations=frozenset(operations),
            )
        )
    return tuple(outages)


def _actions(rng: random.Random, seconds: float, slots: list[str]) -> tuple[Action, ...]:
    actions = []
    for number in range(rng.choice((0, 1, 2, 4, 6))):
        kind = rng.choice(("kill", "kill", "pause", "pause", "cancel", "step"))
        value = rng.uniform(0.5, 20.0) if kind == "pause" else rng.uniform(-60.0, 60.0)
        actions.append(
            Action(f"action {number}", rng.uniform(0.5, seconds), kind, rng.choice(slots), round(value, 3))
        )
    if rng.random() < 0.04:
        actions.append(Action("lost manifest", rng.uniform(seconds * 0.3, seconds), "lose manifest", ""))
    return tuple(actions)


def _away(rng: random.Random, seconds: float, grace: float) -> tuple[Action, ...]:
    if rng.random() > 0.3:
        return ()
    return (
        Action("consumers away", rng.uniform(2.0, seconds * 0.6), "away", "c", grace * rng.uniform(1.0, 3.0)),
    )
