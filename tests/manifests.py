"""The files of examples/cluster as tests read them: checked by schemas, and what their containers start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raylets import BESIDE
from support import REPOSITORY

CLUSTER = REPOSITORY / "examples" / "cluster"
MANIFESTS = ("jobset.yaml", "trainjob.yaml", "rayjob.yaml", "ray-machines.yaml")

BESIDE_KUBERNETES = Path(sys.prefix) / "beside-kubernetes"  # where scripts/setup.sh installs them

_CLASSES = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "TrainJob": "TrainerV1alpha1TrainJob",
}
_POD = "IoK8sApiCoreV1PodTemplateSpec"


class _Fields(NamedTuple):
    """What an object of KubeRay must and may have: of a field the type, the name of another, or a class above."""

    required: dict[str, Any]
    optional: dict[str, Any]


# No package has the schema of KubeRay. These are the fields of ray-operator/apis/ray/v1 (1.2 and later) that manifests
# here may need; pods are checked by the classes of Kubernetes.
_RAY = {
    "RayJob": _Fields({"apiVersion": str, "kind": str, "metadata": dict, "spec": "RayJobSpec"}, {}),
    "RayJobSpec": _Fields(
        {"entrypoint": str, "rayClusterSpec": "RayClusterSpec"},
        {
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "runtimeEnvYAML": str,
            "shutdownAfterJobFinishes": bool,
            "submissionMode": str,
            "submitterPodTemplate": _POD,
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
        },
    ),
    "RayClusterSpec": _Fields(
        {"headGroupSpec": "HeadGroupSpec"},
        {"enableInTreeAutoscaling": bool, "rayVersion": str, "workerGroupSpecs": ["WorkerGroupSpec"]},
    ),
    "HeadGroupSpec": _Fields({"rayStartParams": dict, "template": _POD}, {"serviceType": str}),
    "WorkerGroupSpec": _Fields(
        {"groupName": str, "maxReplicas": int, "minReplicas": int, "rayStartParams": dict, "template": _POD},
        {"numOfHosts": int, "replicas": int},
    ),
}


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def check(document: Any) -> None:
    """Checks a document by the schema of its kind.

    Raises:
        ValueError: It lacks something, has a value of another type, or something that the schema does not know.
    """
    kind = document.get("kind")
    if kind in _CLASSES:
        _check_class(_CLASSES[kind], document, kind)
    elif kind == "RayJob":
        _check_ray(kind, document, kind)
    else:
        _check_machines(document)


def _check_class(name: str, document: Any, where: str) -> None:
    """A class keeps what it knows: what is the same after it is known."""
    if not BESIDE_KUBERNETES.is_dir():
        pytest.skip("no classes of Kubernetes: scripts/setup.sh test installs them")
    if str(BESIDE_KUBERNETES) not in sys.path:
        sys.path.append(str(BESIDE_KUBERNETES))
    from kubeflow_trainer_api import models  # pyright: ignore[reportMissingImports]

    kept = getattr(models, name).from_dict(document).to_dict()
    if kept != document:
        raise ValueError(f"{where} has what {name} does not know: {document}, of which {kept} is known")


def _check_ray(name: Any, found: Any, where: str) -> None:
    if isinstance(name, list):
        if not isinstance(found, list):
            raise ValueError(f"{where} is no list")
        for number, one in enumerate(found):
            _check_ray(name[0], one, f"{where}[{number}]")
    elif name == _POD:
        _check_class(_POD, found, where)
    elif isinstance(name, str):
        required, optional = _RAY[name]
        missing, unknown = required.keys() - found.keys(), found.keys() - required.keys() - optional.keys()
        if missing or unknown:
            raise ValueError(f"{where} lacks {sorted(missing)}, and does not know {sorted(unknown)}")
        for key, value in found.items():
            _check_ray({**required, **optional}[key], value, f"{where}.{key}")
    elif not isinstance(found, name) or (name is int and isinstance(found, bool)):
        raise ValueError(f"{where} is {found!r}, no {name.__name__}")


_MACHINES = """
import json, os, sys
import jsonschema, ray
from ray.autoscaler._private.util import prepare_config, validate_config

found = json.load(sys.stdin)
with open(os.path.join(os.path.dirname(ray.__file__), "autoscaler", "ray-schema.json")) as schema:
    jsonschema.validate(found, json.load(schema))
validate_config(prepare_config(found))
"""


def _check_machines(document: Any) -> None:
    """``ray up`` has a schema in the package of Ray."""
    if not BESIDE.is_dir():
        pytest.skip("no Ray: scripts/setup.sh test installs it")
    done = subprocess.run(
        [sys.executable, "-c", _MACHINES],
        input=json.dumps(document),
        env={**os.environ, "PYTHONPATH": str(BESIDE), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise ValueError(done.stderr)


class Container(NamedTuple):
    """What a pod starts: its name, its words, its variables, and the memory that it may take."""

    name: str
    words: list[str]
    env: dict[str, str]
    memory: str


def containers(document: Any) -> Iterator[Container]:
    """All containers of a document, in its order; those that a TrainJob overrides have no words."""
    found = [document]
    while found:
        one = found.pop()
        for key in ("initContainers", "containers"):
            for spec in one.get(key, ()):
                yield Container(
                    spec["name"],
                    [*spec.get("command", ()), *spec.get("args", ())],
                    {entry["name"]: entry["value"] for entry in spec.get("env", ())},
                    spec.get("resources", {}).get("limits", {}).get("memory", ""),
                )
        values = [value for value in one.values() if not isinstance(value, str | int | bool)]
        for value in reversed(values):
            found += (
                reversed([v for v in value if isinstance(v, dict)]) if isinstance(value, list) else [value]
            )
