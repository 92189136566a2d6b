"""Spark's own daemon, which forks all worker processes, with the imports done that each of them would repeat."""

import numpy as np
import pyarrow as pa
from pyspark import daemon

import buffer.spark.batch_reader
import buffer.spark.stream_reader
import buffer.spark.writers

__all__ = ["buffer", "np", "pa"]

if __name__ == "__main__":
    daemon.manager()
