"""Performs one task of a study. The result depends only on the arguments: every process and machine returns the same bytes.

A training task trains the networks of a block of splits as a stack. A method task repairs them on the validation sets for one measure and
evaluates the result on the test sets. Files are written by the main process.
"""

import json
import math
import pickle
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
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
from equipoise.methods import METHODS, Candidate, make_settings, run_many
from equipoise.models import IMAGES, Training, compute_device, computing_on, predict, train, train_stack
from equipoise.studies import networks, rows
from equipoise.studies.plan import Outcome, Plan, Work
from equipoise.studies.protocols import balanced_parts, fold_parts
from equipoise.studies.sources import FromSource

KEPT_BLOCKS = 2  # the number of blocks whose data a process caches


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

    `cohort` is pickled, or None for a simulation. `trained` is the file with the networks of the block, or its content; None to train them.
    """
    with one_thread(), computing_on(work.device):
        parts = _block_parts(work, cohort)
        if trained is None:
            return _train(work, parts)
        content = trained.read_bytes() if isinstance(trained, Path) else trained
        return rows.to_bytes(_repair(work, parts, _load_networks(work, parts, content)))


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


_blocks: OrderedDict[tuple[str, str, tuple[int, ...]], list[Parts]] = OrderedDict()


def _block_parts(work: Work, cohort: bytes | None) -> list[Parts]:
    """The sets of every split of a block, cached for the next task of the same block."""
    key = (work.fingerprint, work.task.data, work.task.seeds)
    if key not in _blocks:
        while len(_blocks) >= KEPT_BLOCKS:
            _blocks.popitem(last=False)
        loaded = None if cohort is None else pickle.loads(cohort)
        _blocks[key] = [_parts(work.plan, work.task.data, loaded, seed) for seed in work.task.seeds]
    _blocks.move_to_end(key)
    return _blocks[key]


def _parts(plan: Plan, name: str, cohort: Cohort | None, seed: int) -> Parts:
    if cohort is None:
        data = plan.named(name)
        assert isinstance(data, FromSource)  # only simulations are drawn here; the main process loads files
        cohort = data.load(seed=seed)
    if plan.protocol == "balanced":
        parts = balanced_parts(cohort, seed=seed, fractions=plan.fractions, privileged=plan.privileged)
    elif plan.protocol == "folds":
        parts = fold_parts(cohort, seed=seed, privileged=plan.privileged)
    else:
        parts = split(cohort, seed=seed, fractions=plan.fractions)
    check_apart(training=parts.train, validation=parts.valid, test=parts.test)
    train, valid, test = (part.encoded() for part in parts)  # the raw table is no longer needed
    return Parts(train, valid, test)


def _stackable(parts: Sequence[Parts]) -> list[list[int]]:
    """Groups of splits that can form one stack, since their sets have equal shapes. Without patient ids, all splits do."""
    groups: dict[tuple[torch.Size, ...], list[int]] = {}
    for k, sets in enumerate(parts):
        groups.setdefault((sets.train.inputs.shape, sets.valid.inputs.shape), []).append(k)
    return list(groups.values())


def _train(work: Work, parts: Sequence[Parts]) -> bytes:
    """The file with the trained network of every split."""
    plan, seeds = work.plan, work.task.seeds
    network = plan.network(work.task.data)
    default = IMAGES if len(parts[0].train.inputs.shape) == 4 else Training()
    settings = replace(default, **plan.recipe(work.task.data, work.task.recipe))
    start = time.perf_counter()
    models: dict[int, nn.Module] = {}
    for group in _stackable(parts):
        network.check(parts[group[0]].train.inputs.shape)
        if network.stacks:
            models |= zip(group, train_stack([(parts[k].train, parts[k].valid, seeds[k]) for k in group], settings=settings), strict=True)
        else:
            for k in group:
                untrained = network.build(parts[k].train.inputs.shape, seeds[k])
                models[k] = train(parts[k].train, parts[k].valid, seed=seeds[k], model=untrained, settings=settings)
    about = {"fingerprint": work.fingerprint, "version": work.version, "task": work.task.key, "seconds": time.perf_counter() - start}
    return networks.to_bytes([models[k] for k in range(len(parts))], seeds, about)


def _load_networks(work: Work, parts: Sequence[Parts], content: bytes) -> list[nn.Module]:
    states, about = networks.from_bytes(content, f"the networks of {work.task.training.key}")
    network = work.plan.network(work.task.data)
    models = []
    for seed, sets, threshold in zip(work.task.seeds, parts, about["thresholds"], strict=True):
        model = network.build(sets.train.inputs.shape, seed, pretrained=False)
        model.load_state_dict(states[seed])
        model.__dict__["threshold"] = threshold
        models.append(model.eval())
    return models


def _repair(work: Work, parts: Sequence[Parts], models: Sequence[nn.Module]) -> list[dict[str, object]]:
    """Repairs the networks, and returns one row per split."""
    plan, task = work.plan, work.task
    arm = plan.arm(task.method)
    goal = arm.goal(task.data, task.measure, plan.performance)
    settings = arm.settings_for(task.data)
    start = time.perf_counter()
    candidates: dict[int, Candidate] = {}
    for group in _stackable(parts):
        repaired = run_many(
            arm.method,
            [models[k] for k in group],
            [parts[k].valid for k in group],
            goal,
            seeds=[task.seeds[k] for k in group],
            trains=[parts[k].train for k in group] if arm.train or METHODS[arm.method].needs_train else None,
            settings=settings,
        )
        candidates |= zip(group, repaired, strict=True)
    seconds = time.perf_counter() - start
    recipe = {"training": plan.trainings[arm.training]} if arm.training else {}
    common = {
        "fingerprint": work.fingerprint,
        "version": work.version,
        "data": task.data,
        "method": task.method,
        "measure": task.measure,
        "performance_measure": plan.performance,
        "settings": json.dumps(
            {"method": arm.method, **recipe, **asdict(make_settings(arm.method, settings))}, sort_keys=True, default=str
        ),
        "stack": len(parts),
        "device": str(compute_device(models[0], parts[0].valid.inputs)),
        "seconds": seconds / len(parts),
        "task_seconds": seconds,
    }
    salt = work.fingerprint if plan.protocol == "folds" else None
    return [
        {**common, "seed": seed, **_row(candidates[k], models[k], parts[k], task.measure, plan.performance, seed, salt)}
        for k, seed in enumerate(task.seeds)
    ]


def _row(
    candidate: Candidate, model: nn.Module, parts: Parts, measure: str, performance: str, seed: int, salt: str | None
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


def _evaluate(candidate: Candidate, scores: Scores, measure: str, seed: int) -> tuple[Cells, float]:
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
