"""Pickles, read as data: nothing that they name is imported, looked up or called.

A pickle is a program for a small stack machine. This machine builds lists, tuples, dicts, numbers and text. A class or
function stays a :class:`Name`, and what would call one becomes a :class:`Made`: a note of what was to be called, with
which arguments. Names that the caller does not know are refused where they stand. Long text and bytes stay where they
are in the file (:class:`Blob`). What is built is charged to the memory budget as it grows, so that a pickle that builds
much from few bytes ends with an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Container
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime

INLINE_BYTES = 1024  # longer text and bytes stay in the file
_LONGEST_LINE = 4096  # of numbers and names in text
_LONGEST_INTEGER = 255
_STEP_BYTES = 160  # charged for a step: what the largest small object takes, and its place in a list
_SHOWN = 80
_LENGTHS = {  # operations with a length in front: its bytes, and whether text follows
    "SHORT_BINBYTES": (1, False),
    "BINBYTES": (4, False),
    "BINBYTES8": (8, False),
    "BYTEARRAY8": (8, False),
    "SHORT_BINSTRING": (1, True),
    "BINSTRING": (4, True),
    "SHORT_BINUNICODE": (1, True),
    "BINUNICODE": (4, True),
    "BINUNICODE8": (8, True),
}
_OPERATIONS: dict[str, Any] = {operation.code: operation for operation in pickletools.opcodes}
_DICTS = ("collections.OrderedDict", "collections.defaultdict")
_RECONSTRUCTORS = ("copyreg._reconstructor", "copy_reg._reconstructor")
_SETS = ("builtins.set", "__builtin__.set", "builtins.frozenset", "__builtin__.frozenset")
_BYTES = ("builtins.bytes", "__builtin__.bytes")  # called of nothing: no bytes
_CONTAINERS = frozenset((*_DICTS, *_RECONSTRUCTORS, *_SETS, *_BYTES, "builtins.object", "__builtin__.object"))


@dataclass(frozen=True)
class Name:
    """Names a class or function, which nobody looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Made:
    """Stands for what a pickle wants made: by which class or function, of which arguments, with which state."""

    by: Name
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True, eq=False)
class Blob:
    """Holds long bytes, or long text in UTF-8, as uint8 [n] that lie in the file."""

    data: np.ndarray
    text: bool


@dataclass(frozen=True, eq=False)
class StorageKey:
    """Stands for what lies beside the pickle, by what the pickle calls it."""

    key: Any


class PickleReader:
    """Reads pickles that lie one after the other in ``data``.

    Args:
        name: What messages call the pickle.
        data: The bytes, uint8 [n]: of memory, or of a map of the file.
        known: Full names of classes and functions that may be named.
        remedy: What to do about a name that is not known, after "; ".
        runtime: Has the budget that pays for what is built, for as long as ``held`` is open.
    """

    def __init__(
        self,
        name: str,
        data: np.ndarray,
        known: Container[str],
        remedy: str,
        runtime: Runtime,
        held: ExitStack,
    ):
        self.name, self.data, self.position = name, data, 0
        self.stored: list[StorageKey] = []
        self._known, self._remedy, self._runtime, self._held = known, remedy, runtime, held
        self._charged = self._cost = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Returns what the pickle at the present position builds; the position is then behind it.

        Raises:
            FormatError: It is no pickle, is torn, or names what is not known.
            BudgetError: It builds more than the memory budget has room for.
        """
        self._stack, self._marks, self._memo = [], [], {}
        while True:
            at = self.position
            code = _OPERATIONS.get(self.read(1).decode("latin-1"))
            if code is None:
                raise self.error(f"has no pickle at byte {at}")
            self._charge(_STEP_BYTES)
            if code.name == "STOP":
                return self._pop()
            step = _STEPS.get(code.name)
            try:
                if code.name in _LENGTHS:
                    self._stack.append(self._long(*_LENGTHS[code.name], text8=code.name == "BINUNICODE8"))
                elif step is None:
                    raise self.error(
                        f"asks at byte {at} for {code.name}, which files of arrays have no use for"
                    )
                else:
                    step(self, code.arg.reader(self) if code.arg is not None else None)
            except FormatError:
                raise
            except (ValueError, TypeError, OverflowError) as error:
                raise self.error(f"is torn or damaged at byte {at}: {_short(str(error))}") from None

    def error(self, what: str) -> FormatError:
        """Returns an error about this pickle."""
        return FormatError(f"{self.name} {what}")

    # What pickletools reads arguments from.

    def read(self, count: int) -> bytes:
        if count > _LONGEST_LINE:
            raise self.error(f"has a number of {count} bytes at byte {self.position}")
        return self._span(count).tobytes()

    def readline(self) -> bytes:
        line = self.data[self.position : self.position + _LONGEST_LINE].tobytes()
        end = line.find(b"\n") + 1
        if end == 0:
            raise self.error(
                f"has no end of the line that begins at byte {self.position}: it is torn or damaged"
            )
        self.position += end
        self._charge(end)
        return line[:end]

    def _span(self, count: int) -> np.ndarray:
        if not 0 <= count <= len(self.data) - self.position:
            raise self.error(
                f"is torn: {count} bytes are promised at byte {self.position}, "
                f"{len(self.data) - self.position} are there"
            )
        self.position += count
        return self.data[self.position - count : self.position]

    def _long(self, length_bytes: int, text: bool, text8: bool = False) -> str | bytes | Blob:
        data = self._span(int.from_bytes(self.read(length_bytes), "little"))
        if len(data) > INLINE_BYTES:
            return Blob(data, text)
        self._charge(4 * len(data))
        return data.tobytes().decode("utf-8", "surrogatepass") if text else data.tobytes()

    def _charge(self, count: int) -> None:
        self._cost += count
        if self._cost > self._charged:
            more = max(self._charged, 16 * _STEP_BYTES)
            self._held.enter_context(self._runtime.budget.reserve("import", more))
            self._charged += more

    # The stack.

    def _pop(self) -> Any:
        if not self._stack:
            raise self.error(f"takes at byte {self.position} what was never put there: it is damaged")
        return self._stack.pop()

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise self.error(f"takes at byte {self.position} a list that was never begun: it is damaged")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise self.error(f"adds at byte {self.position} to what is no {kind.__name__}: it is damaged")
        return self._stack[-1]

    # Operations, by what they do.

    def mark(self, _: None) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_integer(self, value: int) -> None:
        if value.bit_length() > 8 * _LONGEST_INTEGER:
            raise self.error("has a number of too many digits")
        self._stack.append(value)

    def pop(self, _: None) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._pop_mark()

    def pop_to_mark(self, _: None) -> None:
        self._pop_mark()

    def duplicate(self, _: None) -> None:
        self._stack += [value := self._pop(), value]

    def tuple_of(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def collect(self, make: Callable[[list[Any]], Any]) -> None:
        items = self._pop_mark()
        self._stack.append(make(items))

    def dict_of(self, _: None) -> None:
        items = self._pop_mark()
        self._stack.append({})
        self._set(items)

    def append(self, _: None) -> None:
        value = self._pop()
        self._top(list).append(value)

    def extend(self, _: None) -> None:
        items = self._pop_mark()
        self._top(list).extend(items)

    def set_item(self, _: None) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def set_items(self, _: None) -> None:
        self._set(self._pop_mark())

    def _set(self, items: list[Any]) -> None:
        into = self._top(dict)
        if len(items) % 2:
            raise self.error(f"has a key without a value at byte {self.position}: it is damaged")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not is_key(key):
                raise self.error(
                    f"has a {type(key).__name__} as a key at byte {self.position}; keys are text or numbers, or "
                    "tuples of them"
                )
            into[key] = value

    def recall(self, number: int) -> None:
        if number not in self._memo:
            raise self.error(f"asks at byte {self.position} for number {number}, which it never kept")
        self._stack.append(self._memo[number])

    def keep(self, number: int | None) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[len(self._memo) if number is None else number] = value

    def name_of(self, given: str | None) -> None:
        if given is None:
            name, module = self._pop(), self._pop()
        else:
            module, _, name = given.partition(" ")
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.error(f"names a class at byte {self.position} by what is no text: it is damaged")
        self._stack.append(self._name(module, name))

    def _name(self, module: str, name: str) -> Name:
        found = Name(module, name)
        if str(found) not in self._known and str(found) not in _CONTAINERS:
            raise self.error(
                f"names {_short(str(found))}, which is not among what is read without running it; {self._remedy}"
            )
        return found

    def make(self, _: None) -> None:
        arguments, by = self._pop(), self._pop()
        self._stack.append(self._made(by, arguments))

    def make_with_names(self, _: None) -> None:
        named, arguments, by = self._pop(), self._pop(), self._pop()
        if named:
            raise self.error(f"makes an object of named arguments at byte {self.position}")
        self._stack.append(self._made(by, arguments))

    def make_of_list(self, given: str | None) -> None:
        items = self._pop_mark()
        if given is not None:
            module, _, name = given.partition(" ")
            items.insert(0, self._name(module, name))
        if not items:
            raise self.error(f"makes an object of nothing at byte {self.position}: it is damaged")
        self._stack.append(self._made(items[0], tuple(items[1:])))

    def _made(self, by: Any, arguments: Any) -> Any:
        if not isinstance(by, Name) or not isinstance(arguments, tuple):
            raise self.error(f"calls at byte {self.position} what is no name of a class: it is damaged")
        full = str(by)
        if full in _DICTS and not any(isinstance(argument, list | dict) for argument in arguments):
            return {}
        if full in _SETS and arguments and isinstance(arguments[0], list):
            return arguments[0]
        if full in _BYTES and not arguments:
            return b""
        if full in _RECONSTRUCTORS and arguments and isinstance(arguments[0], Name):
            return Made(arguments[0], ())
        return Made(by, arguments)

    def build(self, _: None) -> None:
        state = self._pop()
        if not isinstance(self._top(object), dict):  # an ordered dict may have attributes, which nobody needs
            self._top(Made).state = state

    def store(self, key: Any) -> None:
        self.stored.append(StorageKey(self._pop() if key is None else key))
        self._stack.append(self.stored[-1])


def is_key(value: Any) -> bool:
    """Tells whether a value may be a key: text, a number, or a flat tuple of them; hashing others may not end."""
    flat = value if isinstance(value, tuple) else (value,)
    return all(part is None or type(part) in (str, int, float, bool, bytes) for part in flat)


def _short(text: str) -> str:
    text = text.encode("unicode_escape").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _constant(value: Any) -> Callable[[PickleReader, Any], None]:
    return lambda reader, _: reader.push(value)


def _new(make: Callable[[], Any]) -> Callable[[PickleReader, Any], None]:
    return lambda reader, _: reader.push(make())


def _tuple(count: int) -> Callable[[PickleReader, Any], None]:
    return lambda reader, _: reader.tuple_of(count)


def _collect(make: Callable[[list[Any]], Any]) -> Callable[[PickleReader, Any], None]:
    return lambda reader, _: reader.collect(make)


# Operation -> what it does. Sets become lists; what is not here is refused.
_STEPS: dict[str, Callable[[PickleReader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda reader, _: None),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2"), PickleReader.push),
    **dict.fromkeys(("LONG", "LONG1", "LONG4"), PickleReader.push_integer),
    **dict.fromkeys(("FLOAT", "BINFLOAT", "STRING", "UNICODE"), PickleReader.push),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": _new(list),
    "EMPTY_SET": _new(list),
    "EMPTY_DICT": _new(dict),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": _collect(tuple),
    "LIST": _collect(list),
    "FROZENSET": _collect(list),
    "DICT": PickleReader.dict_of,
    "APPEND": PickleReader.append,
    "APPENDS": PickleReader.extend,
    "ADDITEMS": PickleReader.extend,
    "SETITEM": PickleReader.set_item,
    "SETITEMS": PickleReader.set_items,
    "MARK": PickleReader.mark,
    "POP": PickleReader.pop,
    "POP_MARK": PickleReader.pop_to_mark,
    "DUP": PickleReader.duplicate,
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleReader.recall),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), PickleReader.keep),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), PickleReader.name_of),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), PickleReader.make),
    "NEWOBJ_EX": PickleReader.make_with_names,
    **dict.fromkeys(("INST", "OBJ"), PickleReader.make_of_list),
    "BUILD": PickleReader.build,
    **dict.fromkeys(("PERSID", "BINPERSID"), PickleReader.store),
}
