"""Reports without a browser: numbers to words, what limited a training, drawings, the page's text, errors."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from outcrop.cli import report
from outcrop.cli.main import app
from outcrop.config import PlanConfig, SampleConfig
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.report import benches, charts, page, rows, runs, units
from outcrop.report import training as drawn
from outcrop.report.collect import RunFacts, collect_run, read_bench
from outcrop.report.training import binned, rate_over_time, windows
from outcrop.report.verdict import judge, steady
from outcrop.store import history, run
from outcrop.store import manifest as manifests
from outcrop.store.manifest import Manifest
from report_support import MIB, a_training, alternatives

SVG = "{http://www.w3.org/2000/svg}"


def a_run(folder: Path) -> Path:
    """A run that was only begun: run.json."""
    run.write(folder, run.RunInfo("../g.oc", "0" * 64, SampleConfig(), PlanConfig(memory=100 * MIB)))
    return folder


def facts(training: dict | None, **fields) -> RunFacts:
    info = run.RunInfo("../g.oc", "0" * 64, SampleConfig(), PlanConfig(memory=100 * MIB))
    trainings = [] if training is None else [training]
    return RunFacts(
        Path("some.run"),
        info,
        {},
        None,
        trainings,
        training,
        training["disk"] if training else None,
        **fields,
    )


def marks(canvas, kind: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(canvas.svg("t", "d", "n"))
    return [e for e in root.iter(SVG + kind) if "mark" in e.get("class", "").split()]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("bytes", 1536, "1.5 KiB"), ("rate", 2 << 30, "2.0 GiB/s"), ("seconds", 0.00123, "1.23 ms"),
        ("seconds", 90, "90.0 s"), ("seconds", 600, "10.0 min"), ("share", 0.5, "50 %"), ("share", 0.034, "3.4 %"),
        ("count", 1234567.0, "1,234,567"), ("number", 0.0123456, "0.0123"), ("bytes", None, "–"),
        ("seconds", float("nan"), "–"), ("seconds", 0, "0 µs"),
    ],
)  # fmt: skip
def test_numbers_for_people(kind, value, text):
    assert units.format_value(kind, value) == text


@given(st.floats(0, 1e12), st.floats(1e-9, 1e12))
def test_ticks_are_round_few_and_cover_the_data(low, span):
    high = low + span
    found = units.ticks(low, high)
    if high - low < 1e-6 * high:  # below what an axis resolves
        return
    step = found[1] - found[0]
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-6)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 0.02


@pytest.mark.parametrize(
    ("fields", "limit", "words"),
    [
        ({}, "compute", "at work 99 % of the time"),
        ({"waiting": 1.5, "busy": {"read": 1.9}}, "disk", "delivered 200.0 MiB/s"),
        (
            {"waiting": 1.5, "busy": {"read": 0.2, "assemble": 1.8}},
            "copying",
            "stage assemble was at work 90 %",
        ),
        ({"waiting": 1.5, "busy": {"draw": 1.7}, "mode": "online"}, "sampling", "drawing batches took 85 %"),
        ({"waiting": 0.9, "busy": {"lease": 1.2, "submit": 1.3}}, "memory", "too few batch buffers"),
        (
            {"waiting": 1.5, "busy": {"read": 1.9}, "bytes_read": 0, "bytes_needed": 0},
            "copying",
            "rows within memory",
        ),
        ({"waiting": 1.5, "busy": {"read": 1.9}, "limit": None}, "disk", "in 400 reads an epoch."),
    ],
)
def test_what_limited_a_training(fields, limit, words):
    training = a_training(**fields)
    verdict = judge(training, training["disk"])
    assert (verdict.limit, words in verdict.sentence) == (limit, True), verdict.sentence
    assert verdict.sentence.count(". ") == 0
    assert verdict.sentence.endswith(".")


def test_many_small_reads_are_named_as_the_reason():
    training = a_training(waiting=1.5, busy={"read": 1.9}, bytes_read=800 * MIB, bytes_needed=100 * MIB)
    assert "cost 8.0 that were read" in judge(training, training["disk"]).advice


def test_the_first_epoch_does_not_count_where_there_are_more():
    training = a_training(epochs=3, seconds=2.0, waiting=0.1)
    training["epochs"][0] |= {"seconds": 50.0, "load_seconds": 49.0}
    assert steady(training).seconds == 4.0
    assert judge(training, None).limit == "compute"
    assert steady(a_training(epochs=1)).epochs == 1


def test_without_a_training_the_sentence_says_so():
    assert "No training" in judge(None, None).sentence
    assert "finished no epoch" in judge(a_training(epochs=0), None).sentence


def test_columns_start_at_zero_and_are_as_high_as_their_values():
    values = [[3.0, 1.0, 0.0], [1.0, 2.0, 8.0]]
    series = [charts.Series(f"s{i}", f"s-c{i}", v) for i, v in enumerate(values)]
    rects = marks(charts.columns(700, ["0", "1", "2"], series, kind="number", x_name="x"), "rect")
    found = {(e.get("data-series"), i // 2): e for i, e in enumerate(rects)}
    heights = {key: float(e.get("height")) for key, e in found.items()}
    scale = heights["s1", 2] / 8.0
    for i, column in enumerate(values):
        for j, value in enumerate(column):
            assert heights[f"s{i}", j] == pytest.approx(value * scale, abs=0.02)
    bottoms = [float(e.get("y")) + float(e.get("height")) for (name, _), e in found.items() if name == "s0"]
    assert max(bottoms) - min(bottoms) < 0.02


@pytest.mark.parametrize("width", [700, 340])
def test_bars_are_as_long_as_their_values(width):
    values = [5.0, 0.5, 10.0]
    rects = marks(charts.bars(width, [charts.Bar(f"b{v}", v) for v in values], kind="seconds"), "rect")
    lengths = [float(e.get("width")) for e in rects]
    assert [x / lengths[2] for x in lengths] == pytest.approx([v / 10 for v in values], rel=0.01)
    assert len({e.get("x") for e in rects}) == 1


def test_an_area_is_stacked_to_the_sum():
    series = [charts.Series("a", "s-c0", [10, 10]), charts.Series("b", "s-c1", [30, 30])]
    paths = marks(charts.area(700, [0, 1], series, kind="number", x_kind="seconds", x_name="t"), "path")
    tops = [min(float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", e.get("d"))) for e in paths]
    lows = [max(float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", e.get("d"))) for e in paths]
    assert lows[1] == pytest.approx(tops[0], abs=0.02)
    assert (lows[0] - tops[1]) / (lows[0] - tops[0]) == pytest.approx(4, rel=0.01)


def test_long_trainings_are_drawn_in_at_most_forty_columns():
    epochs = a_training(epochs=1003, batches=1)["epochs"]
    groups = binned(epochs)
    assert len(groups) <= 40
    assert [e for group in groups for e in group] == epochs


def test_the_rate_over_time_adds_up():
    samples = a_training()["samples"]
    xs, rates = rate_over_time(samples, most=10)
    assert len(xs) <= 10
    assert sum(rates) / len(rates) == pytest.approx(
        samples["read_bytes"][-1] / (samples["t_ms"][-1] / 1000), rel=0.02
    )


def test_windows_show_the_start_and_later_batches_of_training_only():
    found = windows(a_training(epochs=4, batches=30))
    assert {s["batch"] for s in found["start"]} == set(range(10))
    assert {s["epoch"] for s in found["start"]} == {0}
    computed = {(s["epoch"], s["batch"]) for s in found["steady"] if s["name"] == "compute"}
    assert computed == {(3, b) for b in range(18, 28)}
    ends = [t for s in found["steady"] if s["name"] == "compute" for t in (s["start"], s["end"])]
    assert all(min(ends) <= s["start"] < s["end"] <= max(ends) for s in found["steady"])
    assert {s["split"] for spans in found.values() for s in spans} == {"train"}
    assert list(windows(a_training(epochs=1, batches=5))) == ["start"]
    assert windows({"spans": {}}) == {}


class Reader(HTMLParser):
    """Collects tags that were opened and not closed, and everything that points outside."""

    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self._look(attrs)

    def handle_startendtag(self, tag, attrs):
        self._look(attrs)

    def _look(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href") and not (value.startswith(("#", "data:"))):
                self.outside.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert (reader.open, reader.outside) == ([], [])
    assert len(reader.ids) == len(set(reader.ids))
    assert "@import" not in html
    assert "url(" not in html
    return reader


def test_the_page_of_a_training_is_whole_and_small():
    html = runs.run_page(facts(a_training(epochs=200)))
    assert len(html.encode()) < 1_000_000
    reader = checked(html)
    figures = {"epochs", "stages", "timeline-start", "timeline-steady", "rows", "amplification", "memory", "disk",
               "loss", "accuracy"}  # fmt: skip
    assert figures <= set(reader.ids)
    assert "&lt;with&gt; brackets &amp; more" in html
    assert "<with>" not in html


def page_text(record: dict) -> str:
    return runs.run_page(facts(record))


TYPED = [
    {"of": "paper", "rows": 700, "row_bytes": 512},
    {"of": "author writes paper", "rows": 9, "row_bytes": 64},
]


def test_rows_of_several_types_are_told_apart():
    """Bytes are those of the rows of each type, not of a mean row; the first epoch does not count."""
    record = a_training(rows={"host": 300, "disk": 100})
    assert rows.rows_by_file(record) is None
    figure = drawn.rows_by_level(record)
    assert "A row has 512 bytes." in figure.note
    record["graph"]["row_files"] = TYPED
    for epoch in record["epochs"]:
        more = 0 if epoch["epoch"] else 1000
        epoch["rows_by_file"] = [{"host": 290 + more, "disk": 60}, {"host": 10, "disk": 40}]
    size = {"host": 290 * 512 + 10 * 64, "disk": 60 * 512 + 40 * 64}
    figure = drawn.rows_by_level(record)
    assert "Bytes of a row: paper 512, author writes paper 64." in figure.note
    assert [row[3] for row in figure.table.rows] == [
        units.format_value("bytes", n) for n in (size["host"], size["disk"], sum(size.values()))
    ]
    figure = rows.rows_by_file(record)
    assert figure.title.startswith("98 % of the bytes of rows are of paper")
    assert figure.table.rows == [
        ["paper", "disk, row by row", "60", units.format_value("bytes", 60 * 512)],
        ["paper", "host cache", "290", units.format_value("bytes", 290 * 512)],
        ["author writes paper", "disk, row by row", "40", units.format_value("bytes", 40 * 64)],
        ["author writes paper", "host cache", "10", units.format_value("bytes", 10 * 64)],
    ]
    assert len(marks(figure.draw(600), "path")) + len(marks(figure.draw(600), "rect")) == 2
    assert "rows-by-type" in page_text(record)
    del record["graph"]["row_files"]  # of before
    assert "row file 1" in str(rows.rows_by_file(record).table.rows)


def test_the_page_says_what_is_missing():
    html = runs.run_page(facts(None))
    checked(html)
    assert "No training of this run is on record yet" in html
    assert "outcrop prepare makes one" in html
    assert "How long preparing took is not on record" in html


@pytest.mark.parametrize("alternative", [None, alternatives()])
def test_the_plan_and_its_alternatives(alternative):
    predicted = {"epochs": {"train": [{"bytes_read": 5 * MIB, "bytes_needed": 5 * MIB, "rows_by_level": {}}]},
                 "cache_bytes": {"host": MIB}, "disk_bytes": 9 * MIB, "read_amplification": 1.0}  # fmt: skip
    if alternative:
        predicted["alternatives"] = alternative
    plan = Manifest("outcrop.plan", 1, attributes={"slots": 2, "predicted": predicted})
    html = runs.run_page(replace(facts(None), stages={"plan": plan}))
    checked(html)
    if alternative is None:
        assert "records no alternatives" in html
    else:
        assert (
            "6 layouts were priced; the chosen one should load an epoch in 700 ms, the slowest 1.00 s" in html
        )
        assert html.count('<tr class=chosen><th scope="row">4, 3') == 1


def test_damaged_history_is_left_out_and_named(tmp_path):
    folder = a_run(tmp_path / "r")
    (folder / "history").mkdir()
    (folder / "history" / "train-1.json").write_text("{")
    (folder / "history" / "prepare.json").write_text('{"format": "else", "version": 1}')
    history.write_training(folder, {k: v for k, v in a_training().items() if k not in ("number", "kind")})
    found = collect_run(folder)
    assert [t["number"] for t in found.trainings] == [2]
    assert len(found.problems) == 2
    html = runs.run_page(found)
    assert "train-1.json" in html
    assert "prepare.json" in html


@pytest.mark.parametrize("stages", [5, {"plan": 3}])
def test_a_record_of_earlier_versions_that_says_something_else(tmp_path, stages):
    """They have no checksum."""
    folder = a_run(tmp_path / "r")
    (folder / "history").mkdir()
    record = {"format": history.FORMAT, "version": history.VERSION, "kind": "prepare", "stages": stages}
    (folder / "history" / "prepare.json").write_text(json.dumps(record))
    found = collect_run(folder)
    assert (found.preparing, len(found.problems)) == (None, 1)
    assert "prepare.json does not say what its stages are" in runs.run_page(found)


def test_a_training_on_a_run_that_was_replaced_is_not_shown_as_one_on_this(tmp_path):
    folder = a_run(tmp_path / "r")
    record = {k: v for k, v in a_training().items() if k not in ("number", "kind")}
    history.write_training(folder, {**record, "plan": "of the run before"})
    (folder / "plan").mkdir()
    plan = Manifest("outcrop.plan", 1)
    manifests.write(folder / "plan", plan)
    found = collect_run(folder)
    assert found.training is None
    assert collect_run(folder, 1).training == found.trainings[0]  # asked for by its number
    history.write_training(folder, {**record, "plan": plan.digest()})
    history.write_training(folder, {**record, "plan": "of another run"})
    found = collect_run(folder)
    assert found.training is not None
    assert found.training["number"] == 2


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(FormatError, match="no Outcrop run"):
        collect_run(tmp_path)
    folder = a_run(tmp_path / "r")
    with pytest.raises(ArgumentError, match="no record of training 3; recorded: none"):
        collect_run(folder, 3)
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(FormatError, match="names no experiment"):
        read_bench(tmp_path / "x.json")
    with pytest.raises(IoError, match="does not exist"):
        page.write(tmp_path / "no" / "r.html", "")
    with pytest.raises(IoError, match="is a folder"):
        page.write(tmp_path, "")
    with pytest.raises(IoError, match=r"r\.html"):
        page.write(Path("/proc/r.html"), "")
    with pytest.raises(ArgumentError, match=r"neither an \.svg nor an \.html"):
        benches.check_plot(tmp_path / "a.png")


@pytest.mark.leaks("env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported")
def test_the_command_writes_a_page_for_a_run_without_trainings(tmp_path):
    folder, out = a_run(tmp_path / "r"), tmp_path / "r.html"
    result = CliRunner().invoke(
        app,
        ["report", str(folder), "--out", str(out), "--json", str(tmp_path / "r.json")],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    about = json.loads((tmp_path / "r.json").read_text())
    assert (about["training"], about["limit"], about["bytes"]) == (None, "unknown", out.stat().st_size)
    checked(out.read_text())
    with pytest.raises(FormatError, match="does not exist"):
        CliRunner().invoke(app, ["report", str(tmp_path / "none")], catch_exceptions=False)


EPOCH = {
    "experiment": "epoch",
    "setting": {"cap": 0.1, "shape": {"nodes": 5}},
    "machine": {"cpu": "c", "cores": 2},
    "revision": "abc",
    "modes": {
        "packed": {
            "seconds": 1.4,
            "bytes_read": 600 * MIB,
            "read_amplification": 1.0,
            "mode": "packed",
            "ok": True,
        },
        "memmap": {
            "seconds": 14.0,
            "bytes_read": 0,
            "read_amplification": None,
            "mode": "memmap",
            "ok": True,
        },
    },
    "bare_products_seconds": 0.4,
}
CURVE = {
    "experiment": "memory-curve",
    "points": [
        {"cap": c, "seconds": s, "peak_host_bytes": int(c * 1e9)} for c, s in ((0.01, 9), (0.1, 3), (0.5, 1))
    ],
}


def test_bars_of_a_benchmark():
    found = {f.name: f for f in benches.figures(EPOCH)}
    assert list(found) == ["modes-seconds", "modes-read-amplification", "modes-bytes-read"]
    assert found["modes-seconds"].title == "Time: 1.40 s (packed) to 14.0 s (memmap), 10.0 times as much"
    assert len(marks(found["modes-seconds"].draw(700), "rect")) == 2
    assert len(marks(found["modes-read-amplification"].draw(700), "rect")) == 1
    checked(benches.bench_page(EPOCH))


def test_lines_of_a_benchmark_along_a_number():
    (group,) = benches.groups_of(CURVE)
    assert (group.along, group.fields) == ("cap", ["seconds", "peak_host_bytes"])
    seconds = benches.figures(CURVE)[0]
    assert len(marks(seconds.draw(700), "circle")) == 3
    checked(benches.bench_page(CURVE))


def test_a_drawing_stands_alone(tmp_path):
    text = benches.plot(EPOCH, tmp_path / "a.svg")
    root = ElementTree.fromstring(text.encode())
    assert len([e for e in root.iter(SVG + "rect") if "mark" in e.get("class", "")]) == 5
    assert "var(" not in text
    assert benches.plot(EPOCH, tmp_path / "a.html").startswith("<!doctype html>")
    with pytest.raises(FormatError, match="holds no numbers"):
        benches.figures({"experiment": "none"})


def test_a_trace_is_rewritten_for_perfetto(tmp_path):
    lines = [
        {"name": "read", "thread": "a", "start_ns": 1000, "end_ns": 3500, "bytes": 7},
        {"name": "note", "thread": "a"},
        {"name": "compute", "thread": "b", "start_ns": 2000, "end_ns": 9000},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report.report(tmp_path / "t.jsonl", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    assert spans == [("read", 1.0, 2.5, {"bytes": 7}), ("compute", 2.0, 7.0, {})]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["a", "b"]


def test_the_first_time_of_a_narrow_timeline_stays_within_it():
    spans = [charts.Span("read", 0.0, 1.5, "s-c0")]
    drawing = charts.timeline(390, ["read"], spans, x_name="t").svg("t", "d", "n")
    texts = [e for e in ElementTree.fromstring(drawing).iter(SVG + "text") if "tick" in e.get("class", "")]
    assert texts[0].text == "0.0"
    assert float(texts[0].get("x", 0)) >= charts.text_width(texts[0].text) / 2
