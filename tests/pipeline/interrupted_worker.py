"""A pipeline in a process of its own, to be ended by Ctrl-C. Run as `interrupted_worker.py STORE_URL BACKEND`.

Writes a line to its standard output once it has processed two of its three batches, and waits.
"""

from __future__ import annotations

import sys

import anyio

from buffer import PipelineConfig, PipelinedConsumer, open_store


async def main(store_url: str) -> None:
    async with (
        open_store(store_url) as store,
        PipelinedConsumer(store, pipeline_config=PipelineConfig(ack_interval=1000.0)) as pipeline,
    ):
        async for delivery in pipeline:
            if delivery.sequence == 2:
                print("waiting", flush=True)
                await anyio.sleep_forever()
            delivery.done()


if __name__ == "__main__":
    url, event_loop = sys.argv[1:]
    anyio.run(main, url, backend=event_loop)
