"""Classifiers: whatever gives rows a score. A network, a file that holds one, a fitted estimator, or a function.

`classifier` takes in a user's object or file once: a network becomes a torch.nn.Module, which offers layers and gradients too
(`is_network`), and everything else a `Predictor`. `predict` gives the scores of either; scores by themselves pass through it unchanged.
Torch is imported only if there is a network.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data import Cohort, Rows, Scores
from equipoise.errors import BadInput
from equipoise.models.predictors import Predictor, can_predict, is_estimator_file, is_network, load_predictor, made_by, predictor

if TYPE_CHECKING:
    from torch import Tensor, nn

NETWORKS = (("torch", "Module"), ("torch", "ExportedProgram"), ("onnxruntime", "InferenceSession"))  # package and class


def classifier(subject: object) -> "nn.Module | Predictor | None":
    """The network or predictor that an object is, or that a file holds; None for anything that cannot classify rows.

    Files are exported programs (.pt2), ONNX files (.onnx), estimators (.skops) and folders of transformers.
    """
    if isinstance(subject, (str, Path)) and is_estimator_file(subject):
        return load_predictor(subject)
    if isinstance(subject, (str, Path)) or any(made_by(subject, *kind) for kind in NETWORKS):
        from equipoise.models.loading import taken_in

        return taken_in(subject)
    return predictor(subject) if isinstance(subject, Predictor) or can_predict(subject) else None


def predict(model: "nn.Module | Predictor | None", cohort: Rows, *, output: str = "auto", raw: "Tensor | None" = None) -> Scores:
    """The cohort's scores by a classifier of one label; `Scores` are returned unchanged.

    `output` says whether a network or function returns logits or probabilities. `raw` are a network's outputs for these rows if they are
    known already, so that it does not run again.
    """
    if isinstance(cohort, Scores):
        return cohort
    if model is None:
        raise BadInput(f"a rule without a network decides from scores; {cohort.name!r} is a cohort. Give eq.Scores.of(cohort, score).")
    if isinstance(model, Predictor):
        return model.predict(cohort, output)
    from equipoise.models.score import network_scores

    return network_scores(model, cohort, output, raw)


def scores_by_label(
    model: Any, cohort: Cohort, labels: Sequence[str], output: str = "auto", outputs: Mapping[str, int | str] | None = None
) -> dict[str, Scores]:
    """The scores of each label, from one pass of a network over the rows, or of any classifier for the only label.

    `outputs` maps several labels to the network's outputs, if names or numbers do not show it.
    """
    if len(labels) == 1 or not is_network(model):  # which raises an error for several labels
        return {labels[0]: predict(model, cohort, output=output)}
    from equipoise.models.many_outputs import chosen_outputs, scores_of
    from equipoise.models.score import set_output

    set_output(model, output)
    return scores_of(chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs).views(cohort.labels), cohort)
