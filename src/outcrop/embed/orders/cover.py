"""The order of GE2 (COVER): a covering design, whose blocks share no more than one partition.

Partitions are the points of an affine space over a finite field of ``q <= c`` elements, the states are its lines:
each pair of points lies on exactly one line. For 16 partitions, 4 resident: 20 lines, so 80 partitions are read where
each state is read whole, as GE2 does (Legend, table 8). Where ``p`` is no power of ``q`` the points beyond are left
out and what is left of the lines is put together.
"""

from __future__ import annotations

from itertools import product

from outcrop.embed.orders.order import State

Point = tuple[int, ...]


def cover_states(partitions: int, buffer: int) -> list[State]:
    """States may differ in all of their partitions: a swap exchanges several.

    Returns:
        Tuples of at most ``min(buffer, partitions)`` ids.
    """
    p, c = partitions, min(buffer, partitions)
    if p <= c:
        return [tuple(range(p))]
    q = next(q for q in range(c, 1, -1) if _prime_power(q))
    add, multiply = _field(q)
    size = next(n for n in range(1, p + 1) if q**n >= p)
    number = {point: at for at, point in enumerate(product(range(q), repeat=size))}

    states: list[State] = []
    # Each direction once: its first coordinate that is not 0 is 1.
    for direction in (d for d in number if next((x for x in d if x), 0) == 1):
        met: set[int] = set()
        for point, at in number.items():  # the parallels
            if at in met:
                continue
            line = [
                number[tuple(add[x][multiply[t][d]] for x, d in zip(point, direction, strict=True))]
                for t in range(q)
            ]
            met.update(line)
            held = tuple(sorted(i for i in line if i < p))
            if len(held) < 2:
                continue
            if states and len({*states[-1], *held}) <= c:
                states[-1] = tuple(sorted({*states[-1], *held}))
            else:
                states.append(held)
    return states


def _prime_power(q: int) -> tuple[int, int] | None:
    """Returns (prime, exponent) of ``q``, or None."""
    prime = next(d for d in range(2, q + 1) if q % d == 0)
    power, rest = 0, q
    while rest % prime == 0:
        power, rest = power + 1, rest // prime
    return (prime, power) if rest == 1 else None


def _field(q: int) -> tuple[list[list[int]], list[list[int]]]:
    """Returns tables of addition and multiplication of the field of ``q`` elements, numbered by their digits in its
    prime.
    """
    found = _prime_power(q)
    assert found is not None
    prime, power = found
    elements = [tuple(x // prime**i % prime for i in range(power)) for x in range(q)]
    number = {element: at for at, element in enumerate(elements)}
    add = [
        [number[tuple((x + y) % prime for x, y in zip(a, b, strict=True))] for b in elements]
        for a in elements
    ]

    def powers(carry: Point) -> list[Point]:
        """Lists powers of the element X with X^power = ``carry``, from 1 on, until one comes again."""
        found, x = [], elements[1]
        while x not in found and any(x):
            found.append(x)
            x = tuple((low + x[-1] * c) % prime for low, c in zip((0, *x[:-1]), carry, strict=True))
        return found

    everything = next(found for carry in elements if len(found := powers(carry)) == q - 1)
    log = {number[x]: at for at, x in enumerate(everything)}
    multiply = [
        [0 if 0 in (a, b) else number[everything[(log[a] + log[b]) % (q - 1)]] for b in range(q)]
        for a in range(q)
    ]
    return add, multiply
