"""The worked example of CONTRIBUTING.md names files that are there and have what it says; its commands exist."""

from __future__ import annotations

import re

from support import REPOSITORY

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text()


def test_every_file_of_the_example_has_the_option() -> None:
    rows = re.findall(r"^\| \d+\. [^|]+\| ([^|]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 9
    named = [path for row in rows[:-1] for path in re.findall(r"`([^`]+)`", row)]
    assert len(named) > 10
    for path in named:
        assert "dependency" in (REPOSITORY / path).read_text(), path


def test_functions_and_commands_exist() -> None:
    (config,) = re.findall(r"^\| 2\. the option \| `([^`]+)`", PAGE, re.MULTILINE)
    (sampler,) = re.findall(r"^\| 3\. drawing \| .*?`([^`]+\.cpp)`", PAGE, re.MULTILINE)
    assert "def _problems_of_samplers" in (REPOSITORY / config).read_text()
    assert "void check_options(" in (REPOSITORY / sampler).read_text()
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in ("CONTRIBUTING.md", "docs/testing.md"):
        for target in re.findall(r"(?:^|`|, `)make ([a-z]+)", (REPOSITORY / page).read_text(), re.MULTILINE):
            assert target in targets, f"{page}: make {target}"
