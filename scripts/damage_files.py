#!/usr/bin/env python3
"""Damages files that commands have made, one at a time, and looks at what commands make of it that read them.

    scripts/damage_files.py [--mutations N] [--first K] [--seed S] [--json FILE]

Each mutation takes a file of a graph, a run, an embedding run or a checkpoint and changes a bit, 64 bytes in a row, or
its end, sets a page to zeros, exchanges it with another file of the artifact, removes it, or changes or removes a field
of it where it is JSON. ``outcrop verify`` and then one of the commands that read the artifact run on it, in copies of
their own. Each must end with status 1 and one error that names the artifact or the file, or with what it makes of whole
files; the file itself, where it is not read, may stay as it is. ``verify`` must find every file whose data are others.

Mutation K of a seed is the same each time. ``--json`` adds what was done to what FILE lists; processes that take
different K may do so at once. Ends with status 1 where something was otherwise.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fail_calls
import safetensors
from add_run import RunList
from fail_calls import Ended, differences, run_undisturbed

PAGE, BURST, EVERY = 4096, 64, 200  # bytes, bytes, mutations between two notes
UNREAD = (
    "history",
    *fail_calls.TIMED,
)  # say when a command ran, and what was asked; verify does not look at them
MAY_LACK = (
    "last.safetensors",
    "checkpoint.safetensors",
)  # a model that trains no more; vectors that never did


@dataclass(frozen=True)
class Use:
    """A command that reads an artifact.

    Attributes:
        arguments: What comes after ``outcrop``.
        needs: Other artifacts that must be there.
        makes: Files and folders that are compared.
    """

    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.arguments)


def _use(text: str, needs: str = "", makes: str = "") -> Use:
    return Use(tuple(text.split()), tuple(needs.split()), tuple(makes.split()))


_DRAW = "--fanouts 3,3 --batch-size 20"
_LEARN = "--epochs 1 --hidden 4 --checkpoint new --quiet"
_LITTLE = f"--memory {fail_calls.MEMORY} --quiet"
_TYPED = "--model rgcn --no-rows random:8"
_VECTORS = "--dim 8 --negatives 8 --chunk 10 --batch 50 --quiet"

# What there is, the commands that make it of what fail_calls.make_inputs has made, and those that read it.
MADE = (
    "generate few.oc --nodes 400 --edges 3000 --features 100 --classes 5 --dtype int8 --scale row"
    " --train-fraction 0.2 --valid-fraction 0.1 --test-fraction 0.1 --quiet",
    "generate papers.oc --kind typed --nodes 600 --edges 4000 --features 20 --edge-features 4"
    " --train-fraction 0.2 --valid-fraction 0.1 --test-fraction 0.1 --quiet",
    f"prepare papers.oc papers.run {_DRAW} --epochs 1 --memory 3MiB --edge-rows --quiet",
    f"prepare g.oc shared.run {_DRAW} --epochs 1 --layout heuristic --disk-space 1000KiB {_LITTLE}",
)
USES: dict[str, tuple[Use, ...]] = {
    "g.oc": (
        _use(f"train g.oc --mode memory {_DRAW} {_LEARN}", makes="new"),
        _use(f"train g.oc --mode online --disk-space 0 --memory 700KiB {_DRAW} {_LEARN}", makes="new"),
        _use(f"train g.oc --run g.run {_LEARN}", "g.run", "new"),
        _use(f"prepare g.oc new {_DRAW} --epochs 1 {_LITTLE}", makes="new"),
        _use("infer g.oc --checkpoint ckpt --out out.npy --quiet", "ckpt", "out.npy"),
    ),
    "few.oc": (
        _use(f"train few.oc --mode memory {_DRAW} {_LEARN}", makes="new"),
        _use(f"train few.oc --mode online --disk-space 0 --memory 700KiB {_DRAW} {_LEARN}", makes="new"),
        _use(f"prepare few.oc new {_DRAW} --epochs 1 {_LITTLE}", makes="new"),
    ),
    "papers.oc": (
        _use(f"train papers.oc --mode memory {_DRAW} {_TYPED} {_LEARN}", makes="new"),
        _use(f"train papers.oc --mode online --memory 3MiB {_DRAW} {_TYPED} {_LEARN}", makes="new"),
        _use(f"prepare papers.oc new {_DRAW} --epochs 1 --memory 3MiB --quiet", makes="new"),
    ),
    "g.run": (
        _use(f"train g.oc --run g.run {_LEARN}", "g.oc", "new"),
        _use(f"train g.oc --run g.run --mode ondisk {_LEARN}", "g.oc", "new"),
        _use(f"train g.oc --run g.run --mode belady --memory 1MiB {_LEARN}", "g.oc", "new"),
        _use(f"prepare g.oc g.run {_DRAW} --epochs 1 {_LITTLE}", "g.oc", "g.run"),
    ),
    "shared.run": (_use(f"train g.oc --run shared.run {_LEARN}", "g.oc", "new"),),
    "papers.run": (_use(f"train papers.oc --run papers.run {_TYPED} {_LEARN}", "papers.oc", "new"),),
    "ckpt": (
        _use("infer g.oc --checkpoint ckpt --out out.npy --quiet", "g.oc", "out.npy"),
        _use(f"train g.oc --mode memory {_DRAW} --epochs 2 --hidden 4 --checkpoint ckpt --quiet", "g.oc", "ckpt"),
    ),
    "t.kg": (_use(f"embed prepare t.kg new --partitions 4 {_LITTLE}", makes="new"),),
    "trained.emb": (
        _use(f"embed train trained.emb --epochs 2 {_VECTORS}", "t.kg", "trained.emb"),
        _use("embed export trained.emb --out vectors --quiet", "t.kg", "vectors"),
        _use("embed eval trained.emb --quiet --json said.json", "t.kg", "said.json"),
    ),
}  # fmt: skip
# Those that say what is there, of runs and embedding runs as a page with their history. They say what is damaged among
# the rest, so nothing of it is compared.
for _artifact in USES:
    _told = [_use(f"info {_artifact} --quiet")]
    if _artifact.endswith((".run", ".emb")):
        _told.append(_use(f"report {_artifact} --no-measure --out page.html --quiet", "g.oc papers.oc t.kg"))
    USES[_artifact] += tuple(_told)


@dataclass(frozen=True)
class Mutation:
    """Says what is done to which file: with bytes that follow from ``place``, a part of the file from 0 to 1."""

    artifact: str
    file: str
    how: str
    place: float
    other: str
    use: Use

    def __str__(self) -> str:
        beside = f" and {self.other}" if self.how == "exchange" else ""
        return f"{self.how} {self.artifact}/{self.file}{beside} at {self.place:.4f}"

    def apply(self, artifact: Path) -> None:
        """Changes the file; the bytes written follow from ``place``."""
        path = artifact / self.file
        if self.how == "remove":
            return path.unlink()
        if self.how == "exchange":
            mine, theirs = path.read_bytes(), (artifact / self.other).read_bytes()
            path.write_bytes(theirs)
            (artifact / self.other).write_bytes(mine)
            return None
        change = {
            "bit": _bit,
            "burst": _burst,
            "page": _page,
            "cut": _cut,
            "extend": _extend,
            "field": _field,
        }
        path.write_bytes(change[self.how](path.read_bytes(), self.place))
        return None


def _bit(data: bytes, place: float) -> bytes:
    if not data:
        return data
    at = int(place * len(data) * 8)
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]


def _burst(data: bytes, place: float) -> bytes:
    at = int(place * len(data))
    new = random.Random(place).randbytes(min(BURST, len(data) - at))
    return data[:at] + new + data[at + len(new) :]


def _page(data: bytes, place: float) -> bytes:
    at = int(place * len(data)) // PAGE * PAGE
    return data[:at] + bytes(min(PAGE, len(data) - at)) + data[at + PAGE :]


def _cut(data: bytes, place: float) -> bytes:
    return data[: int(place * len(data))]


def _extend(data: bytes, place: float) -> bytes:
    chance = random.Random(place)
    return data + chance.randbytes(chance.choice((1, 100, PAGE)))


def _field(data: bytes, place: float) -> bytes:
    """Changes or removes one value of a JSON file, wherever it lies in it."""
    held, chance = json.loads(data), random.Random(place)
    parent, key = chance.choice(list(_fields(held)))
    new = chance.choice((0, 1, -1, 2**31, 2**63, 1.5, "", "x", None, True, [], {}, "one more", "gone"))
    if new == "gone":
        del parent[key]
    elif new == "one more" and isinstance(parent[key], int):
        parent[key] += 1
    else:
        parent[key] = copy.deepcopy(new)
    return json.dumps(held, indent=1).encode()


def _fields(held: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(held) if isinstance(held, dict) else range(len(held)):
        yield held, key
        if isinstance(held[key], dict | list):
            yield from _fields(held[key])


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def draw(seed: str, number: int, made: Path) -> Mutation:
    """Draws the mutation of this number."""
    chance = random.Random(f"{seed} {number}")
    artifact = chance.choice([name for name, uses in USES.items() for _ in uses])
    files = files_of(made / artifact)
    file = chance.choice(files)
    ways = ["bit", "bit", "burst", "page", "cut", "extend", "exchange", "remove"]
    how = chance.choice(["field"] * 4 + ways if file.endswith(".json") else ways)
    other = chance.choice([name for name in files if name != file])
    return Mutation(artifact, file, how, chance.random(), other, chance.choice(USES[artifact]))


class Search:
    """Uses artifacts of which files are damaged.

    Attributes:
        counts: Of each artifact: mutations, what ``verify`` found, and what other commands named or made rightly.
        wrong: What was otherwise, with the mutation that shows it.
    """

    def __init__(self, folder: Path, made: Path, say: Callable[[str], None]):
        self._folder, self._made, self._say = folder, made, say
        self._want: dict[Use, dict[str, Any]] = {}
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in USES}
        self.wrong: list[str] = []

    def learn(self) -> None:
        """Runs every command on whole files, twice: it must make the same."""
        for artifact, uses in USES.items():
            for use in (_use(f"verify {artifact}"), *uses):
                for _ in range(2):
                    case = self._fresh(artifact, use)
                    ended = run_undisturbed(case, self._folder / "said", use.arguments)
                    if ended.status != 0:
                        raise SystemExit(
                            f"outcrop {use}, on whole files: status {ended.status}\n{ended.said}"
                        )
                    found = self._found(case, use)
                    if other := differences(found, self._want.setdefault(use, found)):
                        raise SystemExit(f"outcrop {use}, on whole files, makes other {other} each time")
                    shutil.rmtree(case)

    def damage(self, number: int, mutation: Mutation) -> None:
        """Does one mutation, and has two commands use it."""
        counts = self.counts[mutation.artifact]
        counts["mutations"] += 1
        for use in (_use(f"verify {mutation.artifact}"), mutation.use):
            kind = "verify" if use.arguments[0] == "verify" else "use"
            case = self._fresh(mutation.artifact, use)
            before = self._contents(case, mutation)
            mutation.apply(case / mutation.artifact)
            damaged = self._contents(case, mutation)
            ended = run_undisturbed(case, self._folder / "said", use.arguments)
            wrong = self._wrong_of(mutation, use, ended, case, damaged)
            if (
                not wrong
                and kind == "verify"
                and ended.status == 0
                and self._must_be_found(mutation, before, damaged)
            ):
                wrong = "verify finds nothing"
            counts[f"{kind} named" if ended.status == 1 else f"{kind} same"] += not wrong
            counts["wrong"] += bool(wrong)
            if wrong:
                self.wrong.append(f"{number}: {mutation}: outcrop {use}: {wrong}")
                self._say(f"WRONG {self.wrong[-1]}\n   said: {' '.join(ended.said.split())[-600:]}")
            shutil.rmtree(case)

    def _wrong_of(
        self, mutation: Mutation, use: Use, ended: Ended, case: Path, damaged: dict[str, bytes | None]
    ) -> str:
        """Says what is not as it must be; empty: nothing."""
        made = False
        if ended.status == 0:
            unread = {name for name, data in damaged.items() if self._contents(case, mutation)[name] == data}
            found, want = self._found(case, use), self._want[use]
            if mutation.how == "extend":  # what was added may stay there, behind what is right
                unread |= {name for name in damaged if _begins_with(found.get(name), want.get(name))}
            made = not set(differences(found, want)) - unread
        job = fail_calls.Job("", lambda _: None, use.arguments, lambda _: {})
        if wrong := fail_calls.wrong_of(ended, made, job):
            return wrong
        said = " ".join(ended.said.split()).partition("error:")[2]
        named = ended.status == 0 or any(
            part in said for part in (mutation.artifact, Path(mutation.file).name)
        )
        return "" if named else "the error does not name the artifact"

    def _must_be_found(
        self, mutation: Mutation, before: dict[str, bytes | None], damaged: dict[str, bytes | None]
    ) -> bool:
        """Tells whether data are others: not the zeros behind them, nor what only says when a command ran."""
        file = Path(mutation.file)
        if set(UNREAD) & set(file.parts) or (mutation.how == "remove" and file.name in MAY_LACK):
            return False
        changed = [name for name in before if before[name] != damaged[name]]
        return any(self._differs(name, before[name], damaged[name]) for name in changed)

    def _differs(self, name: str, before: bytes | None, damaged: bytes | None) -> bool:
        """Tells whether more than padding differs: of manifests what they say, of arrays what the manifest counts."""
        file = self._made / name
        if before is None or damaged is None:
            return True
        if file.name == "manifest.json":
            return _says_other(before, damaged)
        if file.name == "tables.bin":
            ranges = _named_ranges(file.parent / "checkpoint.safetensors", len(before))
            return any(damaged[begin:end] != before[begin:end] for begin, end in ranges)
        manifest = file.parent / "manifest.json"
        specs = json.loads(manifest.read_text())["arrays"] if manifest.is_file() else {}
        sizes = {spec["file"]: spec["shape"][0] * spec["stride_bytes"] for spec in specs.values()}
        data = sizes.get(file.name, len(before))
        return damaged[:data] != before[:data]

    def _contents(self, case: Path, mutation: Mutation) -> dict[str, bytes | None]:
        found = dict[str, bytes | None]()
        for name in {mutation.file, mutation.other if mutation.how == "exchange" else mutation.file}:
            path = case / mutation.artifact / name
            found[f"{mutation.artifact}/{name}"] = path.read_bytes() if path.is_file() else None
        return found

    def _fresh(self, artifact: str, use: Use) -> Path:
        case = self._folder / "case"
        case.mkdir()
        for name in {artifact, *use.needs}:
            shutil.copytree(self._made / name, case / name)
        return case

    def _found(self, case: Path, use: Use) -> dict[str, Any]:
        return fail_calls.files_below(case, use.makes)


def _begins_with(found: Any, want: Any) -> bool:
    return isinstance(found, bytes) and isinstance(want, bytes) and found.startswith(want)


def _says_other(before: bytes, damaged: bytes) -> bool:
    """Tells whether a manifest says other than before; without its checksum alone it is one of an earlier version."""
    was = json.loads(before)
    try:
        told = json.loads(damaged)
    except ValueError:
        return True
    if isinstance(told, dict) and "sha256" not in told:
        del was["sha256"]
    return was != told


def _named_ranges(checkpoint: Path, size: int) -> list[tuple[int, int]]:
    """Returns where tables.bin has what the checkpoint names: one of two places of each slice."""
    text = safetensors.safe_open(checkpoint, "numpy").metadata()["outcrop"]
    places = json.loads(text)["table"]["places"]
    slab = size // (2 * len(places))
    return [
        ((2 * i + place) * slab, (2 * i + place + 1) * slab) for i, place in enumerate(places) if place >= 0
    ]


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up what runs did, artifact by artifact."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in USES}
    for run in runs:
        for name, counts in run["counts"].items():
            sums[name].update(counts)
    keys = ("mutations", "verify named", "verify same", "use named", "use same", "wrong")
    return {
        "mutations": sum(counts["mutations"] for counts in sums.values()),
        "uses": sum(2 * counts["mutations"] for counts in sums.values()),
        "wrong": sum(len(run["wrong"]) for run in runs),
        "columns": ["files of", *keys],
        "rows": [[name, *(f"{counts[key]:,}" for key in keys)] for name, counts in sums.items()],
    }


def make(made: Path) -> None:
    """Makes all artifacts."""
    fail_calls.make_inputs(made)
    for command in MADE:
        ended = run_undisturbed(made, made.with_suffix(".said"), command.split())
        if ended.status != 0:
            raise SystemExit(f"outcrop {command}: status {ended.status}\n{ended.said}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--json", type=Path, help="adds what was done to the runs that this file lists")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # or forks would lack the threads that this process started
    sys.path.insert(0, str(fail_calls.TESTS))
    from artifact_support import memory_folder

    fail_calls.import_all()
    noted, began = RunList(asked.json, "damage-files", rows_of), time.monotonic()
    with memory_folder() as folder:
        make(folder / "made")
        search = Search(folder, folder / "made", lambda text: print(text, flush=True))
        search.learn()
        print(f"{len(USES)} artifacts, {sum(map(len, USES.values()))} commands that read them", flush=True)
        for done, number in enumerate(range(asked.first, asked.first + asked.mutations), 1):
            search.damage(number, draw(asked.seed, number, folder / "made"))
            if done % EVERY == 0 or done == asked.mutations:
                told = {"seed": asked.seed, "first": asked.first, "mutations": done, "wrong": search.wrong}
                noted.add(told | {"counts": search.counts}, again=done > EVERY)
                print(
                    f"{done} mutations, {len(search.wrong)} wrong, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
    return len(search.wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
