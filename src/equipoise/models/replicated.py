"""Networks made ready for repair: checked, copied, and put behind one face."""

from collections.abc import Sequence

import torch
from torch import nn

from equipoise.data import Cohort
from equipoise.errors import BadInput, raise_all
from equipoise.models.feed import device_of, workplace
from equipoise.models.many_outputs import ChosenOutputs, ManyOutputs
from equipoise.models.mlp import MLP
from equipoise.models.protocol import Replicas
from equipoise.models.score import evaluating, single_output
from equipoise.models.single import SingleReplica
from equipoise.models.stacked import StackedReplicas
from equipoise.models.vision import shape_advice


def replicas(models: Sequence[nn.Module], cohorts: Sequence[Cohort]) -> Replicas:
    """Copies of the networks, ready for repair; an error that lists all that is wrong with them."""
    check(models[0], cohorts[0])
    if all(type(m) is MLP and all(p.requires_grad for p in m.parameters()) for m in models):
        place = workplace(models[0], cohorts[0].inputs)
        return StackedReplicas([m for m in models if isinstance(m, MLP)], torch.stack([c.inputs for c in cohorts]), place)
    if len(models) > 1:
        raise BadInput(f"only equal MLPs can be repaired as one; got {len(models)} networks of type {type(models[0]).__name__}")
    if isinstance(models[0], ChosenOutputs):
        return ManyOutputs(models[0], cohorts[0].inputs)
    return SingleReplica(models[0], cohorts[0].inputs)


def check(model: nn.Module, cohort: Cohort) -> None:
    """Raises everything that stands in the way of repairing this network on this cohort."""
    problems = []
    half = sorted({str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype not in (torch.float32, torch.float64)})
    if half:
        problems.append(f"the network's weights are {', '.join(half)}; repair needs full precision: model.float()")
    if not any(True for _ in model.parameters()):
        problems.append("the network has no parameters")
    if not problems:
        try:
            with evaluating(model), torch.no_grad():
                few = cohort.inputs[:4].to(device_of(model))
                raw = model(few) if isinstance(model, ChosenOutputs) else single_output(model(few), len(few))
            if not torch.isfinite(raw).all():
                problems.append(f"the network gives NaN or infinity for rows of {cohort.name!r}")
        except BadInput as error:
            problems += error.problems
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # a shape that does not fit, most often; a network may raise anything at it
            shape = tuple(cohort.inputs.shape[1:])
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            advice = shape_advice(model, shape) or "Give it the inputs that it was trained on, in the same order."
            problems.append(f"the network cannot take inputs of shape {shape} from {cohort.name!r}: {reason}. {advice}")
    raise_all(problems)
