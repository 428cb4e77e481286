"""Files of all artifacts are damaged, and used (scripts/damage_files.py): a share here, all in ``make soak``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from artifact_support import script_output
from support import script

WHOLE = {
    "a.bin": bytes(range(1, 251)) * 40,
    "b.bin": b"other",
    "m.json": b'{"x": {"y": [1, 2]}, "z": "text"}',
}


@pytest.mark.slow
def test_every_damage_is_named_or_harmless() -> None:
    assert " 0 wrong" in script_output("damage_files", "--mutations", "150")[-1]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("add_run", "fail_calls"):
        monkeypatch.setitem(sys.modules, name, script(name))
    return script("damage_files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "g.oc").mkdir()
    for name, data in WHOLE.items():
        (tmp_path / "g.oc" / name).write_bytes(data)
    return tmp_path


def mutation(module: ModuleType, how: str, place: float = 0.3, file: str = "a.bin"):
    return module.Mutation("g.oc", file, how, place, "b.bin", module.USES["g.oc"][0])


def test_mutations_follow_from_their_numbers(module: ModuleType, folder: Path) -> None:
    for name in module.USES:
        if name != "g.oc":
            (folder / name).mkdir()
            (folder / name / "x.bin").write_bytes(b"1")
            (folder / name / "y.bin").write_bytes(b"2")
    drawn = [str(module.draw("s", number, folder)) for number in range(300)]
    assert drawn == [str(module.draw("s", number, folder)) for number in range(300)]
    assert len(set(drawn)) > 290
    assert {text.split()[0] for text in drawn} == {
        "bit",
        "burst",
        "page",
        "cut",
        "extend",
        "exchange",
        "remove",
        "field",
    }


@pytest.mark.parametrize(
    ("how", "changed"),
    [("bit", 1), ("burst", range(50, 65)), ("page", 4096), ("cut", None), ("extend", None)],
)
def test_what_a_mutation_changes(module: ModuleType, folder: Path, how: str, changed) -> None:
    before = WHOLE["a.bin"]
    mutation(module, how).apply(folder / "g.oc")
    after = (folder / "g.oc/a.bin").read_bytes()
    if how == "cut":
        assert after == before[:3000]
    elif how == "extend":
        assert after[: len(before)] == before
        assert len(after) > len(before)
    else:
        assert len(after) == len(before)
        others = sum(a != b for a, b in zip(before, after, strict=True))
        assert others in (changed if isinstance(changed, range) else [changed])


def test_files_are_exchanged_removed_and_fields_of_json_changed(module: ModuleType, folder: Path) -> None:
    mutation(module, "exchange").apply(folder / "g.oc")
    assert (folder / "g.oc/a.bin").read_bytes() == WHOLE["b.bin"]
    assert (folder / "g.oc/b.bin").read_bytes() == WHOLE["a.bin"]
    mutation(module, "remove").apply(folder / "g.oc")
    assert not (folder / "g.oc/a.bin").exists()
    found = set()
    for number in range(200):
        (folder / "g.oc/m.json").write_bytes(WHOLE["m.json"])
        mutation(module, "field", number / 200, "m.json").apply(folder / "g.oc")
        found.add(json.dumps(json.loads((folder / "g.oc/m.json").read_text())))
    assert len(found) > 40


def test_what_verify_must_find(module: ModuleType, folder: Path) -> None:
    search = module.Search(folder, folder, print)
    spec = {"arrays": {"a": {"file": "a.bin", "shape": [3], "stride_bytes": 1}}}
    (folder / "g.oc/manifest.json").write_text(json.dumps(spec))

    def found(file: str, before: bytes | None, after: bytes | None, how: str = "bit") -> bool:
        name = f"g.oc/{file}"
        return search._must_be_found(mutation(module, how, file=file), {name: before}, {name: after})

    assert found("a.bin", b"12\0\0", b"13\0\0")
    assert found("a.bin", b"12\0\0", b"12\1\0")
    assert found("a.bin", b"12\0\0", b"1")
    assert found("a.bin", b"12", None, "remove")
    assert not found("a.bin", b"12\0\0", b"12\0\1")
    assert not found("a.bin", b"12\0\0", b"12\0\0more", "extend")
    assert not found("history/a.json", b"1", b"2")
    assert not found("run.json", b"1", b"2", "field")
    assert not found("last.safetensors", b"1", None, "remove")
    assert found("last.safetensors", b"1", b"2")


def test_what_verify_must_find_of_manifests(module: ModuleType) -> None:
    before = b'{"sha256": "ab", "x": 0.30000000000000004}'
    for after in (
        b'{"sha256": "ab", "x": 1}',
        b'{"sha256": null, "x": 0.30000000000000004}',
        b'{"sha256": "ab"}',
        b"{",
    ):
        assert module._says_other(before, after)
    for after in (b'{"sha256":"ab","x":0.30000000000000005}', b'{"x": 0.30000000000000004}'):
        assert not module._says_other(before, after)


def test_what_commands_must_make(module: ModuleType, folder: Path) -> None:
    search, one = module.Search(folder, folder, print), mutation(module, "bit")
    use = module.Use(("train", "g.oc"), (), ("g.oc/b.bin",))
    search._want[use] = search._found(folder, use)
    damaged = {"g.oc/a.bin": WHOLE["a.bin"]}

    def wrong(status: int | None, said: str = "") -> str:
        return search._wrong_of(one, use, module.Ended(status, said, 0, 0, ""), folder, damaged)

    assert wrong(0) == ""
    assert wrong(1, "error: g.oc/a.bin: the page at byte 0 was damaged") == ""
    assert wrong(1, "error: other.bin is missing") == "the error does not name the artifact"
    assert wrong(1, "Traceback: g.oc/a.bin") == "a traceback"
    assert wrong(-11) == "ended by signal 11"
    assert wrong(None) == "hung for 60 s"
    (folder / "g.oc/b.bin").write_bytes(b"another")
    assert wrong(0) == "status 0, and something else was made"


def test_runs_add_up(module: ModuleType) -> None:
    runs = [
        {"counts": {"g.oc": {"mutations": 3, "use named": 2, "use same": 1, "verify named": 3}}, "wrong": []},
        {"counts": {"g.oc": {"mutations": 2, "wrong": 1}, "ckpt": {"mutations": 1}}, "wrong": ["x"]},
    ]
    told = module.rows_of(runs)
    assert (told["mutations"], told["wrong"]) == (6, 1)
    assert told["rows"][0] == ["g.oc", "5", "3", "0", "2", "1", "1"]
