"""One of the two workers with other settings than its own, or a collector alone.

Run as `tuned_worker.py producer|consumer|collector SETTINGS ARGUMENTS...`: the settings are a JSON object of fields
of its configuration, the arguments are those of `producer_worker.py` or `consumer_worker.py`, or the URL of a store
and the event loop. A collector runs until it is killed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import anyio

from buffer import ConsumerConfig, GarbageCollector, open_store
from tests.system import consumer_worker, producer_worker


def main() -> None:
    """Run the worker until it ends."""
    kind, settings, *arguments, backend = sys.argv[1:]
    if kind == "producer":
        producer_worker.CONFIG = replace(producer_worker.CONFIG, **json.loads(settings))
        url, name, log, goal = arguments
        anyio.run(producer_worker.main, url, name, log, int(goal), backend=backend)
    elif kind == "collector":
        (url,) = arguments
        anyio.run(collect, url, ConsumerConfig(**json.loads(settings)), backend=backend)
    else:
        consumer_worker.CONFIG = replace(consumer_worker.CONFIG, **json.loads(settings))
        url, database, stop_file, mode = arguments
        anyio.run(consumer_worker.main, url, database, stop_file, mode, backend=backend)


async def collect(url: str, config: ConsumerConfig) -> None:
    async with open_store(url) as store:
        await GarbageCollector(store, config).run()


if __name__ == "__main__":
    main()
