"""Packs as the machines of a cluster do, in one process, and counts what each of them would do.

Chunks are read, cut and written by the code that packs on Ray (preparation/cluster/move_pieces.py); only that nothing
is sent. Chunks are dealt in turn, as machines take them that are equally fast; so are owners: with as many parts as
machines, or a multiple, machine m has parts m, m + machines, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.preparation.cluster.move_pieces import ChunkReader, Parcel, PieceOwner, WantedRows, owned_tables
from outcrop.preparation.cluster.pieces import PieceSet, PieceTable, finish_pieces, prepare_pieces
from outcrop.preparation.pack import CopiedBytes, PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles


@dataclass
class PackedShare:
    """Counts what one machine does.

    Attributes:
        chunks: Chunks that it reads; ``bytes_read`` and ``reads``: bytes and requests of that.
        rows_bytes_gathered: Rows that it takes out of its chunks: those that its own owners want
            (``rows_bytes_kept``), and those of others (``rows_bytes_sent``).
        rows_bytes_received: Rows that its owners get from others.
        ids_bytes_received, ids_bytes_sent: Ids by which others ask it, and by which it asks others.
        bytes_written, writes: Bytes and requests of what its owners write.
        pieces: Parcels with rows that its owners get, its own included.
        tables, table_bytes: Tables of pieces that its owners map.
        peak_bytes: Bytes of rows and ids that a task and all owners of the machine hold, at the most.
    """

    chunks: int = 0
    bytes_read: int = 0
    reads: int = 0
    rows_bytes_gathered: int = 0
    rows_bytes_kept: int = 0
    rows_bytes_sent: int = 0
    rows_bytes_received: int = 0
    ids_bytes_received: int = 0
    ids_bytes_sent: int = 0
    bytes_written: int = 0
    writes: int = 0
    pieces: int = 0
    tables: int = 0
    table_bytes: int = 0
    peak_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class CountedMachines:
    """Packs in place of so many machines.

    Args:
        chunk_bytes: Bytes of a chunk, with two ids for each of its rows.

    Attributes:
        shares: What each machine did, once it is done.
    """

    def __init__(self, machines: int, chunk_bytes: int):
        self.machines, self._chunk_bytes = machines, chunk_bytes
        self.shares = [PackedShare() for _ in range(machines)]

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
        pieces = prepare_pieces(packing, files, self._chunk_bytes)
        parts = packing.placement.num_parts
        if not np.diff(packing.placement.part_bounds).all():
            raise ArgumentError(
                f"an epoch has fewer batches than the {parts} machines: name fewer of them, or smaller batches"
            )
        names = [f"machine {number}" for number in range(self.machines)]
        with ExitStack() as closing:
            owners = []
            for number, tables in enumerate(owned_tables(pieces, parts)):
                at = number % self.machines
                owners.append(_Owner(at, PieceOwner(pieces, tables, lambda at=at: names[at])))
                closing.callback(owners[-1].owner.close)
                self.shares[at].tables += sum(map(len, tables))
                self.shares[at].table_bytes += sum(
                    PieceTable(pieces.folder, head, "r").table_bytes for heads in tables for head in heads
                )
            readers = [ChunkReader(pieces.rows) for _ in names]
            for reader in readers:
                closing.callback(reader.close)
            self._pack(pieces, readers, owners)
        finish_pieces(pieces, packing, journal)
        return CopiedBytes(
            sum(one.bytes_read for one in self.shares), sum(one.bytes_written for one in self.shares)
        )

    def _pack(self, pieces: PieceSet, readers: Sequence[ChunkReader], owners: Sequence[_Owner]) -> None:
        held = [0] * self.machines
        for place, (number, chunk) in enumerate(pieces.all_chunks()):
            at = place % self.machines
            wanted = [one.owner.wanted(number, chunk) for one in owners]
            parcels = readers[at].parcels(number, chunk, wanted, f"machine {at}")
            self.shares[at].chunks += 1
            held[at] = max(held[at], pieces.chunk_bytes(number, chunk) + _bytes_of(parcels, wanted))
            for one, parcel in zip(owners, parcels, strict=True):
                one.receive(number, chunk, parcel, self.shares[at], self.shares[one.machine])
        for share, reader, most in zip(self.shares, readers, held, strict=True):
            share.bytes_read, share.reads = reader.counters.read_bytes, reader.counters.read_ops
            share.peak_bytes += most
        for one in owners:
            share = self.shares[one.machine]
            share.bytes_written += one.owner.counters.write_bytes
            share.writes += one.owner.counters.write_ops
            share.peak_bytes += one.most_bytes


def _bytes_of(parcels: Sequence[Parcel], wanted: Sequence[Sequence[WantedRows]]) -> int:
    """Counts the bytes that a task holds beside its chunk."""
    rows = sum(piece.rows.nbytes for parcel in parcels for piece in parcel.pieces)
    return rows + sum(one.ids.nbytes + one.counts.nbytes for own in wanted for one in own)


class _Owner:
    """Owner of some output files, on a machine. ``most_bytes``: of the largest parcel that it got."""

    def __init__(self, machine: int, owner: PieceOwner):
        self.machine, self.owner, self.most_bytes = machine, owner, 0

    def receive(
        self, number: int, chunk: int, parcel: Parcel, giver: PackedShare, taker: PackedShare
    ) -> None:
        """Has it write a parcel, and counts that where it was taken out and where it is written."""
        received = self.owner.receive(number, chunk, parcel)
        rows = sum(piece.rows.nbytes for piece in parcel.pieces)
        self.most_bytes = max(self.most_bytes, rows)
        taker.pieces += rows > 0
        giver.rows_bytes_gathered += rows
        giver.rows_bytes_sent += received.rows_sent
        giver.rows_bytes_kept += rows - received.rows_sent
        giver.ids_bytes_received += received.ids_sent
        taker.rows_bytes_received += received.rows_sent
        taker.ids_bytes_sent += received.ids_sent
