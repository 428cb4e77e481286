"""Budgets that embeddings are refused: what the messages name leads to one that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import outcrop as oc
from embed_support import buckets_of, knowledge_graph, random_triples
from outcrop.runtime.runtime import Runtime

CONFIG = oc.EmbedConfig("dot", dim=64, epochs=1, batch=64)


def prepare(folder: Path, memory: int) -> None:
    oc.embed_prepare(folder / "kg", folder / "new", partitions=8, memory=memory)


def export(folder: Path, memory: int) -> None:
    oc.embed_train(folder / "run", CONFIG)
    oc.embed_export(folder / "run", memory=memory)


def refusal(call: Callable[[Path, int], None], folder: Path, memory: int) -> str:
    """The message of a refused budget; empty where it was not refused."""
    try:
        call(folder, memory)
    except oc.BudgetError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("call", "steps"), [(prepare, ["sorting"]), (export, [])])
def test_a_refused_budget_leads_to_one_that_works(
    tmp_path: Path, make_runtime: Callable[..., Runtime], call: Callable[[Path, int], None], steps: list[str]
) -> None:
    """What is named is always more than what was refused, and enough for the step that was."""
    source = knowledge_graph(tmp_path, make_runtime(), train=random_triples(500, 4, 9_000))
    buckets_of(source, tmp_path / "run", make_runtime(), 8)
    budgets, messages = [1], []
    while message := refusal(call, tmp_path, budgets[-1]):
        named = re.search(r"at least (\d+) bytes", message)
        assert named, message
        assert int(named[1]) > budgets[-1], message
        budgets.append(int(named[1]))
        messages.append(message)
    assert 1 < len(budgets) < 40
    assert [step for step in steps if not any(step in message for message in messages)] == []
