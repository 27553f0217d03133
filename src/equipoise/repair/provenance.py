"""Where a repair comes from and how it is used again: command, versions, checksums; the network, its weights and its inputs."""

import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from equipoise import __version__
from equipoise.data import Cohort, Images, Scores, Table, sha256, sha256_of, without_folders
from equipoise.errors import BadInput
from equipoise.models import (
    MLP,
    Checkpoint,
    Code,
    HuggingFaceNetwork,
    OneOutput,
    chosen_outputs,
    is_folder,
    onnx_in,
    output_kind,
    place_of,
    read_checkpoint,
    state_like,
    weights_of,
)

ROWS_CHECKED = 64  # of the test set, to compare ONNX with torch
OWN_NETWORK = "mlp"  # the network that `train` builds for tables, which is Equipoise's own code


@dataclass(frozen=True)
class Provenance:
    """What is needed to reproduce a repair."""

    command: str = ""
    model: str = ""  # as the user named it
    seed: int = 0
    when: str = ""  # ISO date and time
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)  # file: sha256
    limits: Sequence[str] = ()  # what the reader must know, such as rows left out

    @classmethod
    def now(
        cls,
        *,
        arguments: Sequence[str] = (),
        model: str = "",
        seed: int = 0,
        files: Iterable[Path] = (),
        cohort: Cohort | None = None,
        limits: Sequence[str] = (),
    ) -> "Provenance":
        """The provenance of a run that happens now: its command line without folders, versions, and checksums of its files and images."""
        code = model.rpartition(":")[0]
        own = [Path(code)] if code.endswith(".py") else [Path(model)] if model.endswith(".pt2") else []
        hashes = {path.name: sha256_of(path) for path in (*files, *own)}
        if cohort is not None and isinstance(cohort.source, Images):
            hashes["list of images"] = sha256("\n".join(map(str, cohort.ids)).encode())
            if (transform := cohort.source.transform) is not None and transform.path is not None:
                hashes[transform.path.name] = transform.sha256
        return cls(
            command=shlex.join(map(without_folders, arguments)),
            model=without_folders(model),
            seed=seed,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=versions(),
            hashes=hashes,
            limits=tuple(limits),
        )


@dataclass(frozen=True, eq=False)
class Serving:
    """What is known of the network and its inputs beyond the comparison, so that new patients can be served the same way."""

    model: str | None  # as `load_model` takes it, with an absolute path; None: only known in this process
    output: str  # logit or probability
    sample: Tensor | None  # a few real rows, to check the ONNX file with; None of a rule without a network
    inputs: Mapping[str, Any] = field(default_factory=dict)  # how rows become inputs: plain values
    output_name: str | None = None  # of a network with several outputs
    came: Checkpoint | None = None  # the original weights' file
    code: Code | None = None  # that was run to build the network; None for a network of Equipoise
    classes: Mapping[str, Any] | None = None  # of a network whose outputs are classes: their names, columns and type of output


def serving_of(network: nn.Module, cohort: Cohort) -> Serving:
    """How a network in this process is served: one of Equipoise's own can be built again, any other must be given when it is loaded."""
    own = OWN_NETWORK if type(network) is MLP else None
    if (graph := onnx_in(network)) is not None and graph.content:
        own = f"{findable(graph.source)}:{graph.which}"
    return Serving(own, output_kind(network, cohort.inputs), cohort.inputs[:ROWS_CHECKED], inputs_of(cohort))


def rule_serving(
    scores: Scores, *, score: str = "score", patient: str | None = None, id: str | None = None, conflicts: str = "row", logits: bool = False
) -> Serving:
    """How a rule for these scores is served: the columns in which new scores, their patients and their groups will come."""
    bins = {a.name: a.bins.to_dict() for a in scores.attributes if a.bins is not None}
    features = None if scores.features is None else [str(c) for c in scores.features.frame.columns]
    names = {"patient": patient, "id": id, "bins": bins, "conflicts": conflicts, "images": None, "features": features}
    return Serving(None, "probability", None, {**names, "score": score, "logits": logits})


def original_weights(network: nn.Module, weights: Path | None) -> tuple[Checkpoint | None, list[str]]:
    """The original weights as they lie in their file, and a note if the repaired ones cannot be written in the same way."""
    if weights is None:
        while isinstance(network, (OneOutput, HuggingFaceNetwork)):
            network = network.inner
        return Checkpoint(weights_of(network)), []
    came = read_checkpoint(weights)
    try:
        state_like(came.state, network)
    except BadInput as error:
        return None, [f"the weights are written under the network's own keys, not under those of the original file: {error.problems[0]}"]
    return came, []


def servings(network: nn.Module, cohort: Cohort, label: str, outputs: Mapping[str, int | str], served: Serving) -> dict[str, Serving]:
    """How each label is served: one label as given, several with the output of the network that belongs to each."""
    if not cohort.labels:
        return {label: served}
    chosen = chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    if cohort.kind == "classes":  # each is served as the margin of its logit over the others
        classes = {"names": list(cohort.labels), "columns": list(chosen.columns), "output": chosen.output}
        return {each: replace(served, output="logit", classes=classes) for each in cohort.labels}
    names = [None if chosen.flat else str(column) for column in chosen.columns]
    return {each: replace(served, output=chosen.output, output_name=name) for each, name in zip(cohort.labels, names, strict=True)}


def inputs_of(cohort: Cohort, **names: Any) -> dict[str, object]:
    """How new rows become inputs, as plain values: columns and their encoding, or the size and normalisation of images.

    `names` are the columns that a cohort does not know: patient, id, image_column, view_column and conflicts.
    """
    bins = {a.name: a.bins.to_dict() for a in cohort.attributes if a.bins is not None}
    told: dict[str, object] = {"patient": None, "id": None, "bins": bins, "conflicts": "row", **names}
    if isinstance(cohort.source, Images) and (how := cohort.source.to_dict()) is not None:
        return {**told, "images": how}
    if not isinstance(cohort.source, Table):
        return {**told, "images": None, "width": int(cohort.inputs.shape[-1])}
    encoder = cohort.source.fitted()
    features = [str(c) for c in cohort.source.frame.columns]
    if cohort.source.scale or encoder.levels:
        return {
            **told,
            "images": None,
            "features": features,
            "encoder": {
                "numeric": {k: list(v) for k, v in encoder.numeric.items()},
                "levels": {k: list(v) for k, v in encoder.levels.items()},
            },
        }
    return {**told, "images": None, "features": features}


def versions() -> dict[str, str]:
    """The versions of Equipoise and of the libraries whose results it depends on."""
    return {
        "equipoise": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "python": platform.python_version(),
    }


def findable(model: str) -> str:
    """The model's name with an absolute path, to be found from any folder."""
    if (graph := place_of(model)) is not None:
        return str(Path(graph[0]).absolute()) + (f":{graph[1]}" if graph[1] else "")
    if is_folder(model):
        return str(Path(model).absolute())
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith(".py") or "/" in place):
        return f"{Path(place).absolute()}:{name}"
    return str(Path(model).absolute()) if model.endswith(".pt2") else model
