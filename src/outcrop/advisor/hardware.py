"""Machines, prices and data sets described in TOML; the paper's own ship as examples (advisor/examples).

Every file is checked as a whole: all that is wrong with it is said at once, with the name of the file and of the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outcrop.advisor.cost import Prices
from outcrop.config import parse_size
from outcrop.errors import ArgumentError
from outcrop.runtime.hardware import Disk, Gpu, Hardware, HostCosts
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.parsing import parse_toml

EXAMPLES = Path(__file__).parent / "examples"


class Table:
    """Takes the keys of a table of a TOML file one by one; ``end`` complains about those that nobody took."""

    def __init__(self, path: Path, values: Any, name: str, problems: list[str]):
        self._where, self._problems = f"[{name}] " if name else "", problems
        self._path = path
        self._values = dict(values) if isinstance(values, dict) else {}
        if not isinstance(values, dict):
            problems.append(f"{self._where or name}is no table")

    def take(
        self, key: str, check: Callable[[Any], Any], default: Any = None, *, needed: bool = False
    ) -> Any:
        if key not in self._values:
            if needed:
                self._problems.append(f"{self._where}{key} is missing")
            return default
        value = self._values.pop(key)
        try:
            return check(value)
        except (ArgumentError, TypeError, ValueError) as error:
            self._problems.append(f"{self._where}{key} = {value!r}: {error}")
            return default

    def table(self, key: str) -> Table | None:
        if key not in self._values:
            return None
        return Table(self._path, self._values.pop(key), key, self._problems)

    def rest(self) -> dict[str, Any]:
        """Returns all keys that are left, whatever they are called."""
        values, self._values = self._values, {}
        return values

    def tables(self, key: str) -> list[Table]:
        """Returns the tables of a list of them, ``[[key]]``."""
        values = self._values.pop(key, [])
        if not isinstance(values, list):
            self._problems.append(f"{key} is no list of tables, [[{key}]]")
            return []
        return [
            Table(self._path, one, f"{key} {number + 1}", self._problems) for number, one in enumerate(values)
        ]

    def end(self) -> None:
        self._problems += [f"{self._where}{key} is unknown" for key in self._values]


def positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("not a positive number")
    return float(value)


def at_least_zero(value: Any) -> float:
    return 0.0 if not isinstance(value, bool) and value == 0 else positive(value)


def count(value: Any) -> int:
    if at_least_zero(value) != int(value):
        raise ValueError("not a whole number")
    return int(value)


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("not a name")
    return value


def size_of(value: Any) -> int:
    return parse_size(value if isinstance(value, str) else count(value))


def _reads(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("not a list of [bytes of a request, requests per second]")
    found = tuple((count(size), positive(rate)) for size, rate in value)
    Disk("", found)
    return found


def find(name: str | Path, examples: Path = EXAMPLES) -> Path:
    """Returns a file that is there, or the shipped example of that name (``machine-a``, ``prices``).

    Raises:
        ArgumentError: Neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = examples / f"{path.name.removesuffix('.toml')}.toml"
    if path.parent == Path() and shipped.is_file():
        return shipped
    known = ", ".join(sorted(f.stem for f in examples.glob("*.toml")))
    raise ArgumentError(f"{name} is no file, nor one of the examples that ship with Outcrop: {known}")


def parse_file(name: str | Path, examples: Path = EXAMPLES) -> tuple[Path, dict[str, Any]]:
    """Returns the path and the values of a TOML file, or of a shipped example."""
    path = find(name, examples)
    try:
        return path, parse_toml(path.read_text())
    except ValueError as error:
        raise ArgumentError(f"{path} is no TOML file: {error}") from None


def refuse(path: Path, problems: list[str], examples: Path = EXAMPLES) -> None:
    """Raises ArgumentError where there are problems with a file; says which file shows how it looks."""
    if problems:
        raise ArgumentError(
            f"{path}: {'; '.join(problems)}. {examples / path.name if path.parent != examples else 'It'} "
            "shows how such files look" if (examples / path.name).is_file() else
            f"{path}: {'; '.join(problems)}. Files in {examples} show how it looks"
        )  # fmt: skip


def read_machine(name: str | Path) -> Hardware:
    """Reads a machine from a TOML file, such as ``advisor/examples/machine-a.toml``.

    Raises:
        ArgumentError: Keys are missing, unknown or have values that are not possible; all are named.
    """
    path, values = parse_file(name)
    problems: list[str] = []
    top = Table(path, values, "", problems)
    disk, gpu = top.table("disk"), top.table("gpu")
    if disk is None:
        problems.append("[disk] is missing")
    host = top.table("host")
    fields: dict[str, Any] = {
        "name": top.take("name", text, path.stem),
        "memory_bytes": top.take("memory", size_of, 0, needed=True),
        "cores": top.take("cores", count, 1),
        "machines": top.take("machines", count, 1),
        "bus_bytes_per_s": top.take("bus_bytes_per_s", positive, math.inf, needed=gpu is not None),
        "disk_limit_bytes_per_s": top.take("disk_limit_bytes_per_s", positive, math.inf),
    }
    if disk is not None:
        fields["disks"] = disk.take("count", count, 1)
        fields["most_disks"] = disk.take("most", count, max(fields["disks"], 16))
        parts = (
            disk.take("name", text, "disk"),
            disk.take("reads", _reads, ((PAGE_BYTES, 1.0),), needed=True),
            disk.take("latency_s", at_least_zero, 0.0),
            disk.take("write_bytes_per_s", positive),
            disk.take("size", size_of),
        )
        fields["disk"] = Disk(*parts)
        disk.end()
        if fields["disks"] > fields["most_disks"]:
            problems.append(f"[disk] count {fields['disks']} is above most {fields['most_disks']}")
    if gpu is not None:
        fields["gpu"] = Gpu(
            gpu.take("name", text, "gpu"),
            gpu.take("flops_per_s", positive, 1.0, needed=True),
            gpu.take("bytes_per_s", positive, 1.0, needed=True),
            gpu.take("memory", size_of, 0),
        )
        gpu.end()
    if host is not None:
        fields["host"] = HostCosts(
            **{key: host.take(key, at_least_zero, 0.0) for key in HostCosts.__dataclass_fields__}
        )
        host.end()
    top.end()
    refuse(path, problems)
    return Hardware(**fields)


def read_prices(name: str | Path) -> Prices:
    """Reads prices from a TOML file, such as ``advisor/examples/prices.toml``.

    Raises:
        ArgumentError: As :func:`read_machine`.
    """
    path, values = parse_file(name)
    problems: list[str] = []
    top = Table(path, values, "", problems)
    tables = {}
    for kind in ("disks", "gpus"):
        table = top.table(kind)
        names = {} if table is None else table.rest()
        priced = Table(path, names, kind, problems)
        tables[kind] = tuple((key, priced.take(key, at_least_zero, 0.0)) for key in list(names))
    prices = Prices(
        machine=top.take("machine", at_least_zero, 0.0, needed=True),
        electricity=top.take("electricity", at_least_zero, 0.0),
        memory_gib=top.take("memory_gib", at_least_zero, 0.0),
        currency=top.take("currency", text, "USD"),
        **tables,
    )
    top.end()
    refuse(path, problems)
    return prices
