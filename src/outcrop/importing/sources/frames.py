"""Tables in memory and streams of tables: whatever speaks Arrow's C stream interface, or the dataframe protocol.

Arrow tables and readers, Polars, pandas, DuckDB relations. Nothing is copied that the other library does not copy
itself; what it holds is the caller's, not the budget's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow.interchange import from_dataframe

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.tables import Table, require_distinct

_PANDAS_INDEX = "__index_level_"


def is_frame(value: Any) -> bool:
    """Tells whether something has named columns: arrays and series have not."""
    named = hasattr(value, "columns") or hasattr(value, "schema")
    return named and (hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__"))


class StreamTable(Table):
    """Reads a table that another library holds or computes. ``value`` is asked for a new stream each time it is read.

    Raises:
        FormatError: The other library refuses, or two columns have one name.
    """

    def __init__(self, name: str, value: Any):
        self.name, self._value = name, value
        if not hasattr(value, "__arrow_c_stream__"):
            self._value = from_dataframe(value)
        reader = self._open()
        self._reader: pa.RecordBatchReader | None = reader
        self._schema = reader.schema
        columns = tuple(n for n in self._schema.names if not n.startswith(_PANDAS_INDEX))
        self.columns = require_distinct(name, columns)
        self.num_rows = value.num_rows if isinstance(value, pa.Table | pa.RecordBatch) else None
        self._rows_read: int | None = None

    def _open(self) -> pa.RecordBatchReader:
        def refused(error: Exception) -> FormatError:
            return FormatError(f"{self.name} is no table that Arrow can read: {error}")

        with arrow_errors(refused, TypeError, ValueError):
            return pa.RecordBatchReader.from_stream(self._value)

    def types(self, runtime: Any, columns: list[str]) -> list[pa.DataType]:
        """Returns types of the columns, as the schema has them; reads nothing."""
        return [_plain_type(self._schema.field(column).type) for column in columns]

    def _batches(
        self, columns: list[str], size: int, rows: int, dtype: pa.DataType | None
    ) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader or self._open(), None
        count = 0
        for batch in reader:
            chosen = _plain(batch.select(columns))
            for start in range(0, batch.num_rows, rows):
                yield chosen.slice(start, rows)
            count += batch.num_rows
        if self._rows_read not in (None, count):
            raise ArgumentError(
                f"{self.name} can be read once only, and is needed again: pass a table, such as reader.read_all()"
            )
        self._rows_read = count


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type without views and dictionaries, which not every function of Arrow knows."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return pa.string() if pa.types.is_string_view(kind) else kind


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema)
