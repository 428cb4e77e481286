"""Every option: frozen dataclasses with units and defaults, checked when they are made. One file a subject.

``from outcrop.config import X`` has them all; the files follow each other as a run does: sizes, io, graphs, sampling,
epochs, limits, packing, loading, models, training, embedding; cluster (asked about, not used).
"""

from __future__ import annotations

from outcrop.config.cluster import ClusterConfig
from outcrop.config.embedding import BucketConfig, EmbedConfig, SwapConfig
from outcrop.config.epochs import Refresh, Replay
from outcrop.config.graphs import LABEL_KINDS, GenerateConfig, ImportConfig, LabelKind, SplitProtocol
from outcrop.config.io import IoConfig
from outcrop.config.limits import ALLOWANCE_BYTES, Limits, PlanConfig, with_memory
from outcrop.config.loading import (
    CACHE_POLICIES,
    CACHE_STRATEGIES,
    CPU,
    ROW_READS,
    TOPOLOGIES,
    DeviceConfig,
    TopologyChoice,
    check_row_reads,
    check_topology,
)
from outcrop.config.models import HEADS, MODELS, ModelConfig, hidden_width
from outcrop.config.packing import PackConfig
from outcrop.config.sampling import SAMPLERS, InferSampling, SampleConfig, as_fanouts, check_epochs_unset
from outcrop.config.sizes import (
    LARGEST_COUNT,
    Size,
    exact_bytes,
    format_bytes,
    format_use,
    least_bytes,
    out_of_range,
    parse_size,
)
from outcrop.config.training import PRECISIONS, SCHEDULES, Checkpoints, TrainConfig, with_epochs

__all__ = [
    "ALLOWANCE_BYTES",
    "CACHE_POLICIES",
    "CACHE_STRATEGIES",
    "CPU",
    "HEADS",
    "LABEL_KINDS",
    "LARGEST_COUNT",
    "MODELS",
    "PRECISIONS",
    "ROW_READS",
    "SAMPLERS",
    "SCHEDULES",
    "TOPOLOGIES",
    "BucketConfig",
    "Checkpoints",
    "ClusterConfig",
    "DeviceConfig",
    "EmbedConfig",
    "GenerateConfig",
    "ImportConfig",
    "InferSampling",
    "IoConfig",
    "LabelKind",
    "Limits",
    "ModelConfig",
    "PackConfig",
    "PlanConfig",
    "Refresh",
    "Replay",
    "SampleConfig",
    "Size",
    "SplitProtocol",
    "SwapConfig",
    "TopologyChoice",
    "TrainConfig",
    "as_fanouts",
    "check_epochs_unset",
    "check_row_reads",
    "check_topology",
    "exact_bytes",
    "format_bytes",
    "format_use",
    "hidden_width",
    "least_bytes",
    "out_of_range",
    "parse_size",
    "with_epochs",
    "with_memory",
]
