"""Files of torch.save are read as torch.load reads them, without torch, and nothing that they name is ever run."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outcrop.errors import ArgumentError, BudgetError, FormatError, OutcropError
from outcrop.importing.sources.torch_file import TorchFile, Unreadable
from outcrop.runtime.runtime import Runtime
from torch_files import Call, Storage, foreign, pickled, rewritten, tensor_call, write_zip

LONG = torch.LongStorage
BASE = torch.arange(60, dtype=torch.float32).reshape(6, 10)
LARGE = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)


def values() -> dict[str, Any]:
    dtypes = [torch.float16, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
    return {
        **{str(dtype): torch.arange(9).to(dtype) for dtype in dtypes},
        "bool": torch.arange(9) % 2 == 0,
        "uint16": torch.arange(9).to(torch.uint16),
        "uint64": torch.arange(9).to(torch.uint64),
        "whole": BASE,
        "transposed": BASE.T,
        "part": BASE[1:5, 3:7],
        "every other": BASE[::2, 9],
        "one": BASE[2, 2],
        "empty": torch.zeros(0, 7),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "numpy": np.arange(6).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big endian": np.arange(4, dtype=">i4"),
        "large": LARGE,
        "words": np.array(["a", "bcd"]),
        "flags": np.array([True, False]),
        "scalar": np.float32(1.5),
        "nothing": np.zeros((0, 3), np.float32),
        "size": torch.Size([3, 4]),
        "text": "t" * 3,
        "numbers": [1, -(2**40), 2.5, None, True],
        "nested": {"a": (1, 2, 3, 4), 5: {6}},
    }


def read(path: Path, memory: str = "64MiB", *known: str) -> dict[str, Any]:
    """All values of a file that holds a dict, copied out of it."""
    with Runtime(memory) as runtime, ExitStack() as held:
        file = TorchFile(path, frozenset(known), "remedy", runtime, held)
        if not isinstance(file.root, dict):
            raise FormatError("no dict")
        found = {key: file.value(raw, str(key)) for key, raw in file.root.items()}
        return {key: np.array(v) if isinstance(v, np.ndarray) else v for key, v in found.items()}


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray):
            assert found[key].dtype.newbyteorder("=") == value.dtype.newbyteorder("="), key
            assert found[key].shape == value.shape, key
            assert np.array_equal(found[key], value), key
        elif key == "nested":
            assert found[key] == {"a": (1, 2, 3, 4), 5: [6]}  # sets become lists
        else:
            assert found[key] == value, key


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_values_are_those_of_torch_load(tmp_path: Path, protocol: int, zipped: bool) -> None:
    given = values()
    torch.save(given, tmp_path / "v.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    check(read(tmp_path / "v.pt"), given)
    if zipped:  # torch itself cannot load uint16 from files of the old form
        check(read(tmp_path / "v.pt"), torch.load(tmp_path / "v.pt", weights_only=False))


def test_deflated_members_are_held_in_the_budget(tmp_path: Path) -> None:
    given = {"x": torch.arange(100_000), "n": LARGE}
    torch.save(given, tmp_path / "v.pt")
    path = rewritten(tmp_path / "v.pt", tmp_path / "d.pt", zipfile.ZIP_DEFLATED)
    check(read(path, "2MiB"), given)
    with pytest.raises(BudgetError):
        read(path, "700KiB")
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("v/data/0")
    broken = bytearray(path.read_bytes())
    begin = info.header_offset + 30 + len(info.filename)
    broken[begin : begin + 200] = bytes(200)
    path.write_bytes(broken)
    with pytest.raises(FormatError, match="torn"):
        read(path, "2MiB")


def test_what_torch_wrote_stays_in_the_file(tmp_path: Path) -> None:
    """Tensors, and arrays of protocol 4, twenty times as large as the budget, take none of it."""
    given = {"x": torch.arange(1 << 20), "n": np.arange(1 << 18)}
    torch.save(given, tmp_path / "v.pt", pickle_protocol=4)
    with Runtime("512KiB") as runtime, ExitStack() as held:
        file = TorchFile(tmp_path / "v.pt", frozenset(), "", runtime, held)
        before = runtime.budget.now_bytes
        assert int(file.value(file.root["x"], "x")[-1]) == (1 << 20) - 1
        assert int(file.value(file.root["n"], "n")[-1]) == (1 << 18) - 1
        assert runtime.budget.now_bytes == before
    torch.save(given, tmp_path / "v.pt")  # arrays of protocol 2 are text
    with pytest.raises(BudgetError):
        read(tmp_path / "v.pt", "512KiB")
    check(read(tmp_path / "v.pt", "4MiB"), given)


def test_files_of_big_endian_machines(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(-3, 9).reshape(4, 3)}, tmp_path / "v.pt")
    path = rewritten(tmp_path / "v.pt", tmp_path / "b.pt", zipfile.ZIP_STORED, swap=True)
    assert np.array_equal(read(path)["x"], np.arange(-3, 9).reshape(4, 3))


def test_views_of_old_files(tmp_path: Path) -> None:
    """Storages could be parts of others once: (key, offset, size) behind the fields of a storage."""
    magic, keys = (pickle.dumps(n, 2) for n in (0x1950A86A20F9469CFC6C, 1001)), pickle.dumps(["7"], 2)
    root = pickled({"x": tensor_call((LONG, "7", "cpu", 10, ("v", 4, 5)), 1, (4,), (1,))})
    storage = struct.pack("<q", 10) + np.arange(10).tobytes()
    head = b"".join(magic) + pickle.dumps({"little_endian": True}, 2)
    (tmp_path / "v.pt").write_bytes(head + root + keys + storage)
    assert read(tmp_path / "v.pt")["x"].tolist() == [5, 6, 7, 8]
    (tmp_path / "v.pt").write_bytes((head + root + keys + storage)[:-1])
    with pytest.raises(FormatError, match="torn"):
        read(tmp_path / "v.pt")


def test_bfloat16_is_said_to_be(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "v.pt")
    found = read(tmp_path / "v.pt")["x"]
    assert isinstance(found, Unreadable)
    assert "bfloat16_bits=True" in found.why


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_is_run(tmp_path: Path, protocol: int, zipped: bool) -> None:
    canary = tmp_path / "canary"
    torch.save(
        {"x": Evil(f"touch {canary}")},
        tmp_path / "v.pt",
        pickle_protocol=protocol,
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(FormatError, match=r"v.pt.* names \w+\.system, which is not among .*; remedy$"):
        read(tmp_path / "v.pt")
    assert not canary.exists()
    torch.load(tmp_path / "v.pt", weights_only=False)
    assert canary.exists()  # the file does what it is for


def test_stand_ins_are_inert(tmp_path: Path) -> None:
    """A known class is neither looked up nor made, and takes any state."""
    made = foreign("no.such.module", "Thing")
    path = write_zip(tmp_path / "v.pt", pickled({"a": Call(made, 1, "two", state={"x": 3})}))
    found = read(path, "64MiB", "no.such.module.Thing")["a"]
    assert (str(found.by), found.arguments, found.state) == ("no.such.module.Thing", (1, "two"), {"x": 3})
    with pytest.raises(FormatError, match=r"names no\.such\.module\.Thing, "):
        read(path)


def tensor_of(*fields: Any, **rest: Any) -> bytes:
    return pickled({"x": tensor_call(fields or (LONG, "0", "cpu", 4), **rest)})


HOSTILE: dict[str, tuple[bytes, str]] = {
    "offset beyond": (tensor_of(offset=1), "leaves its storage of 4"),
    "far offset": (tensor_of(offset=1 << 61), "leaves its storage"),
    "huge offset": (tensor_of(offset=1 << 63), "damaged"),
    "negative offset": (tensor_of(offset=-1), "damaged"),
    "negative size": (tensor_of(size=(-4,)), "damaged"),
    "negative stride": (tensor_of(stride=(-1,), offset=3), "damaged"),
    "wide stride": (tensor_of(size=(2, 2), stride=(3, 1)), "leaves its storage"),
    "no stride": (tensor_of(size=(1 << 50,), stride=(0,)), r"some of them often.*\.contiguous\(\)"),
    "overflow": (tensor_of(size=(1 << 40, 1 << 40), stride=(0, 0)), "often"),
    "empty but huge": (tensor_of(size=(0, 1 << 61, 1 << 61), stride=(1, 1, 1)), "damaged"),
    "other lengths": (tensor_of(size=(2, 2)), "damaged"),
    "many axes": (tensor_of(size=(1,) * 100, stride=(1,) * 100), "damaged"),
    "sizes of text": (tensor_of(size=("4",)), "damaged"),
    "sizes are a number": (tensor_of(size=4), "damaged"),
    "true": (tensor_of(size=(True,)), "damaged"),
    "longer storage": (tensor_of(LONG, "0", "cpu", 5), "40 bytes, of which 32 are there"),
    "no such storage": (tensor_of(LONG, "1", "cpu", 4), "which the file does not have"),
    "other storage": (tensor_of(LONG, "../data.pkl", "cpu", 4), "which the file does not have"),
    "negative storage": (tensor_of(LONG, "0", "cpu", -4), "not known"),
    "short key": (tensor_of(LONG), "damaged"),
    "storage of no class": (tensor_of("LongStorage", "0", "cpu", 4), "damaged"),
    "no arguments": (pickled({"x": Call(torch._utils._rebuild_tensor_v2)}), "damaged"),
    "parameter of itself": (pickled({"x": Call(torch._utils._rebuild_parameter, 1)}), "damaged"),
    "objects": (pickle.dumps({"x": np.array([{}, 1], object)}, 2), "Python objects"),
    "array too long": (
        pickle.dumps({"x": np.arange(4)}, 4).replace(b"K\x04\x85", b"K\x05\x85"),
        "32 bytes, its shape .* needs 40",
    ),
    "memo": (b"\x80\x02}r\xff\xff\xff\xff.", ""),
    "memo that is not": (b"\x80\x02j\xff\xff\xff\xff.", "never kept"),
    "empty": (b"", "torn"),
    "only stop": (b"\x80\x02.", "never put there"),
    "no stop": (b"\x80\x02}", "torn"),
    "text beyond": (b"\x80\x02X\xff\xff\xff\x7fab.", "promised"),
    "bytes beyond": (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffab.", "promised"),
    "long number": (b"\x80\x02\x8b\xff\xff\xff\x7fab.", "number of"),
    "digits": (b"L" + b"9" * 4090 + b"L\n.", "digits|damaged"),
    "line without end": (b"I" + b"1" * 10_000, "no end of the line"),
    "extension": (b"\x80\x02\x82\x01.", "EXT1"),
    "buffer": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "call of a number": (b"\x80\x02K\x01)R.", "no name of a class"),
    "state of a number": (b"\x80\x02K\x01}b.", "damaged"),
    "items of a number": (b"\x80\x02K\x01K\x02a.", "damaged"),
    "dict of lists": (b"\x80\x02}]K\x01s.", "as a key"),
    "odd dict": (b"\x80\x02}(K\x01u.", "key without a value"),
    "mark": (b"\x80\x02t.", "never begun"),
    "unknown": (b"\x80\x02\xfe.", "no pickle at byte 2"),
    "no text": (b"\x80\x02X\x01\x00\x00\x00\xff.", "damaged"),
    "class by number": (b"\x80\x04K\x01K\x02\x93.", "no text"),
}


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_hostile_pickles_are_refused(tmp_path: Path, case: str) -> None:
    data, match = HOSTILE[case]
    path = write_zip(tmp_path / "v.pt", data, {"0": np.arange(4).tobytes()})
    if not match:
        assert read(path, "1MiB") == {}
        return
    with pytest.raises(FormatError, match=f"v.pt.*{match}"):
        read(path, "1MiB")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02" + b"]" * 3_000_000 + b".",
        b"\x80\x02" + b"(" * 3_000_000 + b".",
        b"\x80\x02)" + b"\x85" * 3_000_000 + b".",
        b"\x80\x02}" + b"2" * 3_000_000 + b".",
        b"\x80\x02" + b"X\x64\x00\x00\x00" * 200_000,
    ],
    ids=["lists", "marks", "nested tuples", "copies", "texts"],
)
def test_much_from_few_bytes_ends_at_the_budget(tmp_path: Path, data: bytes) -> None:
    path = write_zip(tmp_path / "v.pt", data)
    with pytest.raises(BudgetError):
        read(path, "4MiB")


@pytest.mark.parametrize("large", [False, True], ids=["zip", "zip64"])
def test_a_table_of_many_members_ends_at_the_budget(tmp_path: Path, large: bool) -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHHHHII", 1, 0, 0, 0, 0, 0, 0) + b"a"
    count, begin = 100_000, 4
    size = count * len(entry)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF if large else size, begin, 0)
    if large:
        record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, begin)
        end = record + struct.pack("<IIQI", 0x07064B50, 0, begin + size, 1) + end
    path = tmp_path / "v.pt"
    path.write_bytes(b"PK\x03\x04" + entry * count + end)
    tracemalloc.start()
    try:
        with zipfile.ZipFile(path) as archive:
            assert len(archive.infolist()) == count
            assert (
                4 << 20 < tracemalloc.get_traced_memory()[0] < 24 * size
            )  # the budget counts 24 bytes for each
        del archive
        tracemalloc.reset_peak()
        with pytest.raises(BudgetError):
            read(path, "4MiB")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_deep_nesting_is_no_recursion(tmp_path: Path) -> None:
    depth = 300_000
    key = b"\x80\x02})" + b"\x85" * depth + b"K\x01s."
    with pytest.raises(FormatError, match="tuple as a key"):
        read(write_zip(tmp_path / "v.pt", key), "1GiB")
    value = b"\x80\x02}X\x01\x00\x00\x00a)" + b"\x85" * depth + b"s."
    assert list(read(write_zip(tmp_path / "v.pt", value), "1GiB")) == ["a"]
    made = b"\x80\x02}X\x01\x00\x00\x00acnumpy\ndtype\nq\x000" + b"h\x00" * depth + b")" + b"\x81\x85" * depth
    assert list(read(write_zip(tmp_path / "v.pt", made + b"s."), "1GiB")) == ["a"]


def test_any_damage_is_an_error_of_outcrop(tmp_path: Path) -> None:
    """Files cut anywhere, and with bytes changed anywhere, are read or refused, and nothing else."""
    rng = np.random.default_rng(0)
    given = {"x": BASE.T, "n": np.arange(3), "words": np.array(["a"]), "nested": [{"a": torch.ones(2)}]}
    for number, zipped in enumerate((True, False)):
        torch.save(given, tmp_path / "v.pt", _use_new_zipfile_serialization=zipped)
        whole = (tmp_path / "v.pt").read_bytes()
        path = tmp_path / f"{number}.pt"
        refused = 0
        for trial in range(400):
            broken = bytearray(whole[: int(rng.integers(0, len(whole)))] if trial % 4 == 0 else whole)
            for _ in range(trial % 4):
                broken[int(rng.integers(0, len(broken)))] = int(rng.integers(0, 256))
            path.write_bytes(broken)
            try:
                read(path, "4MiB")
            except OutcropError:
                refused += 1
        assert refused > 100


def test_what_is_no_file_of_torch(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no file"):
        read(tmp_path / "v.pt")
    for data in (b"", b"PK\x03\x04", b"hello", pickle.dumps({})):
        (tmp_path / "v.pt").write_bytes(data)
        with pytest.raises(FormatError, match=r"v\.pt is no file of torch\.save"):
            read(tmp_path / "v.pt")
    with zipfile.ZipFile(tmp_path / "v.pt", "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(FormatError, match=r"has 0 members data\.pkl"):
        read(tmp_path / "v.pt")


def test_storages_of_no_class_of_torch_are_refused(tmp_path: Path) -> None:
    path = write_zip(
        tmp_path / "v.pt", pickled({"x": Storage(foreign("evil", "LongStorage"), "0", "cpu", 1)})
    )
    with pytest.raises(FormatError, match=r"names evil\.LongStorage"):
        read(path)
