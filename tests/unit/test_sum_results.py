"""scripts/sum_results.py: the closing line of CI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import REPOSITORY

PYTEST = """<?xml version="1.0"?><testsuites><testsuite name="pytest" tests="6">
<testcase classname="t" name="a"/><testcase classname="t" name="b"/>
<testcase classname="t" name="bad"><failure message="no"/></testcase>
<testcase classname="t" name="leaky"/><testcase classname="t" name="leaky"><error message="teardown"/></testcase>
<testcase classname="t" name="left out"><skipped message="why"/></testcase>
</testsuite></testsuites>"""
CTEST = """<?xml version="1.0"?><testsuite name="(empty)" tests="4" failures="1" disabled="1" skipped="1">
<testcase name="A" classname="A" status="run"/>
<testcase name="B" classname="B" status="fail"><failure message=""/></testcase>
<testcase name="C" classname="C" status="disabled"/>
<testcase name="D" classname="D" status="notrun"><skipped message=""/></testcase>
</testsuite>"""


def total(folder: Path, *arguments: str) -> tuple[str, int]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "sum_results.py"), *arguments, str(folder)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stderr == ""
    return run.stdout.splitlines()[-1], run.returncode


def test_pytest_and_ctest_are_added_up(tmp_path: Path):
    (tmp_path / "py.xml").write_text(PYTEST)
    (tmp_path / "cpp.xml").write_text(CTEST)
    assert total(tmp_path) == ("3 passed, 3 failed, 3 skipped", 1)


def test_all_passed_is_status_zero(tmp_path: Path):
    (tmp_path / "a.xml").write_text('<testsuite><testcase classname="c" name="n"/></testsuite>')
    assert total(tmp_path, "--expect", "a") == ("1 passed, 0 failed, 0 skipped", 0)


def test_a_missing_or_torn_report_is_a_failure(tmp_path: Path):
    (tmp_path / "a.xml").write_text('<testsuite><testcase classname="c" name="n"/></testsuite>')
    (tmp_path / "torn.xml").write_text(PYTEST[:100])
    assert total(tmp_path, "--expect", "gone", "--expect", "a") == ("1 passed, 2 failed, 0 skipped", 1)


def test_nothing_at_all_is_no_success(tmp_path: Path):
    assert total(tmp_path) == ("0 passed, 0 failed, 0 skipped", 1)
