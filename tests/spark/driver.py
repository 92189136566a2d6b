"""Sessions of Spark for the tests; and as a program one that moves records from queue to queue until a test kills it."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark import faulty

__all__ = ["move", "session"]


def session(folder: Path) -> SparkSession:
    """Start a Spark of two cores on this machine; its processes inherit the environment, and import this checkout."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("opendata-buffer tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        # A session of minutes is over before optimized code would pay.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.python.daemon.module", "tests.spark.daemon")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.dataSource.register(faulty.FaultySource)
    return spark


def move(spark: SparkSession, source: str, sink: str, checkpoint: str) -> None:
    """Move everything there is from one queue to another, each by its URL; the sink takes orders to die."""
    rows = spark.readStream.format("opendata_buffer").load(source).select("payload")
    writer = rows.writeStream.format("faulty_buffer").option("checkpointLocation", checkpoint)
    assert writer.trigger(availableNow=True).start(sink).awaitTermination(150)


if __name__ == "__main__":
    move(session(Path(sys.argv[4])), *sys.argv[1:4])
