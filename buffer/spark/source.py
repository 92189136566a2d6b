"""The data source that Spark looks up by its name.

Spark imports every module called `pyspark_...` to find data sources, and one that cannot be imported hides all others.
So this one imports nothing that PySpark does not need itself; what needs PyArrow is imported when it is asked for.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from buffer.errors import InvalidInputError
from buffer.spark.options import Options, Purpose
from buffer.spark.schema import check_read_schema, check_write_schema, read_schema
from buffer.store import ObjectStore, open_store

__all__ = ["OpendataBufferDataSource", "register"]


class OpendataBufferDataSource(DataSource):
    """The queue as a source and a sink of Spark, under the name `opendata_buffer`.

    Making one does no I/O. The options are described with `Options`, the columns in the guide.

    Raises:
        InvalidInputError: An option is unknown or cannot be used.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._settings = Options.parse(options)
        # Says at once what is wrong with a URL. Nothing is opened before it is entered.
        self.open_store(self._settings.path)

    @staticmethod
    def open_store(url: str) -> AbstractAsyncContextManager[ObjectStore]:
        """Open the store, on whatever node it is needed. A subclass may do this in another way."""
        return open_store(url)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "opendata_buffer"

    def schema(self) -> StructType:
        """Return the columns of a read that names none itself."""
        self._settings.check(Purpose.READ)
        return read_schema(metadata_columns=self._settings.metadata_columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a snapshot of the queue."""
        from buffer.spark.batch_reader import QueueReader

        options = self._settings.check(Purpose.BATCH_READ)
        return QueueReader(options, check_read_schema(schema), self.open_store)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads the queue as its consumer."""
        from buffer.spark.stream_reader import QueueStreamReader

        options = self._settings.check(Purpose.STREAM_READ)
        return QueueStreamReader(options, check_read_schema(schema), self.open_store)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what appends the rows of a job."""
        from buffer.spark.writers import QueueWriter

        options = self._settings.check(Purpose.BATCH_WRITE)
        if overwrite:
            raise InvalidInputError("a queue cannot be overwritten: use mode('append')")
        check_write_schema(schema)
        return QueueWriter(options, self.open_store)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return what appends the rows of each micro-batch."""
        from buffer.spark.writers import QueueStreamWriter

        options = self._settings.check(Purpose.STREAM_WRITE)
        if overwrite:
            raise InvalidInputError("a queue cannot be overwritten: use outputMode('append')")
        check_write_schema(schema)
        return QueueStreamWriter(options, self.open_store)


def register(spark: SparkSession) -> None:
    """Make `format("opendata_buffer")` known to a session.

    Needed only where Spark does not find `pyspark_opendata_buffer` by itself, as when another package's module of
    that kind cannot be imported.
    """
    spark.dataSource.register(OpendataBufferDataSource)
