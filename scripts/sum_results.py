"""Adds up JUnit XML reports (pytest and ctest) and prints ``N passed, M failed, K skipped`` alone on a line.

Usage: ``python scripts/sum_results.py [--expect NAME ...] FOLDER``. A tier named by ``--expect`` whose report is
missing or unreadable died before it could write one: it counts as one failure. Standard library only, so that it
runs where set-up itself failed. Exit status 1 if anything failed or nothing ran.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count(report: Path) -> Counts:
    """Outcomes in one report. A test that fails in several phases is one failed test, as it is to its reader."""
    outcomes: dict[tuple[str, str], str] = {}
    rank = {"passed": 0, "skipped": 1, "failed": 2}
    for number, case in enumerate(ET.parse(report).getroot().iter("testcase")):
        key = (case.get("classname", ""), case.get("name", "") or str(number))
        outcome = _outcome(case)
        if rank[outcome] >= rank[outcomes.get(key, "passed")]:
            outcomes[key] = outcome
    values = list(outcomes.values())
    return Counts(values.count("passed"), values.count("failed"), values.count("skipped"))


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    # ctest says "notrun" or "disabled" in an attribute where pytest has an element
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    return "passed"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--expect", action="append", default=[], metavar="NAME", help="report NAME.xml must be there")
    options = parser.parse_args(arguments)
    names = sorted({*options.expect, *(path.stem for path in options.folder.glob("*.xml"))})
    total = Counts()
    for name in names:
        try:
            counts = count(options.folder / f"{name}.xml")
            note = ""
        except (OSError, ET.ParseError) as error:
            counts, note = Counts(failed=1), f"  (no report: {error})"
        print(f"  {name:<16} {counts}{note}")
        total += counts
    print(f"\n{total}")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
