"""Performs one task of a study. The result depends only on the arguments: every process and machine returns the same bytes.

A training task trains the network of one split. A method task repairs it on the validation set for one measure and evaluates the result on
the test set. Files are written by the main process.

Splits follow one of three protocols: `split` of the data room, `balanced_parts` (the paper's chest X-rays: 50 % training, 25 % validation,
25 % test by patient; in every set as many positives as negatives, and the reference group makes up 75 % of the training set and 50 % of the
others, so that label and group are independent), and `fold_parts`, with more power on small data: five folds by patient, each of which is
the test set once. With more than two groups, all but the reference count as one.
"""

import json
import math
import pickle
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from equipoise.data import MISSING, Cohort, IntArray, Parts, Scores, assign_folds, check_apart, generator, split
from equipoise.errors import BadInput, EquipoiseError, collecting, raise_all
from equipoise.measures import AFFINE_PERFORMANCE, GAPS, Cells, largest_gap, largest_gap_p_value, p_values, upper_bound
from equipoise.methods import METHODS, LabelCandidate, make_settings, run_method
from equipoise.models import Training, compute_device, computing_on, predict, train
from equipoise.plugins import load_sources
from equipoise.studies import networks
from equipoise.studies.plan import PRIVILEGED, PROTOCOLS, StudyPlan, StudyTask, TaskResult
from equipoise.studies.results import SET_SIZES, TRACE_COLUMNS, pooled_columns, rows_to_bytes

STUDY_FOLDS = 5  # of `fold_parts`
KEPT_SPLITS = 2  # the number of splits whose data a process caches


def attempt_task(work: StudyTask, cohort: bytes | None) -> TaskResult:
    """The outcome of a task. Errors are part of it, so that one bad task does not stop the others."""
    try:
        load_sources(work.plugins)
        return TaskResult(perform(work, cohort))
    except EquipoiseError as error:
        return TaskResult(problem=str(error))
    except Exception as error:  # a defect of Equipoise or of the user's network
        return TaskResult(problem=f"{type(error).__name__}: {error}", details=traceback.format_exc())


def perform(work: StudyTask, cohort: bytes | None) -> bytes:
    """The content of the file of a task. `cohort` is pickled, or None for a simulation."""
    with one_thread(), computing_on(work.device):
        parts = _cached_parts(work, cohort)
        if work.trained is None:
            return _train(work, parts)
        state, about = networks.from_bytes(work.trained(), f"the network of {work.task.training.key}")
        model = work.plan.network(work.task.data).build(parts.train.inputs.shape, work.task.seed, pretrained=False)
        model.load_state_dict(state)
        model.__dict__["threshold"] = about["threshold"]
        return rows_to_bytes([_repair(work, parts, model.eval())])


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


def _cached_parts(work: StudyTask, cohort: bytes | None) -> Parts:
    """The sets of a split, cached for the next task of the same split."""
    key = (work.fingerprint, work.task.data, work.task.seed)
    if key not in _splits:
        while len(_splits) >= KEPT_SPLITS:
            _splits.popitem(last=False)
        _splits[key] = _made_parts(work.plan, work.task.data, None if cohort is None else pickle.loads(cohort), work.task.seed)
    _splits.move_to_end(key)
    return _splits[key]


def _made_parts(plan: StudyPlan, name: str, cohort: Cohort | None, seed: int) -> Parts:
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


def balanced_parts(
    cohort: Cohort, *, seed: int = 0, fractions: Sequence[float] = PROTOCOLS["balanced"], privileged: Sequence[float] = PRIVILEGED
) -> Parts:
    """Training, validation and test sets by patient, each subsampled to the largest size with the requested balance.

    `privileged` is the share of the reference group in each set. Rows without a group are left out.
    """
    if len(privileged) != 3 or not all(0 < share < 1 for share in privileged):
        raise BadInput(f"privileged must be three shares between 0 and 1, for train, validation and test; got {tuple(privileged)}")
    parts = split(cohort.take(cohort.attribute.codes != MISSING), seed=seed, fractions=fractions)
    return _subsample(parts, privileged, seed, cohort.name)


def _subsample(parts: Parts, shares: Sequence[float | None], seed: int, source: str) -> Parts:
    """The sets with balanced labels and these shares of the reference group; a set whose share is None stays unchanged."""
    balanced: list[Cohort] = []
    problems: list[str] = []
    for name, part, share in zip(("train", "valid", "test"), parts, shares, strict=True):
        with collecting(problems):
            balanced.append(part if share is None else part.take(_balanced_rows(part, share, name, generator(seed, f"balance {name}"))))
    raise_all(problems, source)
    train, valid, test = balanced
    return Parts(train, valid, test, parts.unseen)


def fold_parts(cohort: Cohort, *, seed: int = 0, privileged: Sequence[float] = PRIVILEGED) -> Parts:
    """The sets of one of five folds: seeds 0 to 4 are the folds of the first assignment of patients, 5 to 9 of the second, and so on.

    The fold is the test set, unchanged; the next fold is the validation set and the other three are the training set, both subsampled to
    balanced labels and these shares of the reference group (the third is not used). Rows without a group are left out.
    """
    grouped = cohort.take(cohort.attribute.codes != MISSING)
    assignment, fold = divmod(seed, STUDY_FOLDS)
    distance = (assign_folds(grouped, STUDY_FOLDS, generator(assignment, "folds")) - fold) % STUDY_FOLDS  # 0 is the fold itself, 1 the next
    if (patients := len(np.unique(distance))) < STUDY_FOLDS:
        raise BadInput(f"{patients} patients of {cohort.name!r} are too few for {STUDY_FOLDS} folds. Use more data.")
    parts = Parts.of(grouped, np.maximum(2 - distance, 0))
    return _subsample(parts, (*privileged[:2], None), seed, cohort.name)


def _balanced_rows(part: Cohort, share: float, name: str, rng: np.random.Generator) -> IntArray:
    """The positions of a random sample, in order, with as many positives as negatives and this share of the reference group in both."""
    other = part.attribute.codes > 0
    cells = {(g, y): np.flatnonzero((other == bool(g)) & (part.y == y)) for g in (0, 1) for y in (0, 1)}
    portion = {0: share, 1: 1 - share}
    least = min(len(rows) / portion[g] for (g, _), rows in cells.items())
    per_label = int(least + 1e-9)  # the number of positives, and of negatives
    size = {0: round(per_label * share), 1: per_label - round(per_label * share)}
    if min(size.values()) < 1:
        names = {0: repr(part.attribute.reference), 1: " or ".join(map(repr, part.attribute.others))}
        raise BadInput(
            *(
                f"the {name} set has {len(rows)} {'positives' if y else 'negatives'} in {names[g]}, too few for a share of "
                f"{portion[g]:.0%}. Use more data, other fractions or another share."
                for (g, y), rows in cells.items()
                if len(rows) / portion[g] == least
            )
        )
    chosen = np.sort(np.concatenate([rng.choice(rows, size[g], replace=False) for (g, _), rows in cells.items()]))
    return np.asarray(chosen, dtype=np.int64)


def _train(work: StudyTask, parts: Parts) -> bytes:
    """The file with the trained network of a split."""
    plan, task, shape = work.plan, work.task, parts.train.inputs.shape
    network = plan.network(task.data)
    network.check(shape)
    settings = Training.as_in_paper(shape).changed(**plan.recipe(task.data, task.recipe))
    start = time.perf_counter()
    untrained = None if network.model == networks.MLP else network.build(shape, task.seed)
    model = train(parts.train, parts.valid, seed=task.seed, model=untrained, settings=settings)
    about = {"fingerprint": work.fingerprint, "version": work.version, "task": task.key, "seconds": time.perf_counter() - start}
    return networks.to_bytes(model, about)


def _repair(work: StudyTask, parts: Parts, model: nn.Module) -> dict[str, object]:
    """The row of a repaired network."""
    plan, task = work.plan, work.task
    arm, measure, performance = plan.arm(task.method), task.measure, plan.performance
    goal, settings = arm.goal(task.data, measure, performance), arm.settings_for(task.data)
    start = time.perf_counter()
    used_train = parts.train if arm.train or METHODS[arm.method].needs_train else None
    candidate = run_method(arm.method, model, parts.valid, {"": goal}, seed=task.seed, train=used_train, settings=settings).only
    seconds = time.perf_counter() - start
    recipe = {"training": plan.trainings[arm.training]} if arm.training else {}
    used = {"method": arm.method, **recipe, **asdict(make_settings(arm.method, settings))}
    valid_scores, scores = (predict(candidate.model, part) for part in (parts.valid, parts.test))
    (valid, valid_p), (test, p) = (_cells_and_p_value(candidate, of_set, measure, task.seed) for of_set in (valid_scores, scores))
    trace, rule = candidate.trace, candidate.rule
    gap = _largest_gap(measure, test)
    before, after = model.state_dict(), candidate.network.state_dict()
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)  # only the rule was changed
    original = scores if same and type(model) is type(candidate.network) else predict(model, parts.test)
    levels = original.attribute.levels
    best = None
    if not math.isnan(gap):
        best = upper_bound(original.score, original.y, original.attribute.codes, levels, measure, performance, [abs(gap)])
    return {
        "fingerprint": work.fingerprint,
        "version": work.version,
        "data": task.data,
        "seed": task.seed,
        "method": task.method,
        "measure": measure,
        "performance_measure": performance,
        "settings": json.dumps(used, sort_keys=True, default=str),
        "device": str(compute_device(model, parts.valid.inputs)),
        "seconds": seconds,
        "gap": gap,
        "performance": float(test.performance(performance)),
        "valid_gap": _largest_gap(measure, valid),
        "valid_performance": float(valid.performance(performance)),
        "p_value": p,
        "valid_p_value": valid_p,
        "limit": None if best is None or math.isnan(best[0]) else float(best[0]),
        **{f"test_{name}": _largest_gap(name, test) for name in GAPS},
        **{f"test_{name}": float(test.performance(name)) for name in AFFINE_PERFORMANCE},
        "met": bool(candidate.met_in_sample),
        "step": int(trace["step"].iloc[candidate.chosen]),
        "steps": len(trace),
        "pace": candidate.pace,
        "why": json.dumps([note.to_dict() for note in candidate.why], default=str),
        "rule": rule.describe(),
        "threshold": rule.shared,
        "needs_group": bool(rule.needs_group),
        "min_performance": candidate.goal.min_performance,
        "max_gap": candidate.goal.max_gap,
        "notes": json.dumps([note.to_dict() for note in candidate.notes], default=str),
        **{name: len(part) for name, part in zip(SET_SIZES, parts, strict=True)},
        **{column: trace[name].tolist() for column, name in TRACE_COLUMNS.items()},
        **(pooled_columns(scores, rule.decide(scores), work.fingerprint) if plan.protocol == "folds" else {}),
    }


def _cells_and_p_value(candidate: LabelCandidate, scores: Scores, measure: str, seed: int) -> tuple[Cells, float]:
    """The cell table of the decisions (of their expectations, for a randomised rule), and the p-value of the largest |gap|."""
    f, attribute = candidate.rule.decide(scores), scores.attribute
    found = p_values(f, scores.y, attribute.codes, attribute.levels, scores.patients, [measure], seed=seed)
    return Cells.of(f, scores.y, attribute), largest_gap_p_value(found[measure])


def _largest_gap(measure: str, cells: Cells) -> float:
    return float(largest_gap(cells.gaps(measure)))
