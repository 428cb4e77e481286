"""How many requests of a line a row costs: models of three ways to let the threads of a GPU read it.

Source: PyTorch-Direct, section 4.5 and Figures 4 and 5. All positions are in words; a request is one line that one warp
asks for at one time.
"""

from __future__ import annotations

import numpy as np


def flat_requests(start: int, words: int, thread: int, *, warp: int = 32, line: int = 32) -> int:
    """Thread ``thread + i`` reads word ``start + i``, as indexing does without alignment (Figure 4).

    Args:
        start: First word of the row in memory; a multiple of ``line`` begins a line.
        thread: Of the whole grid, that reads the first word.
        warp: Threads of a warp.
        line: Words of a line.
    """
    threads = np.arange(thread, thread + words)
    return _requests(threads // warp, (threads - thread + start) // line)


def shifted_requests(start: int, words: int, thread: int, *, warp: int = 32, line: int = 32) -> int:
    """The same, each thread so many words further that warps begin with a line, the last threads with what was left out
    (Figure 5)."""
    threads = np.arange(thread, thread + words)
    word = (threads - thread + (thread - start) % line) % words
    return _requests(threads // warp, (start + word) // line)


def row_requests(start: int, words: int, *, warp: int = 32, line: int = 32) -> int:
    """A warp reads the row in rounds that begin with a line, what lies before the first together with the end. Equals
    the lines that the row lies in, as do the requests of ``kernels/gather.h``."""
    rounds = -(-words // warp)
    at = np.arange(rounds * warp) - start % min(line, warp)
    at[at < 0] += rounds * warp
    read = at < words
    return _requests(np.repeat(np.arange(rounds), warp)[read], (start + at[read]) // line)


def _requests(group: np.ndarray, line: np.ndarray) -> int:
    return len(np.unique(np.stack([group, line]), axis=1).T)
