"""The page about an embedding run: what its epochs took, what waited for swaps, how the loss fell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.embed.buckets import Buckets, open_buckets
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, FORMAT, VERSION
from outcrop.embed.rankings import EpochRanks, RankList
from outcrop.embed.rankings import read as read_rankings
from outcrop.embed.training import TIMELINE
from outcrop.report import charts
from outcrop.report.charts import Series, Span
from outcrop.report.page import Figure, Section, Table, render
from outcrop.report.training import MAX_COLUMNS
from outcrop.report.units import digits, format_value
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.recorder import thinned
from outcrop.store.tensors import read_tensors

Record = dict[str, Any]
_SHOWN_SWAPS, _SHOWN_SLICES = 12, 3


@dataclass(frozen=True)
class EmbeddingFacts:
    """Describes a training of embeddings.

    Attributes:
        timeline: Of the last epoch, where it was left.
        ranked: What the validation edges came to, where they were ranked.
    """

    path: Path
    buckets: Buckets
    config: Record
    records: list[Record]
    timeline: Record | None
    ranked: RankList | None


def collect(run: Path) -> EmbeddingFacts:
    """Returns what ``run`` holds.

    Raises:
        FormatError: It is no embedding run, or its checkpoint is damaged.
    """
    buckets, config, records = open_buckets(run), {}, []
    if (run / FOLDER / CHECKPOINT).is_file():
        _, meta = read_tensors(run / FOLDER / CHECKPOINT, FORMAT, VERSION)
        config, records = meta.get("identity", {}), meta.get("records", [])
    try:
        timeline = parse_json((run / FOLDER / TIMELINE).read_bytes())
    except (OSError, ValueError):
        timeline = None
    return EmbeddingFacts(run, buckets, config, records, timeline, read_rankings(run))


def page(facts: EmbeddingFacts) -> str:
    """Returns the HTML."""
    buckets, records = facts.buckets, facts.records
    subtitle = (
        f"{buckets.num_nodes:,} nodes, {buckets.num_edges:,} training edges, {buckets.num_relations:,} relations, "
        f"{buckets.partitions} partitions"
    )
    sections = [Section("settings", "Settings", [("Settings", _settings(facts))])]
    verdict, advice, tiles = "Nothing has been trained yet.", "Run outcrop embed train.", []
    if records:
        seconds, waited = sum(r["seconds"] for r in records), sum(sum(r["waits"]) for r in records)
        share = waited / seconds if seconds else 0.0
        verdict = f"Training waited for swaps {format_value('share', share)} of the time."
        advice = (
            "Swaps are the limit: more memory, or a larger --buffer, gives each more to hide behind."
            if share > 0.05
            else ""
        )
        last = records[-1]
        edges = sum(r["edges"] for r in records)
        tiles = [
            ("Edges a second", f"{edges / seconds:,.0f}" if seconds else "–", f"{len(records)} epochs"),
            ("Loss", digits(last["loss"]), f"epoch {last['epoch']}; first {digits(records[0]['loss'])}"),
            (
                "Waiting for swaps",
                format_value("seconds", waited),
                f"{sum(len(r['waits']) for r in records):,} swaps",
            ),
            (
                "Read per epoch",
                format_value("bytes", last["bytes_read"]),
                f"written {format_value('bytes', last['bytes_written'])}",
            ),
        ]
        learning: list[Figure | tuple[str, Table] | str] = [_loss(records)]
        if facts.ranked is not None and (best := facts.ranked.best_ranking) is not None:
            learning.append(_ranks(facts.ranked, best))
            tiles.append(("Best MRR", digits(best.mrr), f"validation edges after epoch {best.epoch}"))
        sections = [
            Section("time", "Time", _time(facts)),
            Section("learning", "Learning", learning),
            *sections,
        ]
    return render(
        facts.path.resolve().name, subtitle, verdict, advice, tiles, sections,
        "Made by outcrop report from the run's checkpoint.",
    )  # fmt: skip


def _settings(facts: EmbeddingFacts) -> Table:
    values = {**facts.buckets.manifest.config, **facts.config}
    rows = [[name.replace("_", " "), str(value)] for name, value in values.items() if "digest" not in name]
    return Table(["", ""], rows, wraps=True)


def _time(facts: EmbeddingFacts) -> list[Figure | tuple[str, Table] | str]:
    figures: list[Figure | tuple[str, Table] | str] = [_epochs(facts.records)]
    if facts.timeline and facts.timeline.get("swaps"):
        figures.append(_timeline(facts.timeline))
    return figures


def _epochs(records: list[Record]) -> Figure:
    some = thinned(records, MAX_COLUMNS)
    waits = [sum(r["waits"]) for r in some]
    series = [
        Series("training", "s-compute", [max(r["seconds"] - w, 0) for r, w in zip(some, waits, strict=True)]),
        Series("waiting for swaps", "s-waiting", waits),
    ]
    labels = [str(r["epoch"]) for r in some]
    usual = sorted(r["seconds"] for r in records)[len(records) // 2]
    rows = [
        [
            str(r["epoch"]),
            format_value("seconds", r["seconds"]),
            format_value("seconds", w),
            f"{r['edges'] / r['seconds']:,.0f}",
        ]
        for r, w in zip(some, waits, strict=True)
        if r["seconds"]
    ]
    return Figure(
        "epochs",
        f"An epoch takes {format_value('seconds', usual)}",
        lambda width: charts.columns(width, labels, series, kind="seconds", x_name="epoch"),
        "Time by epoch",
        Table(["epoch", "time", "waiting", "edges/s"], rows),
        legend=[(s.name, s.color) for s in series],
    )


def _timeline(timeline: Record) -> Figure:
    """Returns what was trained while each swap ran, from the first swap of the epoch on."""
    swaps = timeline["swaps"][:_SHOWN_SWAPS]
    first, last = swaps[0]["begin"], max(s["moved"] + s["waited"] for s in swaps)
    spans = [
        Span(
            "train",
            b,
            e,
            "s-compute",
            f"{edges:,}",
            f"{edges:,} edges of {buckets} buckets: {format_value('seconds', e - b)}",
        )
        for b, e, buckets, edges in timeline["trained"]
        if e > first and b < last
    ]
    for swap in swaps:
        what = f"{_ids(swap['evicted'])} out, {_ids(swap['loaded'])} in"
        spans.append(
            Span(
                "swap",
                swap["begin"],
                swap["moved"],
                "s-c2",
                what,
                f"{what}: {format_value('seconds', swap['moved'] - swap['begin'])}",
            )
        )
        end = max(
            (e for b, e, _, _ in timeline["trained"] if b >= swap["begin"] and b < swap["moved"]),
            default=swap["moved"],
        )
        if swap["waited"] > 1e-4:
            spans.append(
                Span(
                    "wait",
                    end,
                    end + swap["waited"],
                    "s-waiting",
                    "",
                    f"waited {format_value('seconds', swap['waited'])} for {what}",
                )
            )
    waited = sum(s["waited"] for s in timeline["swaps"])
    rows = [
        [
            _ids(s["evicted"]),
            _ids(s["loaded"]),
            format_value("seconds", s["moved"] - s["begin"]),
            format_value("seconds", s["waited"]),
        ]
        for s in swaps
    ]
    return Figure(
        "swaps",
        f"The {len(timeline['swaps'])} swaps of epoch {timeline['epoch']} made training wait "
        f"{format_value('seconds', waited)}",
        lambda width: charts.timeline(
            width, ("train", "swap", "wait"), spans, x_name="time since the first swap"
        ),
        f"The first {len(swaps)} swaps: what was trained meanwhile",
        Table(["out", "in", "took", "waited"], rows),
    )


def _loss(records: list[Record]) -> Figure:
    xs, losses = [r["epoch"] for r in records], [r["loss"] for r in records]
    some = thinned(records, MAX_COLUMNS)
    return Figure(
        "loss",
        f"The loss went from {digits(losses[0])} to {digits(losses[-1])} in {len(records)} epochs",
        lambda width: charts.lines(
            width, xs, [Series("loss", "s-c0", losses)], kind="number", x_kind="epoch", x_name="epoch",
            y_name="mean over both ends",
        ),
        "Training loss by epoch",
        Table(["epoch", "loss"], [[str(r["epoch"]), f"{r['loss']:.4f}"] for r in some]),
    )  # fmt: skip


def _ranks(ranked: RankList, best: EpochRanks) -> Figure:
    rankings = ranked.rankings
    xs, mrr = [one.epoch for one in rankings], [one.mrr for one in rankings]
    ks = list(best.hits)
    series = [Series("MRR", "s-c0", mrr)]
    series += [
        Series(f"Hits@{k}", f"s-c{number}", [one.hits[k] for one in rankings])
        for number, k in enumerate(ks, 1)
    ]
    some = thinned(rankings, MAX_COLUMNS)
    return Figure(
        "ranks",
        f"The validation edges ranked best after epoch {best.epoch}",
        lambda width: charts.lines(
            width, xs, series, kind="number", x_kind="epoch", x_name="epoch", y_name=ranked.protocol
        ),
        "Validation by epoch",
        Table(["epoch", "MRR", *(f"Hits@{k}" for k in ks)], [_numbers(one, ks) for one in some]),
        legend=[(one.name, one.color) for one in series],
    )


def _numbers(ranking: EpochRanks, ks: list[str]) -> list[str]:
    return [str(ranking.epoch), f"{ranking.mrr:.4f}", *(f"{ranking.hits[k]:.4f}" for k in ks)]


def _ids(slices: list[int]) -> str:
    """Returns the text of all of a few, of the first of many."""
    more = len(slices) - _SHOWN_SLICES
    return ", ".join(map(str, slices[:_SHOWN_SLICES])) + (f" and {more} more" if more > 0 else "")
