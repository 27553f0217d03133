"""How the classifier of a repair is served: its code, its weights and its inputs, as run.json records them.

Torch is imported only if there is a network.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from equipoise.case.schema import IMAGES_FORMAT, OWN_NETWORK, PREDICTOR_SCORE, Inputs, SavedClasses, SavedCode, SavedEncoder, SavedModel
from equipoise.data import Rows, Scores, Table
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.models import Checkpoint, ChosenOutputs, Code

ROWS_CHECKED = 64  # of the test set, to compare ONNX with torch


@dataclass(frozen=True, eq=False)
class Serving:
    """How new patients are served in the same way: what run.json records of the classifier and its inputs, and what its files need."""

    inputs: Inputs
    model: SavedModel | None = None  # None: a rule without a network
    sample: "Tensor | None" = None  # a few real rows, to check the ONNX file with
    checkpoint: "Checkpoint | None" = None  # the original weights' file


def saved_model(load: str | None, output: str, *, code: "Code | None" = None, **more: Any) -> SavedModel:
    """How to build a network again from an argument of `load_model`; None: the network is given when the bundle is loaded."""
    from equipoise.models import code_of

    load = None if load is None else absolute_model_name(load)
    if code is None and load not in (None, OWN_NETWORK):
        with suppress(BadInput):  # not found from this folder: `apply` will require --model
            code = code_of(str(load))
    found = None if code is None else SavedCode(path=None if code.path is None else str(code.path), sha256=code.sha256)
    return SavedModel(load=load, output=output, code=found, **more)


def serving_of(model: object, rows: Rows) -> Serving:
    """How a classifier in this process is served; of networks, those of Equipoise are built again, others are given to `Bundle.load`.

    `rows` are its inputs; of a classifier that is not a network, its scores.
    """
    if isinstance(rows, Scores):
        return Serving(inputs_of(rows, **({} if model is None else {"score": PREDICTOR_SCORE})))
    from equipoise.models import MLP, onnx_in, output_kind

    name, network = OWN_NETWORK if type(model) is MLP else None, cast(Any, model)
    if (graph := onnx_in(network)) is not None and graph.content:
        name = f"{absolute_model_name(graph.source)}:{graph.which}"
    return Serving(inputs_of(rows), saved_model(name, output_kind(network, rows.inputs)), rows.inputs[:ROWS_CHECKED])


def original_weights(network: Any, weights: Path | None) -> "tuple[Checkpoint | None, list[str]]":
    """The original weights as in their file, and a note if the repaired weights cannot be written in the same format."""
    from equipoise.models import Checkpoint, HuggingFaceNetwork, OneOutput, read_checkpoint, state_like, weights_of

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


def saved_models(
    chosen: "ChosenOutputs | None", labels: Sequence[str], load: str, code: "Code | None", output: str, output_name: str | None
) -> dict[str, SavedModel]:
    """How the network of each label is built: with its output of the network; of the only label, with this output."""
    if chosen is None:
        return {labels[0]: saved_model(load, output, code=code, output_name=output_name)}
    if chosen.kind.argmax:  # the score of a class is the margin of its logit over the others
        classes = SavedClasses(names=list(labels), columns=list(chosen.columns), output=chosen.output)
        return {label: saved_model(load, "logit", code=code, classes=classes) for label in labels}
    names = {label: None if chosen.flat else str(column) for label, column in zip(labels, chosen.columns, strict=True)}
    return {label: saved_model(load, chosen.output, code=code, output_name=name) for label, name in names.items()}


def inputs_of(rows: Rows, **names: Any) -> Inputs:
    """How new rows are prepared like these.

    `names` are entries that the rows do not hold: patient, id, image_column, view_column and conflicts; of scores, score and logits.
    """
    known: dict[str, Any] = {"bins": {a.name: a.bins for a in rows.attributes if a.bins is not None}} | names
    if isinstance(rows, Scores):
        features = None if rows.features is None else [str(c) for c in rows.features.frame.columns]
        return Inputs(**{"features": features, "score": "score"} | known)
    if (preprocessing := rows.source.to_dict()) is not None:
        return Inputs(**known, images=IMAGES_FORMAT.validate_json(json.dumps(preprocessing)))
    if not isinstance(rows.source, Table):
        return Inputs(**known, width=int(rows.inputs.shape[-1]))
    encoder, features = rows.source.fitted(), [str(column) for column in rows.source.frame.columns]
    encoded = SavedEncoder(numeric=dict(encoder.numeric), levels=dict(encoder.levels)) if rows.source.scale or encoder.levels else None
    return Inputs(**known, features=features, encoder=encoded)


def absolute_model_name(model: str) -> str:
    """The model's name with an absolute path, so that it can be found from any folder.

    >>> absolute_model_name("/nets/my_model.py:build"), absolute_model_name("resnet-18")
    ('/nets/my_model.py:build', 'resnet-18')
    """
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith((".py", ".onnx")) or "/" in place):
        return f"{Path(place).absolute()}{colon}{name}".removesuffix(":")
    from equipoise.models import is_folder

    return str(Path(model).absolute()) if model.endswith((".pt2", ".onnx")) or is_folder(model) else model
