"""Checks rules of the house that no linter knows: rooms of src/outcrop, circles, parameters, names, dead ends, paths.

    python scripts/house.py           says what breaks a rule and is no exception, and ends with status 1
    python scripts/house.py --write   takes what is mended out of scripts/house.toml, lowers what is less

Exceptions only shrink: one that is larger than what the source has is reported as well, until ``--write`` lowers it.
A new one is written by hand, with its reason.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = "scripts/house.toml"
PACKAGE = "outcrop"

ENTRIES, LOOSE, ARROWS = (
    22,
    3,
    150,
)  # of src/outcrop: entries, modules beside its packages, arrows between its rooms
PARAMETERS, OF_A_DOOR = 6, 10  # of a public function, of one that the package offers
SHORTCUTS = ("memory", "epochs")  # of a door: short for a field of the objects that it takes
README_LINES = 180
_MARKERS = ("__", "_core", "py.typed")  # how files begin that are neither packages nor modules
# Words that end like participles and are none.
_NOUNS = (
    "Embedding",
    "Sampling",
    "Training",
    "Spring",
    "String",
    "Ring",
    "Seed",
    "Speed",
    "Feed",
    "Encoding",
    "Setting",
    "Packed",  # a mode, as users write it
)

Findings = dict[str, int]  # what breaks a rule: how much of it there is


@dataclass(frozen=True)
class Module:
    """A file of the package: its dotted name and its syntax tree."""

    name: str
    path: Path
    tree: ast.Module = field(repr=False)

    @property
    def room(self) -> str:
        """The package or loose module of src/outcrop that it is part of."""
        return self.name.split(".")[1] if "." in self.name else self.name


class House:
    """The source, the documents and the tests below ``root``."""

    def __init__(self, root: Path):
        self.root, self.source = root, root / "src" / PACKAGE
        self.modules = {m.name: m for m in self._modules()}

    def _modules(self) -> Iterator[Module]:
        for path in sorted(self.source.rglob("*.py")):
            parts = [PACKAGE, *path.relative_to(self.source).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, ast.parse(path.read_text()))

    @cached_property
    def offered(self) -> dict[str, str]:
        """Names that ``import outcrop`` offers, and the modules that they are from."""
        for node in self.modules[PACKAGE].tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "_HOME":
                return ast.literal_eval(node.value)
        return {}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Modules that each module imports, type imports and imports in functions included."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    yield from self._known(f"{node.module}.{alias.name}", node.module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._known(alias.name)

    def _known(self, *candidates: str) -> Iterator[str]:
        yield from [name for name in candidates if name in self.modules and name != PACKAGE][:1]


def rooms(house: House) -> Findings:
    entries = [e for e in house.source.iterdir() if not e.name.startswith(_MARKERS)]
    loose = [e for e in entries if e.suffix == ".py"]
    found = {
        "entries of src/outcrop": (len(entries), ENTRIES),
        "loose modules of src/outcrop": (len(loose), LOOSE),
    }
    arrows = {
        (house.modules[a].room, house.modules[b].room)
        for a, imported in house.imports.items()
        for b in imported
    }
    found["arrows between rooms"] = (sum(a != b for a, b in arrows), ARROWS)
    return {what: count for what, (count, most) in found.items() if count > most}


def circles(house: House) -> Findings:
    """Files that import each other, however far around: one entry for each group (Tarjan's components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(house.imports[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            groups.append(sorted(stack[at:]))
            del stack[at:]

    for name in house.modules:
        if name not in index:
            visit(name)
    return {" ".join(group): len(group) for group in groups if len(group) > 1}


def _public(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public functions, classes and methods, with their names within the module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and (
                        inner.name[0] != "_" or inner.name == "__init__"
                    ):
                        yield f"{node.name}.{inner.name}", inner


def parameters(house: House) -> Findings:
    found: Findings = {}
    for module in house.modules.values():
        if ".cli" in module.name:  # the options of a command are its parameters
            continue
        for name, node in _public(module.tree):
            if isinstance(node, ast.ClassDef):
                continue
            a = node.args
            door = house.offered.get(name.split(".")[0]) == module.name
            uncounted = ("self", "cls", *(SHORTCUTS if door else ()))
            count = sum(p.arg not in uncounted for p in (*a.posonlyargs, *a.args, *a.kwonlyargs))
            if count > (OF_A_DOOR if door else PARAMETERS):
                found[f"{module.name}.{name}"] = count
            if door and a.kwarg is not None:
                found[f"{module.name}.{name} **{a.kwarg.arg}"] = 1
    return found


def participles(house: House) -> Findings:
    """Classes that are called by a participle alone, such as ``Waited``."""
    found = {}
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                words = re.findall(r"[A-Z][a-z0-9]*", node.name)
                if len(words) == 1 and words[0].endswith(("ed", "ing")) and words[0] not in _NOUNS:
                    found[f"{module.name}.{node.name}"] = 1
    return found


def _words(paths: Iterator[Path]) -> Counter[str]:
    return Counter(w for path in paths for w in re.findall(r"[A-Za-z_]\w*", path.read_text(errors="replace")))


def dead_names(house: House) -> Findings:
    """Public functions and classes that neither the package nor documents, examples or scripts mention again."""
    sources = [*house.source.rglob("*.py"), *house.source.rglob("*.cu"), *(house.root / "src").rglob("*.cpp")]
    others = [p for folder in ("docs", "examples", "scripts") for p in (house.root / folder).rglob("*.*")]
    others = [
        p for p in others if p.suffix in (".py", ".md", ".sh", ".toml") and p.name != Path(EXCEPTIONS).name
    ]
    words = _words(iter([*sources, *others, house.root / "README.md", house.root / "pyproject.toml"]))
    found = {}
    for module in house.modules.values():
        for name, node in _public(module.tree):
            last = name.split(".")[-1]
            registered = node.decorator_list or last.startswith(("visit_", "__", "on_"))
            if words[last] == 1 and not registered:
                found[f"{module.name}.{name}"] = 1
    return found


_PATH = re.compile(r"(?<![\w/.:*<-])((?:[\w.-]+/)+[\w.-]+\.(?:py|h|cpp|cu|md|sh|json|toml))(?![\w*])")


def stale_paths(house: House) -> Findings:
    """Paths in documents that name no file: of the repository, of src, of src/outcrop, or beside the document."""
    documents = [*house.root.glob("*.md"), *(house.root / "docs").rglob("*.md")]
    found: Counter[str] = Counter()
    for document in documents:
        if document.name in ("CHANGELOG.md", "package-index.md"):
            continue
        places = (house.root, house.root / "src", house.source, document.parent)
        for path in _PATH.findall(document.read_text()):
            if not any((place / path).exists() for place in places):
                found[f"{document.relative_to(house.root)}: {path}"] += 1
    return dict(found)


def readme(house: House) -> Findings:
    lines = len((house.root / "README.md").read_text().splitlines())
    return {"lines of README.md": lines} if lines > README_LINES else {}


RULES = {
    rule.__name__: rule for rule in (rooms, circles, parameters, participles, dead_names, stale_paths, readme)
}


def compare(found: dict[str, Findings], excepted: dict[str, Findings]) -> list[str]:
    """What to mend: findings beyond their exceptions, and exceptions beyond what there is."""
    said = []
    for rule, findings in found.items():
        listed = excepted.get(rule, {})
        for what in sorted({*findings, *listed}):
            there, most = findings.get(what, 0), listed.get(what, 0)
            if there > most:
                said.append(f"{rule}: {what}: {there}" + (f", its exception says {most}" if most else ""))
            elif there < most:
                said.append(
                    f"{rule}: {what}: {there}, its exception says {most}: scripts/house.py --write lowers it"
                )
    return said


def shrunk(found: dict[str, Findings], excepted: dict[str, Findings]) -> dict[str, Findings]:
    """The exceptions, each no larger than what there is."""
    smaller = {
        rule: {what: min(most, found[rule].get(what, 0)) for what, most in listed.items()}
        for rule, listed in excepted.items()
    }
    return {rule: {w: most for w, most in listed.items() if most} for rule, listed in smaller.items()}


def _toml(exceptions: dict[str, Findings]) -> str:
    lines = ["# What breaks a rule of scripts/house.py today, and how much of it: these numbers only shrink."]
    for rule, listed in exceptions.items():
        if listed:
            lines += ["", f"[{rule}]", *(f'"{what}" = {count}' for what, count in sorted(listed.items()))]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    house = House(ROOT)
    found = {name: rule(house) for name, rule in RULES.items()}
    file = ROOT / EXCEPTIONS
    excepted = tomllib.loads(file.read_text()) if file.is_file() else {}
    if "--write" in arguments:
        excepted = shrunk(found, excepted)
        file.write_text(_toml(excepted))
    said = compare(found, excepted)
    print("\n".join(said) or "the house is in order, but for its exceptions")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
