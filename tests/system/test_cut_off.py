"""Processes on a real S3 server whose network is cut and slowed down, and which is itself killed and restarted."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.s3.servers import Server, seaweedfs
from tests.system.parties import (
    all_done,
    consumer,
    delivered,
    durable_batches,
    ended,
    everything_arrived,
    producer,
    until,
)
from tests.system.proxy import Proxy

PRODUCER: dict[str, object] = {"delivery_timeout": 90.0, "request_timeout": 1.0, "flush_interval": 0.02}
CONSUMER: dict[str, object] = {"gc_interval": 0.5, "request_timeout": 1.0}
RECORDS = 10_000
# Far more than it takes, for machines that do much else.
SECONDS = 400


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_network_and_the_server_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off five times, slowed down, and the server killed once: everything durable arrives, once."""
    data = tmp_path / "server"
    data.mkdir()
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        server = running.enter_context(seaweedfs(data))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        proxy = stack.enter_context(Proxy(port_of(server)))
        url = f"s3://{server.bucket}/cut?endpoint=http://127.0.0.1:{proxy.port}&region=us-east-1"
        producers = [
            producer(name, url, tmp_path, goal=RECORDS, settings=PRODUCER, backend=backend)
            for name, backend in (("left", "asyncio"), ("right", "trio"))
        ]
        reader = consumer("reader", url, tmp_path, settings=CONSUMER, mode="ahead", backend="trio")
        stack.enter_context(ended(*producers, reader))

        def wait_for_progress() -> None:
            before = len(durable_batches(tmp_path, "left", "right")), len(delivered(tmp_path / "reader.db"))
            until(
                lambda: (
                    (
                        len(durable_batches(tmp_path, "left", "right")) > before[0] + 3
                        and len(delivered(tmp_path / "reader.db")) > before[1] + 3
                    )
                    or all(process.code is not None for process in producers)
                ),
                seconds=SECONDS,
                what=f"the queue moves on; {[process.errors for process in (*producers, reader)]}",
            )

        for seconds in (0.0, 0.3, 0.0, 1.5, 0.0):
            wait_for_progress()
            proxy.cut()
            time.sleep(seconds)
            proxy.heal()
        proxy.delay = 0.02
        wait_for_progress()
        proxy.delay = 0.0
        running.close()
        proxy.cut()
        server = stack.enter_context(seaweedfs(data))
        proxy.upstream = port_of(server)
        proxy.heal()

        until(lambda: all_done(*producers), seconds=SECONDS, what="producers end")
        (tmp_path / "stop").touch()
        until(lambda: all_done(reader), seconds=SECONDS, what="the consumer ends")
        assert proxy.cuts >= 5
        manifest = server.request("GET", f"/{server.bucket}/cut/ingest/manifest").content
        everything_arrived(tmp_path, manifest, ("left", "right"), ("reader",))


def port_of(server: Server) -> int:
    port = urlsplit(server.endpoint).port
    assert port is not None
    return port
