"""The page about a run."""

from __future__ import annotations

from typing import Any

from outcrop.report import charts
from outcrop.report import training as drawn
from outcrop.report.charts import Bar, Point, Reference
from outcrop.report.collect import RunFacts
from outcrop.report.page import Figure, Section, Table, render
from outcrop.report.rows import rows_by_file
from outcrop.report.units import format_value
from outcrop.report.verdict import judge, steady, typical_epoch_seconds
from outcrop.store.run import STAGES

Record = dict[str, Any]


def run_page(facts: RunFacts, measured: str = "right after the training") -> str:
    """Returns the HTML of a run. ``measured``: when and where the disk's limit was."""
    verdict = judge(facts.training, facts.disk)
    sections = [
        *_training_sections(facts, measured),
        _plan(facts),
        _preparing(facts),
        _trainings(facts),
        _machine(facts),
    ]
    kept = [section for section in sections if section is not None and section.parts]
    foot = "Made by outcrop report from the run's manifests and its history."
    if facts.problems:
        foot += " Not readable, and left out: " + "; ".join(facts.problems)
    return render(
        facts.path.resolve().name,
        _subtitle(facts),
        verdict.sentence,
        verdict.advice,
        _tiles(facts),
        kept,
        foot,
    )


def _subtitle(facts: RunFacts) -> str:
    if facts.training is None:
        return f"Run at {facts.path}, of graph {facts.info.graph}"
    training = facts.training
    config, graph = training["training"], training["graph"]
    ended = f" It ended with {training['ended']}." if training.get("ended") else ""
    return (
        f"Training {training['number']}: {config['model']}, mode {training['mode']}, on {config['device']}; "
        f"{graph['nodes']:,} nodes, {graph['edges']:,} edges, {format_value('bytes', graph['feature_bytes'])} "
        "of features; "
        f"{training['started_at']}.{ended}"
    )


def _tiles(facts: RunFacts) -> list[tuple[str, str, str]]:
    training = facts.training
    if training is None or not training["epochs"]:
        return _plan_tiles(facts)
    known, report = steady(training), training.get("report", {})
    peak, budget = report.get("peak_host_bytes"), training.get("budget_bytes")
    amplification = known.amplification
    tiles = [
        (
            "Epoch, median",
            format_value("seconds", typical_epoch_seconds(training)),
            f"{len(training['epochs'])} epochs",
        ),
        ("Waiting for data", format_value("share", known.waiting_share), "of the steady epochs"),
        (
            "Read per epoch",
            format_value("bytes", known.bytes_read / known.epochs),
            f"{known.read_ops / known.epochs:,.0f} reads",
        ),
        ("Read / needed", "–" if amplification is None else f"{amplification:.3f}", "bytes from disk"),
    ]
    trained, distinct = len(training["epochs"]), report.get("distinct_epochs")
    if distinct is not None:  # reports from before say nothing
        how = "every epoch draws its own" if distinct >= trained else "the others replay theirs"
        tiles.append(("Epochs with new batches", f"{min(distinct, trained)} of {trained}", how))
    if peak:
        tiles.append(
            (
                "Memory held",
                format_value("bytes", peak),
                f"of {format_value('bytes', budget)}" if budget else "no budget set",
            )
        )
    if report.get("test_accuracy") is not None:
        tiles.append(
            ("Test accuracy", f"{report['test_accuracy']:.4f}", f"best epoch {report['best_epoch']}")
        )
    return tiles


def _plan_tiles(facts: RunFacts) -> list[tuple[str, str, str]]:
    predicted = facts.predicted
    epochs = predicted.get("epochs", {}).get("train")
    if not epochs:
        return []
    return [
        ("An epoch will read", format_value("bytes", epochs[0]["bytes_read"]), "predicted, exact"),
        ("Read / needed", f"{predicted.get('read_amplification', 1):.3f}", "bytes from disk"),
        ("The run takes", format_value("bytes", predicted.get("disk_bytes")), "of disk"),
    ]


def _training_sections(facts: RunFacts, measured: str) -> list[Section]:
    training = facts.training
    if training is None:
        return []
    sections = [
        Section("time", "Time"),
        Section("data", "Data"),
        Section("memory-and-disk", "Memory and disk"),
    ]
    time, data, resources = (section.parts for section in sections)
    if training["epochs"]:
        time.append(drawn.epoch_time(training))
        _add(time, drawn.stages(training))
        _add(data, drawn.rows_by_level(training))
        _add(data, rows_by_file(training))
        _add(data, drawn.amplification(training, facts.predicted))
        sections.append(Section("learning", "Learning", list(drawn.learning(training))))
    for name, spans in drawn.windows(training).items():
        if spans:
            time.append(drawn.timeline(name, spans))
    _add(resources, drawn.memory(training))
    _add(resources, drawn.disk_rate(training, facts.disk, measured))
    return sections


def _add(parts: list[Any], figure: Figure | None) -> None:
    if figure is not None:
        parts.append(figure)


def _plan(facts: RunFacts) -> Section:
    section = Section("plan", "The plan and its alternatives")
    if "plan" not in facts.stages:
        section.parts.append("The run has no plan yet: outcrop prepare makes one.")
        return section
    attributes, config, predicted = facts.stages["plan"].attributes, facts.info.plan, facts.predicted
    epoch = (predicted.get("epochs", {}).get("train") or [{}])[0]
    rows = [
        ["host memory", format_value("bytes", config.memory) if config.memory is not None else "no limit"],
        ["device memory", format_value("bytes", config.gpu_memory)],
        [
            "disk space",
            format_value("bytes", config.disk_space) if config.disk_space is not None else "no limit",
        ],
        ["batch buffers", str(attributes.get("slots", "–"))],
        *(
            [f"{level} cache", format_value("bytes", size)]
            for level, size in predicted.get("cache_bytes", {}).items()
        ),
        ["an epoch reads", format_value("bytes", epoch.get("bytes_read"))],
        ["of which it needs", format_value("bytes", epoch.get("bytes_needed"))],
        ["the run takes on disk", format_value("bytes", predicted.get("disk_bytes"))],
        *(
            [f"stage {name}, files", format_value("bytes", facts.stage_bytes(name))]
            for name in STAGES
            if name in facts.stages
        ),
    ]
    section.parts.append(("What was asked for, and what the plan promises", Table(["", ""], rows)))
    alternatives = predicted.get("alternatives")
    if alternatives:
        section.parts.append(_alternatives(alternatives, config.disk_space))
    else:
        section.parts.append("This plan records no alternatives: it was made without a search over layouts.")
    if facts.training and facts.training.get("plan") not in (None, facts.stages["plan"].digest()):
        section.parts.append(
            "The run was planned again after the training that this page is about: its epochs followed another plan."
        )
    return section


def _alternatives(alternatives: list[Record], disk_space: int | None) -> Figure:
    def name(a: Record) -> str:
        return f"segment {a['segment']}, threshold {a['threshold']}"

    items = [Point(a["disk_bytes"], a["seconds"], name(a), bool(a.get("chosen"))) for a in alternatives]
    rows = [
        [
            f"{a['segment']}, {a['threshold']}",
            format_value("bytes", a["disk_bytes"]),
            format_value("bytes", a["bytes_read"]),
            format_value("count", a["read_ops"]),
            format_value("seconds", a["seconds"]),
        ]
        for a in alternatives
    ]
    chosen = next((i for i, a in enumerate(alternatives) if a.get("chosen")), None)
    title = f"{len(items)} layouts were priced"
    if chosen is not None:
        best, worst = alternatives[chosen]["seconds"], max(a["seconds"] for a in alternatives)
        title += (
            f"; the chosen one should load an epoch in {format_value('seconds', best)}, the slowest "
            f"{format_value('seconds', worst)}"
        )
    return Figure(
        "alternatives",
        title,
        lambda width: charts.points(
            width, items, x_kind="bytes", x_name="disk space", y_kind="seconds", y_name="predicted time per epoch",
            reference=Reference("limit", disk_space) if disk_space is not None else None,
        ),
        "Layouts that were weighed: disk space against predicted time",
        Table(["segment, threshold", "on disk", "read", "reads", "time"], rows, chosen),
    )  # fmt: skip


def _preparing(facts: RunFacts) -> Section:
    section, record = Section("preparing", "Preparing"), facts.preparing
    if record is None or not record.get("stages"):
        section.parts.append("How long preparing took is not on record.")
        return section
    stages: dict[str, Record] = record["stages"]
    total = sum(s["seconds"] for s in stages.values())
    items = [
        Bar(
            name,
            s["seconds"],
            "s-c0",
            detail=(
                f"{format_value('bytes', s['bytes_read'])} read, {format_value('bytes', s['bytes_written'])} "
                "written"
            ),
        )
        for name, s in stages.items()
    ]
    rows = [
        [
            name,
            format_value("seconds", s["seconds"]),
            format_value("bytes", s["bytes_read"]),
            format_value("bytes", s["bytes_written"]),
        ]
        for name, s in stages.items()
    ]
    longest = max(stages, key=lambda name: stages[name]["seconds"])
    share = stages[longest]["seconds"] / total if total else 0.0
    section.parts.append(
        Figure(
            "preparing-stages",
            f"Preparing took {format_value('seconds', total)}, {format_value('share', share)} of it in {longest}",
            lambda width: charts.bars(width, items, kind="seconds"),
            "Time and bytes of each stage of preparing",
            Table(["stage", "time", "read", "written"], rows),
        )
    )
    _add(section.parts, drawn.memory(record, "preparing-memory", "preparing"))
    return section


def _trainings(facts: RunFacts) -> Section | None:
    known = [t for t in facts.trainings if t["epochs"]]
    if len(known) < 2:
        return None
    items, rows = [], []
    for t in known:
        seconds, totals = typical_epoch_seconds(t), steady(t)
        assert seconds is not None
        label = f"{t['number']}: {t['training']['model']}, {t['mode']}"
        shown = facts.training is not None and t["number"] == facts.training["number"]
        items.append(Bar(label, seconds, "s-c0" if shown else "s-other"))
        report = t.get("report", {})
        score = report.get("test_accuracy")
        row = [label, format_value("seconds", seconds), format_value("share", totals.waiting_share)]
        row += [
            format_value("bytes", totals.bytes_read / totals.epochs),
            format_value("bytes", report.get("peak_host_bytes")),
        ]
        rows.append([*row, "–" if score is None else f"{score:.4f}"])
    fastest = min(items, key=lambda b: b.value)
    return Section(
        "trainings",
        "Trainings on record",
        [
            Figure(
                "trainings-epochs",
                f"Of {len(items)} trainings, {fastest.label} has the shortest epochs: "
                f"{format_value('seconds', fastest.value)}",
                lambda width: charts.bars(width, items, kind="seconds"),
                "Median epoch of each training of this run; the one on this page in colour",
                Table(["training", "epoch", "waiting", "read", "held", "test"], rows),
            )
        ],
    )


def _machine(facts: RunFacts) -> Section:
    section, record = Section("machine", "Machine, versions and commands"), facts.training or facts.preparing
    rows: list[list[str]] = []
    if record is not None:
        machine = record["machine"]
        rows += [
            ["processor", f"{machine['cpu']}, {machine['cores']} cores"],
            ["memory", format_value("bytes", machine["memory_bytes"])],
            ["kernel, Python", f"{machine['kernel']}, {machine['python']}"],
            ["versions", ", ".join(f"{k} {v or 'missing'}" for k, v in machine["versions"].items())],
            ["I/O engine", machine["io_backend"]],
            ["command", record["command"]],
        ]
    prepared = {s.get("command", ""): None for s in (facts.preparing or {}).get("stages", {}).values()}
    rows += [["prepared by", command] for command in prepared if command]
    if facts.training:
        rows.append(["training", _settings(facts.training["training"])])
    sampling = vars(facts.info.sample)
    rows.append(["sampling", _settings(sampling)])
    rows.append(["graph", str(facts.info.graph_path(facts.path))])
    section.parts.append(("Where and how this was run", Table(["", ""], rows, wraps=True)))
    return section


def _settings(values: Record) -> str:
    return ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)
