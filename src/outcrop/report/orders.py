"""An order of partitions as a drawing: who is resident when, and which swaps nothing hides."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from outcrop.report.benches import drawing
from outcrop.report.canvas import Canvas
from outcrop.report.page import Figure, Section, render

if TYPE_CHECKING:
    from outcrop.embed.orders import Order

_LEFT, _RIGHT, _TOP, _SWAPS, _BOTTOM = 42, 14, 6, 18, 30


def residencies(order: Order) -> list[tuple[int, int, int]]:
    """Returns (partition, first state, last state) of each stay in the buffer, by first state."""
    since: dict[int, int] = {}
    stays = []
    for s, state in enumerate(order.states):
        for partition in [p for p in since if p not in state]:
            stays.append((partition, since.pop(partition), s - 1))
        for partition in state:
            since.setdefault(partition, s)
    stays += [(partition, first, len(order.states) - 1) for partition, first in since.items()]
    return sorted(stays, key=lambda stay: (stay[1], stay[0]))


def chart(order: Order, width: float) -> Canvas:
    """Draws a lane per partition; along x the buckets in the sequence in which they are trained."""
    row = 14 if order.partitions <= 24 else 8
    bottom = _TOP + row * order.partitions
    canvas = Canvas(width, bottom + _SWAPS + _BOTTOM)
    starts = [0, *accumulate(len(buckets) for buckets in order.buckets)]
    per_bucket = (width - _LEFT - _RIGHT) / max(starts[-1], 1)

    def x(bucket: float) -> float:
        return _LEFT + bucket * per_bucket

    step = 1 if row >= 12 else 4
    for partition in range(order.partitions):
        y = _TOP + row * partition
        canvas.line(_LEFT, y + row, width - _RIGHT, y + row, "grid")
        if partition % step == 0:
            canvas.text(_LEFT - 6, y + row - 2, str(partition), "label", "end")
    for partition, first, last in residencies(order):
        tip = f"partition {partition}: resident from state {first} to {last}"
        left, right = x(starts[first]), x(starts[last + 1])
        canvas.rect(
            left, _TOP + row * partition + 1, max(right - left, 1), row - 2, "fill s-c0", tip, "resident"
        )
    for s, ((evicted, loaded), meanwhile) in enumerate(zip(order.swaps, order.overlapped, strict=True)):
        begin, end = x(starts[s + 1] - len(meanwhile)), x(starts[s + 1])
        what = f"swap {s}: {_ids(evicted)} out, {_ids(loaded)} in"
        color = "s-c2" if meanwhile else "s-c1"
        hidden = f"{len(meanwhile)} buckets trained meanwhile" if meanwhile else "nothing trained meanwhile"
        canvas.rect(
            begin, bottom + 4, max(end - begin, 2), _SWAPS - 6, f"fill {color}", f"{what}; {hidden}",
            "hidden" if meanwhile else "bare",
        )  # fmt: skip
    canvas.text(_LEFT - 6, bottom + _SWAPS - 4, "swap", "label", "end")
    canvas.text((_LEFT + width) / 2, bottom + _SWAPS + 20, "buckets trained", "label", "middle")
    return canvas


def draw(order: Order) -> str:
    """Returns the whole drawing as SVG text."""
    name, finding = _title(order)
    return drawing([_figure(order)], f"{name}: {finding}")


def page(order: Order) -> str:
    """Returns the drawing as an HTML file."""
    name, finding = _title(order)
    section = Section("order", "States and swaps", [_figure(order)])
    return render(
        f"Order {order.name}", name, f"{finding}.", "", [], [section], "Made by outcrop embed orders."
    )


def _title(order: Order) -> tuple[str, str]:
    exposed = len(order.exposed_swaps)
    hidden = "every swap hidden" if not exposed else f"{exposed} of {len(order.swaps)} swaps bare"
    return (
        f"{order.name}, {order.partitions} partitions, {order.buffer} resident",
        f"{len(order.states)} states, {hidden}",
    )


def _figure(order: Order) -> Figure:
    description = "Lanes: partitions, while they are resident. Below: what is trained while each swap runs."
    return Figure("order", description, lambda width: chart(order, width), description)


def _ids(partitions: tuple[int, ...]) -> str:
    return ", ".join(map(str, partitions))
