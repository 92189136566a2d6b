"""Queues on disk and in S3, and the one Spark session of a test run."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.s3.servers import Server, seaweedfs
from tests.spark import driver, faulty
from tests.spark.java import java_home
from tests.spark.queues import Queue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """An empty queue in a folder."""
    return Queue(f"file://{tmp_path}/store?fsync=false")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One SeaweedFS for all tests with Spark."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3_queue(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """An empty queue in a bucket. Credentials are in the environment, of this process and of Spark's."""
    for name, value in credentials(s3_server).items():
        monkeypatch.setenv(name, value)
    prefix = f"spark/{uuid.uuid4().hex}"
    return Queue(f"s3://{s3_server.bucket}/{prefix}?endpoint={s3_server.endpoint}&region=us-east-1")


@pytest.fixture(params=["file", "s3"])
def any_queue(request: pytest.FixtureRequest) -> Queue:
    """An empty queue in each kind of store."""
    found: Queue = request.getfixturevalue("queue" if request.param == "file" else "s3_queue")
    return found


@pytest.fixture(scope="session")
def spark_environment(s3_server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Spark's processes inherit when they are started."""
    folder = tmp_path_factory.mktemp("environment")
    (folder / "faults").mkdir()
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return credentials(s3_server) | {
        "JAVA_HOME": str(java_home(folder / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        faulty.FOLDER: str(folder / "faults"),
    }


@pytest.fixture(scope="session")
def spark(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The Spark of all tests."""
    with pytest.MonkeyPatch.context() as lasting:
        lasting.setenv(faulty.FOLDER, spark_environment[faulty.FOLDER])
        with pytest.MonkeyPatch.context() as patch:
            # The rest is nobody else's business.
            for name, value in spark_environment.items():
                patch.setenv(name, value)
            session = driver.session(tmp_path_factory.mktemp("spark"))
        yield session
        session.stop()


def credentials(server: Server) -> dict[str, str]:
    """Return the variables that lead to a server's credentials."""
    return {
        "AWS_ACCESS_KEY_ID": server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
    }
