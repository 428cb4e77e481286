"""Figures about one training, from its record: time, data, memory, disk, learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcrop.loading.modes import Packed
from outcrop.report import charts
from outcrop.report.charts import Bar, Reference, Series, Span
from outcrop.report.page import Figure, Table
from outcrop.report.rows import LEVELS, level_bytes, row_sizes
from outcrop.report.units import digits, format_value
from outcrop.report.verdict import Steady, own_seconds, steady, typical_epoch_seconds
from outcrop.runtime.recorder import thinned

MAX_COLUMNS = 40
LANES = ("draw", "submit", "read", "assemble", "share", "transfer", "compute")
_WINDOW_BATCHES = 10
_SMALL_SHARE = 0.005
_COLORS = ("s-c0", "s-c2", "s-c4", "s-c3", "s-c5", "s-c1", "s-c6")

Record = dict[str, Any]


def binned(epochs: list[Record]) -> list[list[Record]]:
    """Returns at most :data:`MAX_COLUMNS` groups of neighbouring epochs."""
    size = -(-len(epochs) // MAX_COLUMNS)
    return [epochs[i : i + size] for i in range(0, len(epochs), size)]


def _label(group: list[Record]) -> str:
    first, last = group[0]["epoch"], group[-1]["epoch"]
    return str(first) if first == last else f"{first}–{last}"


def _mean(group: list[Record], value: Any) -> float:
    return sum(value(e) for e in group) / len(group)


def epoch_time(training: Record) -> Figure:
    epochs, facts = training["epochs"], steady(training)
    groups = binned(epochs)
    labels = [_label(g) for g in groups]
    series = [
        Series(
            "computing", "s-compute", [_mean(g, lambda e: e["seconds"] - e["load_seconds"]) for g in groups]
        ),
        Series("waiting for data", "s-waiting", [_mean(g, lambda e: e["load_seconds"]) for g in groups]),
    ]
    usual = typical_epoch_seconds(training) or 0.0
    note = "" if len(groups) == len(epochs) else f"Each column is the mean of up to {len(groups[0])} epochs. "
    if len(epochs) > 1 and epochs[0]["seconds"] > 1.3 * usual:
        note += (
            f"Epoch {epochs[0]['epoch']} took {format_value('seconds', epochs[0]['seconds'])}: it warms up."
        )
    rows = [
        [
            label,
            format_value("seconds", c + w),
            format_value("seconds", w),
            format_value("share", w / (c + w) if c + w else 0),
        ]
        for label, c, w in zip(labels, series[0].values, series[1].values, strict=True)
    ]
    return Figure(
        "epochs",
        f"An epoch takes {format_value('seconds', usual)}; the model waits "
        f"{format_value('share', facts.waiting_share)} of it for data",
        lambda width: charts.columns(width, labels, series, kind="seconds", x_name="epoch", y_name="time"),
        "Time of each epoch: computing and waiting for data",
        Table(["epoch", "time", "waiting", "share"], rows),
        note + " Validation and checkpoints are not counted.",
        [(s.name, s.color) for s in series],
    )


def stages(training: Record) -> Figure | None:
    facts = steady(training)
    if not facts.busy:
        return None
    per_epoch = {lane: facts.busy.get(lane, 0.0) / facts.epochs for lane in LANES}
    length = facts.seconds / facts.epochs
    shown = [lane for lane in LANES if lane != "draw" or per_epoch[lane] > _SMALL_SHARE * length]
    loading = max((lane for lane in shown if lane != "compute"), key=lambda lane: per_epoch[lane])
    items = [
        Bar(
            lane, per_epoch[lane], f"s-{lane}",
            f"{format_value('seconds', per_epoch[lane])} · {format_value('share', per_epoch[lane] / length)}",
        )
        for lane in shown
    ]  # fmt: skip
    rows = [
        [b.label, format_value("seconds", b.value), format_value("share", b.value / length), _WORK[b.label]]
        for b in items
    ]
    rows.append(
        ["(lease)", format_value("seconds", facts.busy.get("lease", 0.0) / facts.epochs),
         format_value("share", facts.busy.get("lease", 0.0) / facts.seconds), _WORK["lease"]]
    )  # fmt: skip
    return Figure(
        "stages",
        f"Compute is at work {format_value('share', per_epoch['compute'] / length)} of an epoch; the busiest "
        "loading stage, "
        f"{loading}, {format_value('share', per_epoch[loading] / length)}",
        lambda width: charts.bars(width, items, kind="seconds", reference=Reference("an epoch", length)),
        "Work of each stage in an epoch",
        Table(["stage", "per epoch", "share", "what it does"], rows, words=[3]),
        "The stages overlap: the longest one sets the pace. Mean of the steady epochs.",
    )


_WORK = {
    "draw": "structure of the batch",
    "submit": "starts reads",
    "read": "waits for reads",
    "assemble": "rows to their places",
    "share": "reads rows that batches share",
    "transfer": "tensors, to the device",
    "compute": "forward, backward, update",
    "lease": "waits for a free buffer",
}


def spans_of(training: Record) -> list[Record]:
    """Returns the sampled spans as one dict each, seconds since the start of the recording."""
    raw = training.get("spans") or {}
    if not raw.get("names"):
        return []
    columns = zip(
        raw["name"], raw["split"], raw["epoch"], raw["batch"], raw["start_us"], raw["end_us"], strict=True
    )
    return [
        {
            "name": raw["names"][n],
            "split": raw["splits"][s],
            "epoch": e,
            "batch": b,
            "start": t0 / 1e6,
            "end": t1 / 1e6,
        }
        for n, s, e, b, t0, t1 in columns
    ]


def windows(training: Record) -> dict[str, list[Record]]:
    """Returns what was at work while the first batches of the first epoch, and later ones of the last epoch on record,
    were computed: spans cut to that time.
    """
    spans = [s for s in spans_of(training) if s["split"] == "train" and s["batch"] >= 0]
    if not spans:
        return {}
    first, last = min(s["epoch"] for s in spans), max(s["epoch"] for s in spans)
    of_first, of_last = ([s for s in spans if s["epoch"] == e] for e in (first, last))
    late = [s for s in of_last if s["name"] == "compute"]
    end = max((s["batch"] for s in late), default=-1)
    windows_by_name = {}
    begun = [s["end"] for s in of_first if s["name"] == "compute" and s["batch"] < _WINDOW_BATCHES]
    if begun:
        windows_by_name["start"] = _cut(of_first, min(s["start"] for s in of_first), max(begun))
    if last != first or end >= 2 * _WINDOW_BATCHES:
        low = max(end - _WINDOW_BATCHES - 1, 0)
        inside = [s for s in late if low <= s["batch"] < low + _WINDOW_BATCHES]
        if inside:
            windows_by_name["steady"] = _cut(
                of_last, min(s["start"] for s in inside), max(s["end"] for s in inside)
            )
    return windows_by_name


def _cut(spans: list[Record], begin: float, end: float) -> list[Record]:
    return [
        {**s, "start": max(s["start"], begin), "end": min(s["end"], end)}
        for s in spans
        if s["start"] < end and s["end"] > begin
    ]


def timeline(name: str, spans: list[Record]) -> Figure:
    length = max(s["end"] for s in spans) - min(s["start"] for s in spans)
    busy = {lane: sum(s["end"] - s["start"] for s in spans if s["name"] == lane) for lane in LANES}
    lanes = [lane for lane in LANES if lane != "draw" or busy[lane] > _SMALL_SHARE * length]
    start = min(s["start"] for s in spans)
    drawn = [
        Span(
            "submit" if s["name"] == "lease" else s["name"],
            s["start"], s["end"],
            f"s-{s['name']}" + (" even" if s["batch"] % 2 and s["name"] not in ("lease", "submit") else ""),
            str(s["batch"]) if s["name"] not in ("lease", "submit") else "",
            f"batch {s['batch']}, {'waiting for a free buffer' if s['name'] == 'lease' else s['name']}: "
            f"{format_value('seconds', s['end'] - s['start'])}, from {format_value('seconds', s['start'] - start)} on",
        )
        for s in sorted(spans, key=lambda s: s["name"] == "lease")
        if s["name"] in (*lanes, "lease")
    ]  # fmt: skip
    epoch = spans[0]["epoch"]
    batches = sorted({s["batch"] for s in spans if s["name"] == "compute"}) or [0]
    share = _covered([s for s in spans if s["name"] == "compute"]) if busy["compute"] else 0.0
    titles = {
        "start": f"The start: the first batch reaches the model after {format_value('seconds', _first_compute(spans))}",
        "steady": (
            f"Later on: the model computes {format_value('share', share)} of the time while the next "
            "batches load"
        ),
    }
    own = own_seconds({**busy, "lease": sum(s["end"] - s["start"] for s in spans if s["name"] == "lease")})
    rows = [
        [
            lane,
            format_value("seconds", own.get(lane, 0) / len(batches)),
            format_value("share", own.get(lane, 0) / length),
        ]
        for lane in lanes
    ]
    return Figure(
        f"timeline-{name}",
        titles[name],
        lambda width: charts.timeline(width, lanes, drawn, x_name="time since the start of this picture"),
        f"What was at work while batches {batches[0]} to {batches[-1]} of epoch {epoch} were computed",
        Table(["stage", "per batch", "of this time"], rows),
        "Numbers in the rectangles are batches; grey in submit is waiting for a free buffer.",
    )


def _first_compute(spans: list[Record]) -> float:
    computes = [s["start"] for s in spans if s["name"] == "compute"]
    return min(computes) - min(s["start"] for s in spans) if computes else 0.0


def _covered(spans: list[Record]) -> float:
    """Gives the share of the time between the first and the last of ``spans``, which do not overlap, that they fill."""
    length = max(s["end"] for s in spans) - min(s["start"] for s in spans)
    return sum(s["end"] - s["start"] for s in spans) / length if length else 1.0


def rows_by_level(training: Record) -> Figure | None:
    epochs, facts = training["epochs"], steady(training)
    total = sum(facts.rows.values())
    if not total:
        return None
    levels = [
        level for level in (*LEVELS, *sorted(facts.rows.keys() - LEVELS.keys())) if facts.rows.get(level)
    ]
    groups = binned(epochs)
    labels = [_label(g) for g in groups]
    series = [
        Series(
            LEVELS.get(level, level),
            f"s-{level}" if level in LEVELS else "s-other",
            [_mean(g, lambda e, level=level: e.get("rows_by_level", {}).get(level, 0)) for g in groups],
        )
        for level in levels
    ]
    sizes, per, note = level_bytes(training, levels), facts.epochs, row_sizes(training)
    table = [
        [LEVELS.get(v, v), format_value("count", facts.rows[v] / per), format_value("share", facts.rows[v] / total),
         format_value("bytes", sizes[v])]
        for v in levels
    ]  # fmt: skip
    table.append(
        ["all", format_value("count", total / per), "100 %", format_value("bytes", sum(sizes.values()))]
    )
    cached = sum(facts.rows.get(level, 0) for level in ("host", "device")) / total
    return Figure(
        "rows",
        f"{format_value('share', cached)} of the rows come from memory, {format_value('share', 1 - cached)} from disk",
        lambda width: charts.columns(width, labels, series, kind="count", x_name="epoch", y_name="rows"),
        "Rows by the level that they come from, per epoch",
        Table(["level", "rows", "share", "bytes"], table),
        f"{note} The table is the mean of the steady epochs.",
        [(s.name, s.color) for s in series],
    )


def amplification(training: Record, predicted: Record) -> Figure | None:
    epochs, facts = training["epochs"], steady(training)
    if not facts.bytes_needed and not facts.bytes_read:
        return None
    groups = binned(epochs)
    labels = [_label(g) for g in groups]

    def read(e: Record) -> float:
        return e.get("bytes_read", 0)

    def needed(e: Record) -> float:
        return min(e.get("bytes_needed_from_disk", 0), read(e))

    series = [
        Series("needed", "s-c0", [_mean(g, needed) for g in groups]),
        Series("beyond", "s-c1", [_mean(g, lambda e: read(e) - needed(e)) for g in groups]),
    ]
    times = "–" if facts.amplification is None else f"{facts.amplification:.3f}"
    promised = predicted.get("epochs", {}).get("train", []) if training["mode"] == Packed.name else []
    rows = []
    for label, group in zip(labels, groups, strict=True):
        want, got = _mean(group, lambda e: e.get("bytes_needed_from_disk", 0)), _mean(group, read)
        plan = (
            _mean(group, lambda e: promised[e["epoch"] % len(promised)]["bytes_read"]) if promised else None
        )
        row = [
            label,
            format_value("bytes", got),
            format_value("bytes", want),
            f"{got / want:.3f}" if want else "–",
            format_value("bytes", plan),
        ]
        rows.append([*row, format_value("count", _mean(group, lambda e: e.get("read_ops", 0)))])
    note = "Read amplification is bytes read from disk for each byte that a batch needed from there."
    if not facts.bytes_read:
        note = "This mode reads through the page cache, whose reads are not counted."
    return Figure(
        "amplification",
        f"An epoch reads {format_value('bytes', facts.bytes_read / facts.epochs)} from disk, {times} times what "
        "it needs",
        lambda width: charts.columns(
            width, labels, series, kind="bytes", x_name="epoch", y_name="read from disk"
        ),
        "Bytes read per epoch, needed and beyond",
        Table(["epoch", "read", "needed", "read/needed", "planned", "reads"], rows),
        note,
    )


def memory(record: Record, name: str = "memory", what: str = "training") -> Figure | None:
    samples = record.get("samples") or {}
    if not samples.get("t_ms"):
        return None
    xs = [t / 1000 for t in samples["t_ms"]]
    if len(xs) < 2:
        return None
    series = _largest_tags(samples["bytes_by_tag"], len(xs))
    budget, report = record.get("budget_bytes"), record.get("report", {})
    totals = [sum(column) for column in zip(*samples["bytes_by_tag"].values(), strict=True)] or [0]
    peak = report.get("peak_host_bytes") or max(totals)
    title = f"While {what}, at most {format_value('bytes', peak)} were held; no budget was set"
    if budget:
        of = f"{format_value('share', peak / budget)} of the budget of {format_value('bytes', budget)}"
        title = f"While {what}, at most {format_value('bytes', peak)} were held, {of}"
    peaks = report.get("peak_by_tag") or {tag: max(v) for tag, v in samples["bytes_by_tag"].items()}
    ordered = sorted(peaks.items(), key=lambda item: -item[1])
    process = max(samples["process_bytes"], default=0)
    return Figure(
        name,
        title,
        lambda width: charts.area(
            width, xs, series, kind="bytes", x_kind="seconds", x_name="time", y_name="held",
            reference=Reference("budget", budget) if budget else None,
        ),
        "Memory held over time, by what for",
        Table(["tag", "at most"], [[tag, format_value("bytes", value)] for tag, value in ordered]),
        f"The whole process took up to {format_value('bytes', process)}, with the interpreter, libraries and "
        "any model.",
        [(s.name, s.color) for s in series],
    )  # fmt: skip


def _largest_tags(by_tag: dict[str, list[int]], count: int) -> list[Series]:
    order = sorted(by_tag, key=lambda tag: -max(by_tag[tag], default=0))
    large = [tag for tag in order[: len(_COLORS)] if max(by_tag[tag], default=0) > 0]
    series = [Series(tag, color, by_tag[tag]) for tag, color in zip(large, _COLORS, strict=False)]
    rest = [tag for tag in order if tag not in large]
    if any(max(by_tag[tag], default=0) for tag in rest):
        series.append(Series("other", "s-other", [sum(by_tag[t][i] for t in rest) for i in range(count)]))
    return series


def disk_rate(training: Record, disk: dict[str, float] | None, measured: str) -> Figure | None:
    samples = training.get("samples") or {}
    xs, rates = rate_over_time(samples)
    over = max((s["end"] for s in spans_of(training) if s["name"] == "train.epoch"), default=None)
    if len(xs) < 2 or not any(rates):
        return None
    facts = steady(training) if training["epochs"] else None
    mean = _mean_rate(facts, rates)
    limit = disk["sequential_bytes_per_s"] if disk else None
    against = (
        f", {format_value('share', mean / limit)} of the {format_value('rate', limit)} that it can"
        if limit
        else ""
    )
    rows = [["mean of the epochs", format_value("rate", mean)], ["highest", format_value("rate", max(rates))]]
    if disk:
        rows.append(["limit, in sequence", format_value("rate", disk["sequential_bytes_per_s"])])
        rows.append(["limit, random 4 KiB", f"{format_value('count', disk['random_ops_per_s'])} reads/s"])
    if facts:
        rows.append(
            [
                "reads/s in the epochs",
                format_value("count", facts.read_ops / facts.seconds if facts.seconds else 0),
            ]
        )
    return Figure(
        "disk",
        f"In its epochs the training read {format_value('rate', mean)} from disk{against}",
        lambda width: charts.lines(
            width, xs, [Series("read", "s-c0", rates)], kind="rate", x_kind="seconds", x_name="time",
            y_name="read from disk", dots=False, reference=Reference("the disk's limit", limit) if limit else None,
            moment=Reference("test, after the epochs", over) if over is not None and over < 0.97 * xs[-1] else None,
        ),
        "Disk rate over time, validation and test included",
        Table(["rate", "value"], rows),
        f"The limit was measured {measured}." if limit else "The disk's limit was not measured.",
    )  # fmt: skip


def _mean_rate(facts: Steady | None, rates: Sequence[float]) -> float:
    return facts.rate if facts is not None else sum(rates) / len(rates)


def rate_over_time(samples: Record, most: int = 120) -> tuple[list[float], list[float]]:
    """Returns times (middles, seconds) and bytes per second between the samples, at most ``most`` intervals."""
    times, counts = samples.get("t_ms", []), samples.get("read_bytes", [])
    if len(times) < 3:
        return [], []
    least = (times[-1] - times[0]) / most
    xs, rates, last = [], [], 0
    for i in range(1, len(times)):
        if times[i] - times[last] >= max(least, 1):
            rates.append((counts[i] - counts[last]) * 1000 / (times[i] - times[last]))
            xs.append((times[i] + times[last]) / 2000)
            last = i
    return xs, rates


def learning(training: Record) -> list[Figure]:
    epochs, report = training["epochs"], training.get("report", {})
    xs = [e["epoch"] for e in epochs]
    losses = [e["loss"] for e in epochs]
    scores = [float("nan") if e["valid_accuracy"] is None else e["valid_accuracy"] for e in epochs]
    best, test = report.get("best_epoch"), report.get("test_accuracy")
    every = list(zip(xs, losses, scores, strict=True))
    some = {row[0]: row for row in (*thinned(every, MAX_COLUMNS), *(row for row in every if row[0] == best))}
    order = sorted(some)
    rows = [[str(x), f"{v:.4f}", "–" if a != a else f"{a:.4f}"] for x, v, a in (some[e] for e in order)]
    table = Table(["epoch", "loss", "validation"], rows, order.index(best) if best in order else None)
    figures = [
        Figure(
            "loss",
            f"The loss went from {digits(losses[0])} to {digits(losses[-1])} in {len(epochs)} epochs",
            lambda width: charts.lines(
                width, xs, [Series("loss", "s-c0", losses)], kind="number", x_kind="epoch", x_name="epoch",
                y_name="mean cross-entropy", best=best,
            ),
            "Training loss and validation accuracy by epoch",
            table,
        )
    ]  # fmt: skip
    known = [a for a in scores if a == a]
    if known:
        ends = (
            f"; on the test nodes the best model scores {format_value('share', test)}"
            if test is not None
            else ""
        )
        figures.append(
            Figure(
                "accuracy",
                f"Validation accuracy is highest in epoch {best}, {format_value('share', max(known))}{ends}",
                lambda width: charts.lines(
                    width, xs, [Series("validation", "s-c2", scores)], kind="share", x_kind="epoch", x_name="epoch",
                    y_name="accuracy", zero=False, best=best,
                ),
                "Validation accuracy by epoch",
                note="The axis does not start at zero.",
            )
        )  # fmt: skip
    return figures
