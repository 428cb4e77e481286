"""Which models there are, and how large they are unless somebody says."""

from __future__ import annotations

from pathlib import Path

import pytest

import outcrop as oc
from outcrop.config.models import MODELS, TYPED_MODELS, hidden_width
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime
from run_support import a_graph


def test_models_with_heads_are_as_wide_as_their_heads():
    for model in ("gat", "transformer", "rgat", "hgt", "rtransformer"):
        assert [hidden_width(model), hidden_width(model, heads=2), hidden_width(model, 48)] == [128, 64, 48]
        with pytest.raises(ArgumentError, match="hidden 30 is no multiple of heads 4"):
            oc.ModelConfig(model, hidden=30)
    for model in {*MODELS, *TYPED_MODELS} - {"gat", "rgat", "hgt", "rtransformer"}:
        assert hidden_width(model, heads=2) == 256
        assert oc.ModelConfig(model, hidden=30).hidden == 30


def test_an_unknown_model_is_refused_with_those_there_are():
    known = (
        "known: sage, gat, gcn, transformer, gine; of graphs with node and edge types: rgcn, rsage, rgat, hgt"
    )
    with pytest.raises(ArgumentError, match=f"model 'gin' is unknown; {known}"):
        oc.ModelConfig("gin")


@pytest.mark.parametrize("model", TYPED_MODELS)
def test_models_of_graphs_with_types_are_refused_before_anything_is_done(
    tmp_path: Path, runtime: Runtime, model: str
):
    a_graph(tmp_path / "graph", runtime, nodes=60)
    why = f"no types of nodes or edges: for model '{model}' choose sage, gat, gcn, transformer, gine"
    for front_door in (oc.train, oc.advise):
        with pytest.raises(ArgumentError, match=why):
            front_door(tmp_path / "graph", model=model, memory="64MiB")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
