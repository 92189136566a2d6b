"""Pure. Which columns can be read and written, and what is said of others."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from buffer.errors import InvalidInputError

__all__ = ["check_read_schema", "check_write_schema", "needs_metadata", "read_schema"]

_RECORD_COLUMNS: Final[dict[str, DataType]] = {
    "sequence": LongType(),
    "record_index": IntegerType(),
    "payload": BinaryType(),
}
_METADATA_COLUMNS: Final[dict[str, DataType]] = {
    "ingestion_time": TimestampType(),
    "metadata": BinaryType(),
    "location": StringType(),
}
_READABLE: Final = _RECORD_COLUMNS | _METADATA_COLUMNS
# Null where no metadata item covers a record.
_FROM_ITEMS: Final = frozenset({"ingestion_time", "metadata"})
_WRITABLE: Final = ("payload", "metadata")


def read_schema(*, metadata_columns: bool) -> StructType:
    """Return the columns of a read without a schema of its own."""
    columns = _READABLE if metadata_columns else _RECORD_COLUMNS
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_read_schema(schema: StructType) -> StructType:
    """Return a schema that a user gave, in any order and with any of the columns.

    Raises:
        InvalidInputError: There is no column, or one is unknown, appears twice, has another type, or may be null
            against its word.
    """
    names = schema.fieldNames()
    if not names:
        # Arrow's record batches would have no rows either.
        raise InvalidInputError(f"the schema has no column; the queue has {', '.join(_READABLE)}")
    for column in schema.fields:
        expected = _READABLE.get(column.name)
        if expected is None:
            raise InvalidInputError(f"the queue has no column {column.name!r}; it has {', '.join(_READABLE)}")
        if names.count(column.name) > 1:
            raise InvalidInputError(f"the schema has the column {column.name!r} more than once")
        if column.dataType != expected:
            raise InvalidInputError(
                f"the column {column.name!r} must be {_ddl(expected)}, but is {_ddl(column.dataType)}"
            )
        if not column.nullable and column.name in _FROM_ITEMS:
            raise InvalidInputError(f"the column {column.name!r} must be nullable: not every record has one")
    return schema


def needs_metadata(schema: StructType) -> bool:
    """Whether a column comes from the metadata of the manifest's entries."""
    return not _FROM_ITEMS.isdisjoint(schema.fieldNames())


def check_write_schema(schema: StructType) -> StructType:
    """Return the schema of rows to write: `payload BINARY`, and `metadata BINARY` if there is any.

    Raises:
        InvalidInputError: A column is missing, unknown, appears twice, or has another type.
    """
    names = schema.fieldNames()
    unknown = [name for name in names if name not in _WRITABLE]
    if unknown:
        raise InvalidInputError(
            f"the queue cannot take the columns {', '.join(map(repr, unknown))}: it takes payload, and metadata if "
            "there is any; select these, and put the rest into the payload, as with to_json or to_avro"
        )
    if "payload" not in names:
        raise InvalidInputError(
            f"the column 'payload' is missing; there are {', '.join(map(repr, names)) or 'none'}"
        )
    for column in schema.fields:
        if names.count(column.name) > 1:
            raise InvalidInputError(f"the rows have the column {column.name!r} more than once")
        if not isinstance(column.dataType, BinaryType):
            hint = ": cast it, as in CAST(x AS BINARY)" if isinstance(column.dataType, StringType) else ""
            raise InvalidInputError(
                f"the column {column.name!r} must be BINARY, but is {_ddl(column.dataType)}{hint}"
            )
    return schema


def _ddl(kind: DataType) -> str:
    return kind.simpleString().upper()
