"""Orders: which partitions are resident when, and which buckets are trained meanwhile.

``legend``, ``beta`` and ``cover`` are those of Legend, Marius and GE2, for comparison; ``best`` is ours.
"""

from __future__ import annotations

from outcrop.embed.orders.best import best_order
from outcrop.embed.orders.beta import beta_states
from outcrop.embed.orders.cover import cover_states
from outcrop.embed.orders.legend import legend_states
from outcrop.embed.orders.order import Bucket, Order, State, check_sizes, deferred, eager, least_states
from outcrop.errors import ArgumentError

_STATES = {"legend": legend_states, "beta": beta_states, "cover": cover_states}
ORDERS = ("best", *_STATES)

__all__ = ["ORDERS", "Bucket", "Order", "State", "least_states", "make_order"]


def make_order(name: str, partitions: int, buffer: int, *, defer: bool | None = None) -> Order:
    """Returns the order ``name`` of ``partitions`` with ``buffer`` of them resident, verified.

    Args:
        defer: Keep buckets back for the swaps that need them; None: for ``best`` only, as the others' papers have it.

    Raises:
        ArgumentError: No such order, or no order for these numbers.
    """
    check_sizes(partitions, buffer)
    if name not in ORDERS:
        raise ArgumentError(f"order {name!r} is unknown; known: {', '.join(ORDERS)}")
    if name == "best" and defer is not False:
        order = best_order(partitions, buffer)
    else:
        states = (
            best_order(partitions, buffer).states if name == "best" else _STATES[name](partitions, buffer)
        )
        order = (deferred if defer else eager)(name, partitions, buffer, states)
    order.verify()
    return order
