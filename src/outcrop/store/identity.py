"""Decides whether a training may go on: what must be equal is plain values, compared field by field.

Inputs of a training are kept in its checkpoints as JSON: ``graph``, the digest of the graph; ``sampling``, the fields
of :class:`SampleConfig` that decide which batches there are; in mode ``partition`` also ``partitions``. A field that is
missing has its default, so options that came later leave older checkpoints as they were.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outcrop.config import ModelConfig, SampleConfig, TrainConfig
from outcrop.config.sampling import LATER
from outcrop.errors import FormatError
from outcrop.store.manifest import plain

# All that decides batches, and what `degrees` adds to them, as stored: `dependency` is the field batch_dependency.
# Other fields of SampleConfig may differ.
_SAMPLING = (
    "fanouts",
    "batch_size",
    "epochs",
    "replace",
    "seed",
    "sampler",
    "splits",
    "degrees",
    "task",
    "negatives",
    "filter_negatives",
    "first_epoch",
    "dependency",
)
# What a training may change when it goes on.
_FREE_OF_TRAINING = ("epochs", "device", "trace_losses", "evaluate_every", "patience", "test")
_REFRESHED = " refreshed"


def sampling_fields(config: SampleConfig, *, fresh: bool = False) -> dict[str, Any]:
    """Returns the fields of ``config`` that decide batches, as JSON has them.

    Args:
        fresh: Every epoch has batches of its own, however many are drawn at a time: ``epochs`` is then None.
    """
    stored = config.as_stored()
    fields = plain({name: stored[name] for name in (*_SAMPLING, *LATER) if name in stored})
    return fields | {"epochs": None} if fresh else fields


def training_fields(model: ModelConfig, training: TrainConfig) -> dict[str, Any]:
    """Returns the fields of ``model`` and ``training`` that decide what is learned, as checkpoints have them."""
    learned = {name: value for name, value in asdict(training).items() if name not in _FREE_OF_TRAINING}
    return model_fields(model) | learned | {"accumulate": training.step_batches}


def model_fields(model: ModelConfig) -> dict[str, Any]:
    """Returns the fields of ``model`` as checkpoints and histories have them: its name is ``model``."""
    fields = asdict(model)
    del fields["no_rows"]  # the schema of the graph says it
    if not fields["edge_weights"]:  # as it was before models took them
        del fields["edge_weights"]
    return {"model": fields.pop("name"), **fields}


def differences(
    have: Mapping[str, Any], wanted: Mapping[str, Any], epochs_begun: int, defaults: Mapping[str, Any]
) -> list[str]:
    """Names what differs between two identities, each with both values: empty where a training may go on.

    Args:
        have, wanted: Name -> value, or a dict of fields: what the checkpoint says, and what is asked for.
        epochs_begun: Epochs that the checkpoint has trained on, or begun. That many different epochs of batches are as
            good as more: those that were used are the same.
        defaults: Values of fields that ``have`` or ``wanted`` lacks.
    """
    there, now = _flat(have, epochs_begun, defaults), _flat(wanted, epochs_begun, defaults)
    return [
        f"{name} (there {there.get(name)!r}, now {now.get(name)!r})"
        for name in sorted(there.keys() | now.keys())
        if there.get(name) != now.get(name)
    ]


def _flat(fields: Mapping[str, Any], epochs_begun: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Makes nested fields one level, with defaults: ``{"sampling": {"seed": 1}}`` -> ``{"sampling seed": 1, ...}``."""
    flat = {}
    for name, value in {**defaults, **plain(dict(fields))}.items():
        if name == "sampling" and isinstance(value, Mapping):
            every = {**sampling_fields(SampleConfig()), **value}
            drawn = every["epochs"]  # None: new batches in every epoch
            value = every | {"epochs": epochs_begun if drawn is None else min(drawn, epochs_begun)}
        if isinstance(value, Mapping):
            flat.update({f"{name} {field}": inner for field, inner in value.items()})
        else:
            flat[name] = value
    return flat


def inputs_of_version_1(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the inputs of a checkpoint of version 1, which held the text of a ``SampleConfig``, to plain values.

    Raises:
        FormatError: The text is none that version 1 wrote.
    """
    converted = dict(inputs)
    try:
        if (text := inputs.get("sampling")) is not None:
            config = SampleConfig.from_stored(_keywords(text.removesuffix(_REFRESHED)))
            converted["sampling"] = sampling_fields(config, fresh=text.endswith(_REFRESHED))
        if (text := inputs.get("partitions")) is not None:
            partitions, resident = text.split(", resident ")
            converted["partitions"] = {
                "partitions": ast.literal_eval(partitions),
                "resident": ast.literal_eval(resident),
            }
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"the inputs of the training cannot be read ({error})") from None
    return converted


def _keywords(text: str) -> dict[str, Any]:
    """Returns the arguments in ``Name(field=literal, ...)``; nothing is called."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError(f"{text!r} is no SampleConfig")
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
