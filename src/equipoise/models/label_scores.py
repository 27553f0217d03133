"""The scores of a network or estimator on a cohort, by label, and the kind of its output: a logit or a probability."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from equipoise.data import Cohort, Images, Scores
from equipoise.errors import BadInput
from equipoise.models.many_outputs import chosen_outputs, scores_of
from equipoise.models.score import output_kind, predict
from equipoise.models.vision import shape_advice


def set_output(model: nn.Module, asked: str) -> None:
    """Marks the network's output as a logit or a probability, so that every method reads it the same way; `auto` changes nothing."""
    if asked == "auto":
        return
    if not isinstance(getattr(model, "output", ""), str):
        raise BadInput(f"the network cannot be marked as returning a {asked}: its attribute `output` is something else. Wrap it.")
    model.output = asked  # type: ignore[assignment]


def resolve_output(model: nn.Module, inputs: Any, asked: str = "auto") -> str:
    """The type of the network's output, logit or probability: auto-detected, or as requested, and then marked on the network."""
    detected = output_kind(model, inputs)
    if asked in ("auto", detected):
        return detected
    set_output(model, asked)
    return output_kind(model, inputs, asked)


def scores_by_label(
    model: Any, cohort: Cohort, labels: Sequence[str], output: str = "auto", outputs: Mapping[str, int | str] | None = None
) -> dict[str, Scores]:
    """The scores of each label, from one pass of a network over the rows, or of an estimator for the only label.

    `outputs` maps several labels to the network's outputs, if names or numbers do not show it.
    """
    if len(labels) == 1 or not isinstance(model, nn.Module):  # which raises an error for several labels
        return {labels[0]: _predict_with_advice(model, cohort, output)}
    set_output(model, output)
    chosen = chosen_outputs(model, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return scores_of({name: chosen.view(position) for position, name in enumerate(cohort.labels)}, cohort)


def _predict_with_advice(model: Any, cohort: Cohort, output: str) -> Scores:
    """The scores for one label. If a network cannot take the images, the error lists shapes that it can take."""
    try:
        return predict(model, cohort, output=output)
    except BadInput as error:
        source = cohort.source
        if not isinstance(source, Images):
            raise
        advice = shape_advice(model, cohort.inputs.shape[1:])
        if source.transform is not None:
            advice = f"The transform {source.transform.named} returns shape {tuple(source.shape[1:])}. Correct it, or images.channels."
        if not advice:
            raise
        raise BadInput(" ".join((*error.problems, advice))) from error
