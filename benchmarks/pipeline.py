"""How fast is the pipelined consumer, compared with the serial API and with read-ahead by hand?

    python -m benchmarks.pipeline                     # two to three minutes
    python -m benchmarks.pipeline --full --svg docs/images

Closed loop: a backlog is consumed as fast as it can be. Compared in the same run, in turns, each measurement in a
process of its own:

* `serial`: `next_batch` and `ack`;
* `by hand`: read-ahead as RFC 0003 sketches it, with as many descriptors a look as there are workers;
* `pipeline`: `PipelinedConsumer` with its defaults, in order;
* `fetch only`: as many tasks that fetch and decode, without manifest, order or bounds: what store and processor allow.

On two stores: a simulated one, where round trips cost simulated time and processor work costs real processor time,
so that neither a network nor other programs matter; and SeaweedFS behind a proxy that adds a round trip, where client,
server and proxy share this machine's processors.

Prints JSON lines, one for each way, store, latency, size and number of workers: medians of all rounds, `ratio` to the
serial API, and `of_ceiling`: the rate by the smaller of workers / latency and the processor's limit, which is the best
rate of `fetch only` without latency. At the end, the memory that a pipeline took whose handler is slower than the store.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.consuming import KIB, MIB, Outcome, Setting
from benchmarks.plot import Line, draw
from tests.s3.servers import Server, seaweedfs

ROOT = Path(__file__).parents[1]
LATENCIES_MS = (0, 5, 20, 100)
WORKERS = (1, 8, 32, 128)
MAX_IN_FLIGHT = 256 * MIB

# The C library gives memory back to the system and asks for it again with every large batch, or not, as it happens.
# For figures that can be compared it is told to keep it.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(512 * MIB), "MALLOC_MMAP_THRESHOLD_": str(512 * MIB)}


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        latencies_ms: By store.
        sizes: By store.
        workers: By store.
        rounds: How often each, in turns.
        through_bytes: For the measurement of memory.
    """

    latencies_ms: dict[str, tuple[int, ...]]
    sizes: dict[str, tuple[int, ...]]
    workers: dict[str, tuple[int, ...]]
    rounds: int
    through_bytes: int


SHORT = Plan(
    latencies_ms={"simulated": LATENCIES_MS, "S3": (20,)},
    sizes={"simulated": (MIB,), "S3": (MIB,)},
    workers={"simulated": (1, 32, 128), "S3": (32,)},
    rounds=1,
    through_bytes=1000 * MIB,
)
FULL = Plan(
    latencies_ms={"simulated": LATENCIES_MS, "S3": LATENCIES_MS},
    sizes={"simulated": (64 * KIB, MIB, 16 * MIB), "S3": (64 * KIB, MIB, 16 * MIB)},
    workers={"simulated": WORKERS, "S3": WORKERS},
    rounds=3,
    through_bytes=10_000 * MIB,
)


def run(setting: Setting) -> Outcome:
    """Measure in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.consuming", json.dumps(asdict(setting))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **KEEP_MEMORY},
    )
    return Outcome(**json.loads(done.stdout))


def emit(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


@contextlib.contextmanager
def at_a_distance(server: Server | None, latency_ms: int) -> Iterator[str]:
    """Put a proxy in front of the server and give the address to use; nothing for the simulated store."""
    if server is None:
        yield ""
        return
    upstream = server.endpoint.removeprefix("http://")
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "latency_proxy.py"),
        upstream,
        str(latency_ms / 1000),
    ]
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert proxy.stdout is not None
        yield f"http://127.0.0.1:{int(proxy.stdout.readline())}"
    finally:
        proxy.kill()
        proxy.wait()


def base_setting(store: str, size_bytes: int, server: Server | None) -> Setting:
    # Long enough for several batches of every worker, at what one processor can do.
    seconds = 1.0 if store == "simulated" else 2.0 + 3.0 * size_bytes / (16 * MIB)
    return Setting(
        way="",
        store=store,
        latency_s=0.0,
        size_bytes=size_bytes,
        workers=1,
        seconds=seconds,
        batches=min(6000, max(400, 4 * 1024 * MIB // size_bytes)),
        bucket=server.bucket if server else "",
    )


Rates = dict[tuple[str, int, int], float]


def rate_of(outcomes: list[Outcome]) -> float:
    return statistics.median(outcome.batches / outcome.seconds for outcome in outcomes)


def compare(plan: Plan, store: str, size_bytes: int, server: Server | None) -> Rates:
    """Measure all ways for one store and one size; print them, and return rates by way, latency and workers."""
    rates: Rates = {}
    base = base_setting(store, size_bytes, server)
    limit = 0.0
    for latency_ms in sorted({0, *plan.latencies_ms[store]}):
        cases = [("fetch only", workers) for workers in plan.workers[store]]
        if latency_ms in plan.latencies_ms[store]:
            cases += [("serial", 1)]
            cases += [(way, workers) for workers in plan.workers[store] for way in ("by hand", "pipeline")]
        outcomes: dict[tuple[str, int], list[Outcome]] = {case: [] for case in cases}
        with at_a_distance(server, latency_ms) as endpoint:
            for _ in range(plan.rounds):
                for way, workers in cases:
                    setting = replace(
                        base, way=way, workers=workers, latency_s=latency_ms / 1000, endpoint=endpoint
                    )
                    outcomes[way, workers].append(run(setting))
        if latency_ms == 0:
            limit = max(rate_of(found) for (way, _), found in outcomes.items() if way == "fetch only")
        for (way, workers), found in outcomes.items():
            rate = rates[way, latency_ms, workers] = rate_of(found)
            serial = rates.get(("serial", latency_ms, 1)) or rate_of(outcomes.get(("serial", 1), found))
            ceiling = min(workers / (latency_ms / 1000), limit) if latency_ms else limit
            emit(
                store=store,
                latency_ms=latency_ms,
                size_bytes=size_bytes,
                workers=workers,
                way=way,
                batches_per_s=round(rate, 1),
                mb_per_s=round(rate * size_bytes / 1e6, 1),
                ratio=round(rate / serial, 2),
                of_ceiling=round(rate / ceiling, 2),
                manifest_requests_per_batch=round(
                    statistics.median(each.manifest_requests / each.batches for each in found), 4
                ),
                rates_of_rounds=[round(each.batches / each.seconds, 1) for each in found],
            )
    return rates


def measure_memory(plan: Plan) -> None:
    """Let many bytes through a pipeline whose handler is slower than the store, so that its bounds are used up."""
    for size_bytes, record_bytes in ((MIB, KIB), (16 * MIB, KIB), (MIB, 100)):
        setting = Setting(
            way="pipeline",
            store="simulated",
            latency_s=0.005,
            size_bytes=size_bytes,
            record_bytes=record_bytes,
            workers=128 if size_bytes == MIB else 16,
            seconds=1e9,
            batches=plan.through_bytes // size_bytes,
            handler_s=0.02,
        )
        outcome = run(setting)
        emit(
            memory_of="pipeline",
            size_bytes=size_bytes,
            record_bytes=record_bytes,
            through_bytes=(outcome.batches + setting.workers) * size_bytes,
            peak_mib=round(outcome.memory_bytes / MIB, 1),
            allowed_mib=(MAX_IN_FLIGHT + 64 * MIB) // MIB,
        )


def picture(plan: Plan, store: str, size_bytes: int, rates: Rates) -> str:
    """Draw rates over workers, one colour for each latency."""
    lines = []
    for colour, latency_ms in enumerate(plan.latencies_ms[store]):
        for way, style in (("pipeline", "solid"), ("by hand", "dashed")):
            points = [(float(workers), rates[way, latency_ms, workers]) for workers in plan.workers[store]]
            lines.append(Line(f"{way}, {latency_ms} ms", points, colour, style))
        serial = rates["serial", latency_ms, 1]
        ends = [(float(workers), serial) for workers in (plan.workers[store][0], plan.workers[store][-1])]
        lines.append(Line("serial" if colour == 0 else "", ends, colour, "dotted"))
    name = "SeaweedFS" if store == "S3" else "Simulated store"
    size = f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // KIB} KiB"
    return draw(f"{name}, batches of {size}", "fetch workers", "batches per second", lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all sizes, latencies and workers; about an hour")
    parser.add_argument("--stores", nargs="+", choices=["simulated", "S3"], default=["simulated", "S3"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--svg", type=Path, help="folder for pictures")
    arguments = parser.parse_args()
    plan = FULL if arguments.full else SHORT
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    for store in arguments.stores:
        with contextlib.ExitStack() as stack:
            server = None
            if store == "S3":
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                server = stack.enter_context(seaweedfs(Path(folder)))
            for size_bytes in plan.sizes[store]:
                rates = compare(plan, store, size_bytes, server)
                if arguments.svg:
                    arguments.svg.mkdir(parents=True, exist_ok=True)
                    name = f"pipeline-{store.lower()}-{size_bytes // KIB}-kib.svg"
                    (arguments.svg / name).write_text(picture(plan, store, size_bytes, rates))
    measure_memory(plan)


if __name__ == "__main__":
    main()
