"""The pictures are what scripts/pictures.py draws, ARCHITECTURE.md shows each, and every text lies in its box."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from browser import chromium
from support import REPOSITORY, script

# Of each box: its heading, and how far its texts reach out of the rectangle on either side, in pixels.
_REACH = """
return Array.from(document.querySelectorAll('g.box')).map(function (group) {
  var box = group.querySelector('rect').getBBox(), worst = -1e9;
  group.querySelectorAll('text').forEach(function (text) {
    var t = text.getBBox();
    worst = Math.max(worst, box.x - t.x, t.x + t.width - box.x - box.width, box.y - t.y,
                     t.y + t.height - box.y - box.height);
  });
  return [group.querySelector('text').textContent, worst];
});
"""
_RIGHT_END = """
return Math.max.apply(null, Array.from(document.querySelectorAll('text')).map(function (text) {
  var t = text.getBBox(); return t.x + t.width; }));
"""


@pytest.fixture
def pictures() -> ModuleType:
    return script("pictures")


def test_the_files_are_what_the_script_draws(pictures: ModuleType) -> None:
    page = (REPOSITORY / "ARCHITECTURE.md").read_text()
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(pictures.PICTURES)
    for name, draw in pictures.PICTURES.items():
        written = (pictures.FOLDER / f"{name}.svg").read_text()
        assert written == draw().svg(), "run python scripts/pictures.py"
        assert ElementTree.fromstring(written).find("{http://www.w3.org/2000/svg}title").text in page
        assert f"(docs/pictures/{name}.svg)" in page


@pytest.mark.slow
def test_every_text_fits(pictures: ModuleType, tmp_path: Path) -> None:
    with chromium() as browser:
        for name, draw in pictures.PICTURES.items():
            picture = draw()
            browser.open(pictures.FOLDER / f"{name}.svg")
            found = browser.run(_REACH)
            assert len(found) >= 10
            assert [heading for heading, reach in found if reach > -4] == [], name
            assert browser.run(_RIGHT_END) < picture.width - 10
        picture.box(0, 0, 40, 20, "much too long for its box", [], "work")
        (tmp_path / "bad.svg").write_text(picture.svg())
        browser.open(tmp_path / "bad.svg")
        assert browser.run(_REACH)[-1][1] > 0
