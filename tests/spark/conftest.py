"""Queues on disk, and the one Spark session of a test run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import faulty
from tests.spark.java import java_home
from tests.spark.queues import Queue

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """An empty queue in a folder."""
    return Queue(f"file://{tmp_path}/store?fsync=false")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark of two cores on this machine, whose processes import this checkout."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "faults").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home(folder / "java")))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv(faulty.FOLDER, str(folder / "faults"))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("opendata-buffer tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.python.daemon.module", "tests.spark.daemon")
            .config("spark.log.level", "OFF")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
        session.dataSource.register(faulty.FaultySource)
        yield session
        session.stop()
