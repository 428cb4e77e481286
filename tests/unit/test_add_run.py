"""Long searches, done a part at a time, are added up in one file (scripts/add_run.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import script

add_run = script("add_run").add_run
fuzz_figures, fail_calls = script("fuzz_figures"), script("fail_calls")

LOG = """#1048576 pulse  cov: 812 ft: 3120 corp: 412/88Kb exec/s: 174762 rss: 410Mb
#1500000 DONE   cov: 812 ft: 3122 corp: 413/88Kb exec/s: 166666 rss: 410Mb
Done 1500000 runs in 9 second(s)
"""


def total(runs: list[dict]) -> dict:
    return {"total": sum(run["found"] for run in runs)}


def test_a_run_is_added_to_those_before(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    add_run(file, "search", {"found": 1}, total)
    add_run(file, "search", {"found": 2}, total)
    add_run(file, "search", {"found": 5}, total, again=True)
    told = json.loads(file.read_text())
    assert [run["found"] for run in told["runs"]] == [1, 5]
    assert told["total"] == 6
    assert told["experiment"] == "search"
    assert all(run["cpu"] == told["machine"]["cpu"] for run in told["runs"])


@pytest.mark.parametrize(
    ("log", "tried"),
    [
        (LOG, {"inputs": 1500000, "seconds": 9}),
        ("==1== ERROR: AddressSanitizer: heap-buffer-overflow\n", None),
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


def test_the_newest_search_of_a_job_counts(tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    whole = {
        "job": "import",
        "calls": 1200,
        "tried": 2000,
        "named": 1500,
        "wrong": ["import: read 3: a traceback"],
    }
    for run in (whole, {**whole, "job": "infer", "wrong": []}, {**whole, "tried": 2001, "wrong": []}):
        fail_calls.note_job(file, "fail-calls", run)
    told = json.loads(file.read_text())
    assert told["rows"] == [
        ["import", "1,200", "2,001", "1,500", "0"],
        ["infer", "1,200", "2,000", "1,500", "0"],
    ]
    assert (told["tried"], told["wrong"], len(told["runs"])) == (4001, 0, 3)
    fail_calls.note_job(None, "fail-calls", whole)
