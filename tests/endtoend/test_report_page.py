"""The page in headless Chromium: no errors, no requests, every number of the history drawn, nothing out of view."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browser import Browser, chromium
from outcrop.api.train import train
from outcrop.cli.main import app
from outcrop.report import benches, runs
from outcrop.report.collect import collect_run
from prepare_support import prepare
from report_support import a_training, alternatives
from run_support import a_graph
from support import new_runtime

pytestmark = pytest.mark.slow
EPOCHS = 5
SIZES = ((1280, 800), (390, 844))


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The page of a run with two trainings, and the record of the one that it shows."""
    folder = tmp_path_factory.mktemp("report")
    with new_runtime(threads=1) as runtime:
        graph = a_graph(folder / "g", runtime, nodes=2000, edges=20000, train=900)
    prepare(graph, folder / "r", fanouts=(4, 4), batch_size=30, memory="4MiB")
    train(graph, run=folder / "r", mode="online", hidden=8, epochs=2)
    train(graph, run=folder / "r", hidden=8, epochs=EPOCHS)
    out = folder / "report.html"
    done = CliRunner().invoke(app, ["report", str(folder / "r"), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0
    return out, json.loads((folder / "r" / "history" / "train-2.json").read_text())


def opened(browser: Browser, path: Path, width: int = 1280, height: int = 800) -> Browser:
    browser.resize(width, height)
    browser.prefer("light")
    browser.open(path)
    return browser


def count_marks(browser: Browser, chart: str, kind: str = "wide") -> int:
    return browser.run(f"return document.querySelectorAll('#{chart} .{kind} svg .mark').length")


def test_it_opens_without_errors_or_requests(browser, page):
    opened(browser, page[0])
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page[0].resolve().as_uri()]
    assert page[0].stat().st_size < 1_000_000


def test_the_policy_forbids_requests(browser, page):
    opened(browser, page[0])
    browser.run("new Image().src = 'http://127.0.0.1:9/x.png'")
    assert any("Content Security Policy" in message for message in browser.console())


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_every_number_of_the_history_is_drawn(browser, page, kind):
    """The marks are counted from the raw record, without the report's own code."""
    path, record = page
    opened(browser, path)
    levels = {level for e in record["epochs"][1:] for level, rows in e["rows_by_level"].items() if rows}
    spans = record["spans"]
    keys = ("name", "split", "epoch", "batch", "start_us", "end_us")
    rows = zip(*(spans[key] for key in keys), strict=True)
    training = [(spans["names"][n], *rest) for n, s, *rest in rows if spans["splits"][s] == "train"]
    lanes = {"lease", "submit", "read", "assemble", "share", "transfer", "compute"}
    batches = 1 + max(b for name, _, b, *_ in training if name == "compute")

    def beside(epoch: int, numbers: range) -> list[tuple]:
        computes = [t for t in training if t[0] == "compute" and t[1] == epoch and t[2] in numbers]
        begin, end = min(t[3] for t in computes), max(t[4] for t in computes)
        begin = min(t[3] for t in training if t[1] == epoch) if numbers.start == 0 else begin
        return [t for t in training if t[1] == epoch and t[0] in lanes and t[3] < end and t[4] > begin]

    start, late = beside(0, range(10)), beside(EPOCHS - 1, range(batches - 12, batches - 2))
    held = [any(values) for values in record["samples"]["bytes_by_tag"].values()]
    wanted = {
        "epochs": 2 * EPOCHS,
        "rows": len(levels) * EPOCHS,
        "amplification": 2 * EPOCHS,
        "memory": min(sum(held), 8),
        "loss": EPOCHS,
        "accuracy": EPOCHS,
        "trainings-epochs": 2,
        "preparing-stages": 3,
    }
    assert {name: count_marks(browser, name, kind) for name in wanted} == wanted
    # Spans of drawing a batch are shown only where they take a visible share of the time.
    for name, least in (("timeline-start", start), ("timeline-steady", late)):
        drawing = browser.run(
            f"return document.querySelectorAll('#{name} .{kind} [data-series=draw]').length"
        )
        assert count_marks(browser, name, kind) - drawing == len(least) > 40
    assert count_marks(browser, "stages", kind) in (6, 7)


def test_marks_say_their_numbers(browser, page):
    path, record = page
    opened(browser, path)
    tips = browser.run(
        "return [...document.querySelectorAll('#loss .wide .mark title')].map(e => e.textContent)"
    )
    shown = [float(re.search(r"loss: ([\d.]+)", tip)[1]) for tip in tips]
    assert shown == pytest.approx([e["loss"] for e in record["epochs"]], rel=0.005)
    read = browser.run(
        "return [...document.querySelectorAll('#loss tbody tr')].map(r => r.children[1].textContent)"
    )
    assert [float(text) for text in read] == pytest.approx([e["loss"] for e in record["epochs"]], abs=1e-4)


OUTSIDE = """
      const out = [];
      for (const e of document.body.querySelectorAll('*')) {
        if (e.closest('.scroll') && !e.classList.contains('scroll')) continue;
        const box = e.getBoundingClientRect();
        const inside = box.right <= innerWidth + 0.5 && box.left >= -0.5;
        if (box.width && !inside) out.push(e.tagName + ' ' + e.textContent.slice(0, 40));
      }
      return [document.documentElement.scrollWidth <= innerWidth, out];
    """
TEXTS_OUTSIDE = """
      const out = [];
      for (const svg of document.querySelectorAll('svg')) {
        const frame = svg.getBoundingClientRect();
        if (!frame.width) continue;
        for (const text of svg.querySelectorAll('text')) {
          const box = text.getBoundingClientRect();
          const wide = box.left < frame.left - 1 || box.right > frame.right + 1;
          if (wide || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
            out.push(svg.closest('figure').id + ': ' + text.textContent);
        }
      }
      return out;
    """


def outside(browser: Browser) -> list[str]:
    """What leaves the page, or is a text that leaves its drawing."""
    fits, found = browser.run(OUTSIDE)
    assert fits
    return found + browser.run(TEXTS_OUTSIDE)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_leaves_the_view(browser, page, width, height):
    """What is wider scrolls in a box of its own."""
    opened(browser, page[0], width, height)
    assert outside(browser) == []
    visible = (
        "return [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).length"
    )
    assert browser.run(visible) == browser.run("return document.querySelectorAll('figure').length")


def test_drawings_have_text_alternatives(browser, page):
    opened(browser, page[0])
    lacking = """
      return [...document.querySelectorAll('svg')].filter(s => s.getAttribute('role') !== 'img' ||
        s.getAttribute('aria-labelledby').split(' ').some(id => !document.getElementById(id)?.textContent)).length
    """
    assert browser.run(lacking) == 0
    tables = "return [...document.querySelectorAll('table')].every(t => t.caption && t.querySelectorAll('th').length)"
    assert browser.run(tables)


def test_hover_and_switches(browser, page):
    opened(browser, page[0])
    hover = """
      const mark = document.querySelector('#epochs .wide .mark'), box = mark.getBoundingClientRect();
      mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.x, clientY: box.y}));
      const tip = document.getElementById('tip');
      return [tip.hidden, tip.textContent];
    """
    hidden, text = browser.run(hover)
    assert hidden is False
    assert text.startswith("epoch 0, computing: ")
    toggle = """
      const figure = document.getElementById('epochs'), button = figure.querySelector('[data-toggle]');
      button.click();
      const shown = [...figure.querySelectorAll('.wide .mark')].filter(m => getComputedStyle(m).display !== 'none');
      return [button.getAttribute('aria-pressed'), shown.length];
    """
    assert browser.run(toggle) == ["false", EPOCHS]
    theme = "document.getElementById('theme').click(); return getComputedStyle(document.body).backgroundColor"
    assert browser.run(theme) == "rgb(20, 24, 29)"
    assert browser.console() == []


def contrast(first: str, second: str) -> float:
    """Of two CSS colours, by the definition of WCAG 2."""

    def luminance(color: str) -> float:
        parts = [int(v) / 255 for v in re.findall(r"\d+", color)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(browser, page, scheme):
    opened(browser, page[0])
    browser.prefer(scheme)
    colors = """
      const style = (s, p) => getComputedStyle(document.querySelector(s))[p];
      const front = [style('body', 'color'), style('svg .tick', 'fill'), style('.note', 'color')];
      return [style('body', 'backgroundColor'), ...front];
    """
    back, *fronts = browser.run(colors)
    assert [color for color in fronts if contrast(back, color) < 4.5] == []
    fills = browser.run(
        "return [...document.querySelectorAll('.wide .mark.fill')].map(m => getComputedStyle(m).fill)"
    )
    assert {color for color in fills if contrast(back, color) < 2.0} == set()


def test_it_prints(browser, page, tmp_path):
    opened(browser, page[0])
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14


@pytest.mark.parametrize("what", ["empty", "long", "alternatives", "bench"])
def test_other_pages_open_too(browser, tmp_path, page, what):
    """No training; a thousand epochs; alternatives; a benchmark."""
    run = page[0].parent / "r"
    facts = collect_run(run)
    if what == "bench":
        text = benches.bench_page(
            {"experiment": "loader", "modes": {"packed": {"seconds": 1.0}, "memmap": {"seconds": 9.0}}}
        )
    else:
        facts = dataclasses.replace(facts, training=a_training(epochs=1000) if what == "long" else None)
        if what == "alternatives":
            facts.predicted["alternatives"] = alternatives()
        text = runs.run_page(facts)
    (tmp_path / "x.html").write_text(text)
    for width, height in SIZES:
        opened(browser, tmp_path / "x.html", width, height)
        assert browser.console() == []
        assert outside(browser) == []
    if what == "alternatives":
        assert count_marks(browser, "alternatives") == 6
    if what == "long":
        assert count_marks(browser, "epochs") <= 80
        assert count_marks(browser, "loss") in (1, 1000)
    if what == "bench":
        assert count_marks(browser, "modes-seconds") == 2
