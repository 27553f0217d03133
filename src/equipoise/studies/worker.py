"""Performs one task of a study. The result depends only on the arguments: every process and machine returns the same bytes.

A training task trains the network of one split. A method task repairs it on the validation set for one measure and evaluates the result on
the test set. Files are written by the main process.
"""

import json
import math
import pickle
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from equipoise.data import Cohort, Parts, Scores, check_apart, split
from equipoise.errors import EquipoiseError
from equipoise.measures import (
    AFFINE_PERFORMANCE,
    GAPS,
    Cells,
    gap_values,
    largest_gap,
    largest_gap_p_value,
    performance_values,
    tabulate,
    upper_bound,
)
from equipoise.methods import METHODS, LabelCandidate, make_settings, run_method
from equipoise.models import IMAGES, Training, compute_device, computing_on, predict, train
from equipoise.studies import networks, rows
from equipoise.studies.plan import Outcome, Plan, Work
from equipoise.studies.protocols import balanced_parts, fold_parts

KEPT_SPLITS = 2  # the number of splits whose data a process caches


def attempt(work: Work, cohort: bytes | None, trained: bytes | Path | None) -> Outcome:
    """The outcome of a task. Errors are part of it, so that one bad task does not stop the others."""
    try:
        return Outcome(perform(work, cohort, trained))
    except EquipoiseError as error:
        return Outcome(problem=str(error))
    except Exception as error:  # a defect of Equipoise or of the user's network
        return Outcome(problem=f"{type(error).__name__}: {error}", details=traceback.format_exc())


def perform(work: Work, cohort: bytes | None, trained: bytes | Path | None) -> bytes:
    """The content of the file of a task.

    `cohort` is pickled, or None for a simulation. `trained` is the file with the network of the split, or its content; None to train it.
    """
    with one_thread(), computing_on(work.device):
        parts = _cached_parts(work, cohort)
        if trained is None:
            return _train(work, parts)
        content = trained.read_bytes() if isinstance(trained, Path) else trained
        return rows.to_bytes([_repair(work, parts, _load_network(work, parts, content))])


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits computations to one thread, so that sums have the same order everywhere and processes do not compete for cores."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


_splits: OrderedDict[tuple[str, str, int], Parts] = OrderedDict()


def _cached_parts(work: Work, cohort: bytes | None) -> Parts:
    """The sets of a split, cached for the next task of the same split."""
    key = (work.fingerprint, work.task.data, work.task.seed)
    if key not in _splits:
        while len(_splits) >= KEPT_SPLITS:
            _splits.popitem(last=False)
        _splits[key] = _parts(work.plan, work.task.data, None if cohort is None else pickle.loads(cohort), work.task.seed)
    _splits.move_to_end(key)
    return _splits[key]


def _parts(plan: Plan, name: str, cohort: Cohort | None, seed: int) -> Parts:
    if cohort is None:
        cohort = plan.named(name).load(seed=seed)  # a simulation; the main process loads files
    if plan.protocol == "balanced":
        parts = balanced_parts(cohort, seed=seed, fractions=plan.fractions, privileged=plan.privileged)
    elif plan.protocol == "folds":
        parts = fold_parts(cohort, seed=seed, privileged=plan.privileged)
    else:
        parts = split(cohort, seed=seed, fractions=plan.fractions)
    check_apart(training=parts.train, validation=parts.valid, test=parts.test)
    train, valid, test = (part.encoded() for part in parts)  # the raw table is no longer needed
    return Parts(train, valid, test)


def _train(work: Work, parts: Parts) -> bytes:
    """The file with the trained network of a split."""
    plan, task, shape = work.plan, work.task, parts.train.inputs.shape
    network = plan.network(task.data)
    network.check(shape)
    settings = replace(IMAGES if len(shape) == 4 else Training(), **plan.recipe(task.data, task.recipe))
    start = time.perf_counter()
    untrained = None if network.model == networks.MLP else network.build(shape, task.seed)
    model = train(parts.train, parts.valid, seed=task.seed, model=untrained, settings=settings)
    about = {"fingerprint": work.fingerprint, "version": work.version, "task": task.key, "seconds": time.perf_counter() - start}
    return networks.to_bytes(model, about)


def _load_network(work: Work, parts: Parts, content: bytes) -> nn.Module:
    state, about = networks.from_bytes(content, f"the network of {work.task.training.key}")
    model = work.plan.network(work.task.data).build(parts.train.inputs.shape, work.task.seed, pretrained=False)
    model.load_state_dict(state)
    model.__dict__["threshold"] = about["threshold"]
    return model.eval()


def _repair(work: Work, parts: Parts, model: nn.Module) -> dict[str, object]:
    """The row of a repaired network."""
    plan, task = work.plan, work.task
    arm = plan.arm(task.method)
    goal, settings = arm.goal(task.data, task.measure, plan.performance), arm.settings_for(task.data)
    start = time.perf_counter()
    used_train = parts.train if arm.train or METHODS[arm.method].needs_train else None
    candidate = run_method(arm.method, model, parts.valid, {"": goal}, seed=task.seed, train=used_train, settings=settings).only
    seconds = time.perf_counter() - start
    recipe = {"training": plan.trainings[arm.training]} if arm.training else {}
    used = {"method": arm.method, **recipe, **asdict(make_settings(arm.method, settings))}
    salt = work.fingerprint if plan.protocol == "folds" else None
    return {
        "fingerprint": work.fingerprint,
        "version": work.version,
        "data": task.data,
        "seed": task.seed,
        "method": task.method,
        "measure": task.measure,
        "performance_measure": plan.performance,
        "settings": json.dumps(used, sort_keys=True, default=str),
        "device": str(compute_device(model, parts.valid.inputs)),
        "seconds": seconds,
        **_row(candidate, model, parts, task.measure, plan.performance, task.seed, salt),
    }


def _row(
    candidate: LabelCandidate, model: nn.Module, parts: Parts, measure: str, performance: str, seed: int, salt: str | None
) -> dict[str, object]:
    """The results on one split. With a salt, which is used to pseudonymise patients, they include every decision, for pooled folds."""
    valid_scores, scores = (predict(candidate.model, part) for part in (parts.valid, parts.test))
    valid, valid_p = _evaluate(candidate, valid_scores, measure, seed)
    test, p = _evaluate(candidate, scores, measure, seed)
    trace, rule, goal = candidate.trace, candidate.rule, candidate.goal
    gap = _largest_gap(measure, test)
    original_scores = scores if _same_weights(candidate.network, model) else predict(model, parts.test)
    return {
        "gap": gap,
        "performance": float(performance_values(performance, test)),
        "valid_gap": _largest_gap(measure, valid),
        "valid_performance": float(performance_values(performance, valid)),
        "p_value": p,
        "valid_p_value": valid_p,
        rows.LIMIT: _upper_bound(original_scores, measure, performance, gap),
        **{f"test_{name}": _largest_gap(name, test) for name in GAPS},
        **{f"test_{name}": float(performance_values(name, test)) for name in AFFINE_PERFORMANCE},
        "met": bool(candidate.met_in_sample),
        "step": int(trace["step"].iloc[candidate.chosen]),
        "steps": len(trace),
        rows.PACE: candidate.pace,
        "why": json.dumps([note.to_dict() for note in candidate.why], default=str),
        "rule": rule.describe(),
        "threshold": rule.shared,
        "needs_group": bool(rule.needs_group),
        "min_performance": goal.min_performance,
        "max_gap": goal.max_gap,
        "notes": json.dumps([note.to_dict() for note in candidate.notes], default=str),
        **{name: len(part) for name, part in zip(rows.SIZES, parts, strict=True)},
        **{column: trace[name].tolist() for column, name in rows.TRACE.items()},
        **(rows.pooled_columns(scores, rule.decide(scores), salt) if salt is not None else {}),
    }


def _evaluate(candidate: LabelCandidate, scores: Scores, measure: str, seed: int) -> tuple[Cells, float]:
    """The cell table of the decisions (of their expectations, for a randomised rule), and the p-value of the largest |gap|."""
    f, attribute = candidate.rule.decide(scores), scores.attribute
    p = largest_gap_p_value(f, scores.y, attribute.codes, attribute.levels, scores.patients, measure, seed=seed)
    return tabulate(f, scores.y, attribute), p


def _same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Whether two networks have the same scores, because a method changed only the rule."""
    a, b = first.state_dict(), second.state_dict()
    return type(first) is type(second) and a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _upper_bound(scores: Scores, measure: str, performance: str, gap: float) -> float | None:
    """The upper bound (group-aware) of performance on these scores within this |gap|, or None if it is not defined."""
    attribute = scores.attribute
    if math.isnan(gap):
        return None
    best = upper_bound(scores.score, scores.y, attribute.codes, attribute.levels, measure, performance, [abs(gap)])
    return None if best is None or math.isnan(best[0]) else float(best[0])


def _largest_gap(measure: str, cells: Cells) -> float:
    return float(largest_gap(gap_values(measure, cells)))
