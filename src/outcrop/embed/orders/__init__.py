"""Orders: which partitions are resident when, and which buckets are trained meanwhile.

``legend``, ``beta`` and ``cover`` are those of Legend, Marius and GE2, for comparison; ``best`` is ours.
"""

from __future__ import annotations

from outcrop.embed.orders.best import best_states
from outcrop.embed.orders.beta import beta_states
from outcrop.embed.orders.cover import cover_states
from outcrop.embed.orders.legend import legend_states
from outcrop.embed.orders.order import Bucket, Order, State, check_sizes, deferred, eager, least_states
from outcrop.errors import ArgumentError

_STATES = {"best": best_states, "legend": legend_states, "beta": beta_states, "cover": cover_states}
ORDERS = tuple(_STATES)

__all__ = ["ORDERS", "Bucket", "Order", "State", "least_states", "make_order"]


def make_order(name: str, partitions: int, buffer: int, *, defer: bool | None = None) -> Order:
    """The order ``name`` of ``partitions`` with ``buffer`` of them resident, verified.

    Args:
        defer: Keep buckets back for the swaps that need them; None: for ``best`` only, as the others' papers have it.

    Raises:
        ArgumentError: No such order, or no order for these numbers.
    """
    check_sizes(partitions, buffer)
    if name not in _STATES:
        raise ArgumentError(f"order {name!r} is unknown; known: {', '.join(ORDERS)}")
    states = _STATES[name](partitions, buffer)
    schedule = deferred if defer or (defer is None and name == "best") else eager
    order = schedule(name, partitions, buffer, states)
    order.verify()
    return order
