"""What people are told where the machine had no more memory, whichever library asked for it."""

from __future__ import annotations

import errno

from outcrop.errors import BudgetError

_REMEDY = (
    "end other programs, give the command a smaller --memory, or raise what limits it (ulimit -v, or the memory of its "
    "container)"
)
_SAID_BY_TORCH = "can't allocate memory"
_SAYS_NOTHING = ("", "std::bad_alloc")
_LONGEST_MESSAGE = 300


def ran_out(error: BaseException) -> bool:
    """Tells whether ``error`` says that the machine had no more memory; a budget of Outcrop's is no such limit.

    NumPy, Arrow and the core raise MemoryError, the system's calls OSError, and torch RuntimeError.
    """
    if isinstance(error, MemoryError):
        return not isinstance(error, BudgetError)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _SAID_BY_TORCH in str(error)


def message_of(error: BaseException) -> str:
    """Returns one line that says that memory ran out, what it was for where that is known, and what to do."""
    text = " ".join(str(error).split())
    if "ulimit" in text:  # it says what to do
        return text
    if text in _SAYS_NOTHING:
        return f"out of memory: {_REMEDY}"
    return f"out of memory ({text[:_LONGEST_MESSAGE]}): {_REMEDY}"
