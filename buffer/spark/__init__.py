"""The queue as a data source and sink of PySpark; needs the extra `spark`.

    spark.readStream.format("opendata_buffer").load("s3://bucket/prefix")
    rows.write.format("opendata_buffer").mode("append").save("s3://bucket/prefix")

* `source` is what Spark finds; `options`, `schema` and `offsets` are the values that cross its border;
* `stream_reader` and `batch_reader` plan what is read, with `hold`, `ranges` and `partitions`; `fetching` reads it in
  the tasks, with `columns` and `records` between the batch format and Arrow;
* `writers` are the sink; `uploading` writes in the tasks, with `batching`; `commit` makes it visible, once, by `marks`;
* `bridge` leads from Spark's plain calls to asynchronous ones.
"""

from buffer.spark.options import AckMode, Options
from buffer.spark.source import OpendataBufferDataSource, register

__all__ = ["AckMode", "OpendataBufferDataSource", "Options", "register"]
