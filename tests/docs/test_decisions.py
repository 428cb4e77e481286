"""Decision pages have the same parts, and their index lists them all."""

from __future__ import annotations

import re

from support import REPOSITORY

FOLDER = REPOSITORY / "docs" / "decisions"
HEADINGS = ["Question", "What was measured", "Choice", "What would change it"]


def test_the_index_lists_every_page_with_its_date() -> None:
    expected = []
    for number, path in enumerate(sorted(FOLDER.glob("[0-9]*.md")), 1):
        text = path.read_text()
        title = re.match(rf"# {number}\. (.+)\n\nDecided (\d{{4}}-\d\d-\d\d)\.\n", text)
        assert title, path.name
        assert path.name.startswith(f"{number:03d}-")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS, path.name
        assert all(part.strip() for part in re.split(r"^## .+$", text, flags=re.MULTILINE)), path.name
        expected.append(f"| {number} | {title[2]} | [{title[1]}]({path.name}) |")
    listed = [line for line in (FOLDER / "README.md").read_text().splitlines() if re.match(r"\| \d", line)]
    assert listed == expected
    assert len(listed) >= 14


def test_sources_of_the_numbers_exist() -> None:
    for path in FOLDER.glob("*.md"):
        for named in re.findall(r"`((?:benchmarks|tests)/[^`]+)`", path.read_text()):
            assert (REPOSITORY / named).exists(), f"{path.name}: {named}"
