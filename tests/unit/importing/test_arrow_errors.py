"""Errors of Arrow become errors that name the table; memory that runs out, and what says all, stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outcrop.errors import BudgetError, FormatError, IoError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.declared_keys import schema_of_parquet
from outcrop.importing.sources.table_files import open_table


@pytest.mark.parametrize(
    "error", [pa.ArrowInvalid("torn"), pa.ArrowNotImplementedError("torn"), KeyError("torn")]
)
def test_an_error_of_arrow_or_of_those_named_becomes_ours(error: Exception) -> None:
    with (
        pytest.raises(FormatError, match=r"^edges.csv: .*torn") as caught,
        arrow_errors(lambda error: FormatError(f"edges.csv: {error}"), KeyError),
    ):
        raise error
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 131072 failed"),
        MemoryError(),
        IoError(5, "the disk is broken"),
        BudgetError("a budget of 1 KiB is too small"),
        KeyError("src"),
    ],
)
def test_other_errors_pass_as_they_are(error: Exception) -> None:
    with (
        pytest.raises(type(error)) as caught,
        arrow_errors(lambda _: FormatError("edges.csv is torn"), OSError, ValueError),
    ):
        raise error
    assert caught.value is error


def test_a_parquet_file_for_which_there_is_no_memory_is_not_called_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edges.parquet"
    pq.write_table(pa.table({"src": [1], "dst": [2]}), path)

    def fail(*_: object, **__: object) -> Any:
        raise pa.ArrowMemoryError("malloc of size 131072 failed")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    monkeypatch.setattr(pq, "read_schema", fail)
    for read in (lambda: open_table(path), lambda: schema_of_parquet(tmp_path, [path])):
        with pytest.raises(pa.ArrowMemoryError):
            read()
    monkeypatch.undo()
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(FormatError, match=f"{path} is no Parquet file or is torn"):
        open_table(path)
