"""Long searches, done a part at a time, are added up in one file (scripts/add_run.py)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from support import script

RunList = script("add_run").RunList
fuzz_figures, fail_calls = script("fuzz_figures"), script("fail_calls")

LOG = """#1048576 pulse  cov: 812 ft: 3120 corp: 412/88Kb exec/s: 174762 rss: 410Mb
#1500000 DONE   cov: 812 ft: 3122 corp: 413/88Kb exec/s: 166666 rss: 410Mb
Done 1500000 runs in 9 second(s)
"""


def total(runs: list[dict]) -> dict:
    return {"total": sum(run["found"] for run in runs)}


def test_a_run_is_added_to_those_before(tmp_path: Path) -> None:
    """Two lists of one file, as two processes have them: what one has done since is put in its own place."""
    file = tmp_path / "runs.json"
    first, second = RunList(file, "search", total), RunList(file, "search", total)
    first.add({"found": 1})
    second.add({"found": 2})
    first.add({"found": 5}, again=True)
    second.add({"found": 7})
    told = json.loads(file.read_text())
    assert sorted(run["found"] for run in told["runs"]) == [2, 5, 7]
    assert told["total"] == 14
    assert told["experiment"] == "search"
    assert len({run["run"] for run in told["runs"]}) == 3
    assert all(run["cpu"] == told["machine"]["cpu"] for run in told["runs"])
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]
    RunList(None, "search", total).add({"found": 1})


@pytest.mark.parametrize(
    ("log", "tried"),
    [
        (LOG, {"inputs": 1500000, "seconds": 9}),
        ("==1== ERROR: AddressSanitizer: heap-buffer-overflow\n", None),
        (LOG + "==1== ERROR: LeakSanitizer: detected memory leaks\n", None),
        ("", None),
    ],
)
def test_a_log_of_the_fuzzer_says_what_was_tried(log: str, tried: dict | None) -> None:
    assert fuzz_figures.tried(log) == tried


def test_targets_are_added_up() -> None:
    runs = [
        {"targets": {"csv": {"inputs": 10, "seconds": 600}, "npy": {"inputs": 1000, "seconds": 60}}},
        {"targets": {"csv": None}},
        {"targets": {"csv": {"inputs": 5, "seconds": 1200}}},
    ]
    found = fuzz_figures.rows_of(runs)
    assert found["rows"] == [["csv", "30 min", "15", "1"], ["npy", "1 min", "1,000", "0"]]
    assert (found["least_minutes"], found["inputs"], found["failed"]) == (1, 1015, 1)


def asked(file: Path | None, at: int | None = None) -> argparse.Namespace:
    return argparse.Namespace(json=file, at=at)


def test_the_newest_search_of_a_job_counts(tmp_path: Path) -> None:
    """But one of something else stands beside it."""
    file = tmp_path / "calls.json"
    done = {"calls": 1200, "tried": 2000, "named": 1500, "wrong": []}
    whole = {"job": "import", "of": "read,write", **done, "wrong": ["import: read 3: a traceback"]}
    noted = fail_calls.list_of_jobs(asked(file), "fail-calls")
    noted.add(whole)
    assert json.loads(file.read_text())["rows"] == [["import", "1,200", "2,000", "1,500", "1"]]
    for run in (whole, {**whole, "of": "open", **done}, {**whole, **done, "tried": 2001}):
        noted.add(run)
    told = json.loads(file.read_text())
    assert told["rows"] == [
        ["import", "read,write", "1,200", "2,001", "1,500", "0"],
        ["import", "open", "1,200", "2,000", "1,500", "0"],
    ]
    assert (told["tried"], told["wrong"], len(told["runs"])) == (4001, 0, 4)
    with pytest.raises(SystemExit, match="leave out --at"):
        fail_calls.list_of_jobs(asked(file, 3), "fail-calls")
