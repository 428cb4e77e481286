"""Results say what was typed, without where files went."""

from __future__ import annotations

from outcrop.bench.origin import command_line, origin


def test_the_command_is_what_was_typed_without_its_places() -> None:
    typed = [
        "/venv/bin/outcrop",
        "bench",
        "epoch",
        "--folder",
        "/tmp/x",
        "--rounds",
        "2",
        "--json=a.json",
        "--quiet",
    ]
    assert command_line(typed) == "outcrop bench epoch --rounds 2"
    assert command_line(["/x/outcrop/__main__.py", "demo"]) == "outcrop demo"
    typed = ["examples/embed/quality.py", "DATA", "--work", "w", "--only", "a b"]
    assert command_line(typed) == "python examples/embed/quality.py DATA --only 'a b'"


def test_an_origin_names_machine_and_source() -> None:
    found = origin("epoch")
    assert list(found) == ["experiment", "machine", "revision", "command"]
    assert found["experiment"] == "epoch"
    assert found["machine"]["cores"] >= 1
