"""Producers and a consumer as processes of their own on a real S3 server, all of them killed again and again."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.s3.servers import Server
from tests.system.test_processes import kill_and_check


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_processes_are_killed(
    seaweedfs_server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What producers were told is durable is in the sink exactly once and in order, after twenty kills."""
    server = seaweedfs_server
    prefix = uuid.uuid4().hex
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    kill_and_check(
        f"s3://{server.bucket}/{prefix}?endpoint={server.endpoint}",
        lambda: server.request("GET", f"/{server.bucket}/{prefix}/ingest/manifest").content,
        tmp_path,
        capsys,
        deadline_seconds=400,
    )
