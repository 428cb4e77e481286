"""Splits that a table names in words: ``train``, ``valid``, ``test``, beside the nodes or in their order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from outcrop.errors import FormatError
from outcrop.importing.sources.ids import IdMap, is_text
from outcrop.importing.sources.tables import Place, Table
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import SPLIT_NAMES


def table_splits(
    runtime: Runtime,
    table: Table,
    columns: list[str],
    ids: IdMap | None,
    dtype: pa.DataType | None = None,
) -> dict[str, np.ndarray]:
    """Gives node ids by split from a column of words, of the nodes in another column or (``ids`` None) of the rows.

    ``dtype``: how cells of text files are read; None = as they look.
    """
    parts: dict[str, list[np.ndarray]] = {"train": [], "valid": [], "test": []}
    for row, nodes, words in split_blocks(runtime, table, columns, ids, dtype):
        for word in dict.fromkeys(words[words != ""].tolist()):
            split = SPLIT_NAMES.get(word.lower())
            if split is None:
                at = row + int(np.argmax(words == word))
                place = Place(table, columns[-1]).at(at)
                raise FormatError(f"{place}: {word!r} is no split; write train, valid or test")
            parts[split].append(nodes[words == word])
    return {split: np.concatenate(found) for split, found in parts.items() if found}


def split_blocks(
    runtime: Runtime,
    table: Table,
    columns: list[str],
    ids: IdMap | None,
    dtype: pa.DataType | None = None,
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields blocks of a table that have a word: the first row, the node of each row int64 [n], and its word, "" =
    none.
    """
    row = 0
    for *id_block, splits in table.blocks(runtime, columns, dtype=dtype):
        if splits.null_count == len(splits) or not is_text(splits):
            if splits.null_count < len(splits):
                raise FormatError(
                    f"{table.name} column 'split' holds {splits.type}; write train, valid or test"
                )
            row += len(splits)
            continue
        words = np.asarray(splits.fill_null("").to_pylist(), dtype=object)
        nodes = (
            ids.lookup(Place(table, columns[0]), id_block[0], row)
            if ids
            else np.arange(row, row + len(words))
        )
        yield row, nodes, words
        row += len(words)
