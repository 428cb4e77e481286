"""One place that turns errors of Arrow into ours, and lets those pass that are not about the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from outcrop.errors import OutcropError


@contextmanager
def arrow_errors(ours: Callable[[Exception], OutcropError], *also: type[Exception]) -> Iterator[None]:
    """Raises in place of an error of Arrow the one that ``ours`` makes of it.

    Memory that runs out passes as it is, though ``pa.ArrowMemoryError`` is an ``ArrowException``, too: the table is not
    to blame. So do our own errors, some of which are an ``OSError`` or a ``ValueError``: they say all.

    Args:
        ours: Makes the error that says which table cannot be read, of the one that was raised.
        also: Other errors of which it makes one, such as ``OSError``.
    """
    try:
        yield
    except (MemoryError, OutcropError):
        raise
    except (pa.ArrowException, *also) as error:
        raise ours(error) from None
