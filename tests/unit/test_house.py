"""The rules of the house (`make lint` asks for them): each is seen to be broken in a small source tree."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from support import script


@pytest.fixture
def rules() -> ModuleType:
    return script("house")


def tree(root: Path, **files: str) -> Path:
    """A repository of the files; ``__`` stands for ``/``, names without an ending are modules of the package."""
    for name, text in {"__init__": "_HOME = {}\n", **files}.items():
        path = root / name if "." in name else root / "src" / "outcrop" / (name.replace("__", "/", 1) + ".py")
        path = root / "src" / "outcrop" / "__init__.py" if name == "__init__" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("README.md", "pyproject.toml"):
        (root / name).touch()
    return root


def house(rules: ModuleType, root: Path, **files: str):
    return rules.House(tree(root, **files))


def test_rooms_are_counted(rules: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ARROWS", 1)
    three = house(
        rules,
        tmp_path,
        a="from outcrop.c__ import x\n",
        b="import outcrop.a\nimport outcrop.d\n",
        d="",
        c="x = 1\n",
    )
    assert rules.rooms(three) == {"loose modules of src/outcrop": 4, "arrows between rooms": 2}


@pytest.mark.parametrize("indent", ["", "if TYPE_CHECKING:\n    ", "def f():\n    "])
def test_circles_are_found_wherever_the_import_stands(rules: ModuleType, tmp_path: Path, indent: str) -> None:
    files = {"a": "from outcrop import b\n", "b": "from outcrop.c import x\n", "d": "from outcrop import a\n"}
    found = rules.circles(house(rules, tmp_path, **files, c=f"{indent}import outcrop.a\n"))
    assert found == {"outcrop.a outcrop.b outcrop.c": 3}


def test_parameters_of_functions_and_of_what_the_package_offers(rules: ModuleType, tmp_path: Path) -> None:
    names = ", ".join(f"p{i}" for i in range(8))
    source = (
        f"def wide({names}): pass\ndef _own({names}): pass\nclass A:\n    def __init__(self, {names}): pass\n"
        f"def door({names}, **options): pass\ndef narrow(a, b, *, c=1): pass\n"
    )
    found = rules.parameters(house(rules, tmp_path, __init__='_HOME = {"door": "outcrop.a"}\n', a=source))
    assert found == {"outcrop.a.wide": 8, "outcrop.a.A.__init__": 8, "outcrop.a.door **options": 1}


def test_participles_are_no_names(rules: ModuleType, tmp_path: Path) -> None:
    source = "class Wanted: pass\nclass _Arrived: pass\nclass WantedRows: pass\nclass Ring: pass\n"
    assert rules.participles(house(rules, tmp_path, a=source)) == {
        "outcrop.a.Wanted": 1,
        "outcrop.a._Arrived": 1,
    }


def test_names_that_nobody_uses(rules: ModuleType, tmp_path: Path) -> None:
    source = (
        "def dead(): pass\ndef used(): pass\ndef _own(): pass\nclass A:\n    def documented(self): pass\n"
    )
    found = house(rules, tmp_path, a=source, b="from outcrop.a import used, A\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("call `documented`")
    assert rules.dead_names(found) == {"outcrop.a.dead": 1}


def test_paths_in_documents_exist(rules: ModuleType, tmp_path: Path) -> None:
    page = (
        "see store/a.py, src/outcrop/store/a.py and [b](docs/b.md), not store/gone.py, nor results/*/x.json"
    )
    found = house(
        rules, tmp_path, store__a="", **{"ARCHITECTURE.md": page, "docs/b.md": "above: ../ARCHITECTURE.md"}
    )
    assert rules.stale_paths(found) == {"ARCHITECTURE.md: store/gone.py": 1}


def test_readme_is_short(rules: ModuleType, tmp_path: Path) -> None:
    found = house(rules, tmp_path)
    (tmp_path / "README.md").write_text("line\n" * (rules.README_LINES + 1))
    assert rules.readme(found) == {"lines of README.md": rules.README_LINES + 1}


def test_exceptions_only_shrink(rules: ModuleType) -> None:
    found = {"rule": {"known": 3, "new": 1, "worse": 5}}
    excepted = {"rule": {"known": 4, "worse": 2, "gone": 1}}
    said = "\n".join(rules.compare(found, excepted))
    for part in ("new: 1", "worse: 5, its exception says 2", "known: 3, its exception says 4", "gone: 0"):
        assert part in said
    assert rules.shrunk(found, excepted) == {"rule": {"known": 3, "worse": 2}}
    assert rules.compare({"rule": {"known": 3}}, {"rule": {"known": 3}}) == []
