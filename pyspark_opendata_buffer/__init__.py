"""Found by Spark on its own, by the beginning of its name: makes `format("opendata_buffer")` work unannounced."""

from buffer.spark.source import OpendataBufferDataSource as DefaultSource

__all__ = ["DefaultSource"]
