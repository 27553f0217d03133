"""The provenance of a repair (command, versions, checksums), and how its network is served: code, weights and inputs."""

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
from equipoise.data import Cohort, Images, Rows, Scores, Table, sha256, sha256_of, without_folders
from equipoise.errors import BadInput
from equipoise.models import (
    MLP,
    Checkpoint,
    Code,
    HuggingFaceNetwork,
    OneOutput,
    chosen_outputs,
    is_folder,
    onnx_file_and_output,
    onnx_in,
    output_kind,
    read_checkpoint,
    state_like,
    weights_of,
)
from equipoise.repair.saved_predictor import PREDICTOR_SCORE

ROWS_CHECKED = 64  # of the test set, to compare ONNX with torch
OWN_NETWORK = "mlp"  # the network that `train` builds for tables, which is Equipoise's own code


@dataclass(frozen=True)
class Provenance:
    """The information needed to reproduce a repair."""

    command: str = ""
    model: str = ""  # as the user named it
    seed: int = 0
    when: str = ""  # ISO date and time
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)  # file: sha256
    limits: Sequence[str] = ()  # caveats for the reader, such as rows left out

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
        """The provenance of the current run: its command line without folders, versions, and checksums of its files and images."""
        code = model.rpartition(":")[0]
        code_files = [Path(code)] if code.endswith(".py") else [Path(model)] if model.endswith(".pt2") else []
        hashes = {path.name: sha256_of(path) for path in (*files, *code_files)}
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
    """How new patients are served in the same way: the network's code, weights and inputs."""

    model: str | None  # an argument of `load_model`, with an absolute path; None: only known in this process
    output: str  # logit or probability
    sample: Tensor | None  # a few real rows, to check the ONNX file with; None for a rule without a network
    inputs: Mapping[str, Any] = field(default_factory=dict)  # columns or preprocessing as plain values, see `inputs_of`
    output_name: str | None = None  # for a network with several outputs
    checkpoint: Checkpoint | None = None  # the original weights' file
    code: Code | None = None  # that was run to build the network; None for a network of Equipoise
    classes: Mapping[str, Any] | None = None  # for a network that decides between classes: their names, columns and type of output


def serving_of(model: object, rows: Rows) -> Serving:
    """How a classifier in this process is served; of networks, those of Equipoise are built again, others are given to `Bundle.load`.

    `rows` are its inputs; of a classifier that is not a network, its scores.
    """
    if not isinstance(model, nn.Module) or isinstance(rows, Scores):
        return Serving(None, "probability", None, inputs_of(rows, **({} if model is None else {"score": PREDICTOR_SCORE})))
    name = OWN_NETWORK if type(model) is MLP else None
    if (graph := onnx_in(model)) is not None and graph.content:
        name = f"{absolute_model_name(graph.source)}:{graph.which}"
    return Serving(name, output_kind(model, rows.inputs), rows.inputs[:ROWS_CHECKED], inputs_of(rows))


def original_weights(network: nn.Module, weights: Path | None) -> tuple[Checkpoint | None, list[str]]:
    """The original weights as in their file, and a note if the repaired weights cannot be written in the same format."""
    if weights is None:
        while isinstance(network, (OneOutput, HuggingFaceNetwork)):
            network = network.inner
        return Checkpoint(weights_of(network)), []
    checkpoint = read_checkpoint(weights)
    try:
        state_like(checkpoint.state, network)
    except BadInput as error:
        return None, [f"the weights are written under the network's own keys, not under those of the original file: {error.problems[0]}"]
    return checkpoint, []


def serving_by_label(
    network: nn.Module, cohort: Cohort, label: str, outputs: Mapping[str, int | str], served: Serving
) -> dict[str, Serving]:
    """How each label is served: one label as `served`, several labels with the output of the network for each."""
    if not cohort.labels:
        return {label: served}
    chosen = chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    if cohort.kind == "classes":  # the score of a class is the margin of its logit over the others
        classes = {"names": list(cohort.labels), "columns": list(chosen.columns), "output": chosen.output}
        return {name: replace(served, output="logit", classes=classes) for name in cohort.labels}
    outputs_by_label = zip(cohort.labels, chosen.columns, strict=True)
    return {
        name: replace(served, output=chosen.output, output_name=None if chosen.flat else str(column)) for name, column in outputs_by_label
    }


def inputs_of(rows: Rows, **names: Any) -> dict[str, object]:
    """The entry `inputs` of run.json, from which new rows are prepared: columns and their encoding, or the preprocessing of images.

    `names` are entries that the rows do not hold: patient, id, image_column, view_column and conflicts; of scores, score and logits.
    """
    bins = {a.name: a.bins.to_dict() for a in rows.attributes if a.bins is not None}
    inputs: dict[str, object] = {"patient": None, "id": None, "bins": bins, "conflicts": "row", "images": None}
    if isinstance(rows, Scores):
        features = None if rows.features is None else [str(c) for c in rows.features.frame.columns]
        return inputs | {"features": features, "score": "score", "logits": False} | names
    inputs = {key: value for key, value in inputs.items() if key != "images"} | names | {"images": None}
    if (preprocessing := rows.source.to_dict()) is not None:
        return inputs | {"images": preprocessing}
    if not isinstance(rows.source, Table):
        return inputs | {"width": int(rows.inputs.shape[-1])}
    encoder = rows.source.fitted()
    inputs["features"] = [str(column) for column in rows.source.frame.columns]
    if rows.source.scale or encoder.levels:
        inputs["encoder"] = {
            "numeric": {column: list(scaling) for column, scaling in encoder.numeric.items()},
            "levels": {column: list(levels) for column, levels in encoder.levels.items()},
        }
    return inputs


def versions() -> dict[str, str]:
    """The versions of Equipoise and of the libraries that influence its results."""
    return {
        "equipoise": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": pd.__version__,
        "python": platform.python_version(),
    }


def absolute_model_name(model: str) -> str:
    """The model's name with an absolute path, so that it can be found from any folder."""
    if (graph := onnx_file_and_output(model)) is not None:
        return str(Path(graph[0]).absolute()) + (f":{graph[1]}" if graph[1] else "")
    if is_folder(model):
        return str(Path(model).absolute())
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith(".py") or "/" in place):
        return f"{Path(place).absolute()}:{name}"
    return str(Path(model).absolute()) if model.endswith(".pt2") else model
