"""Methods tried on a classifier: each on the repair set, for every label, then compared on the same held-out rows.

The classifier is a network, an estimator or a column of scores; what it offers (gradients, layers, features) decides which methods can run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from equipoise import comparison, data, methods, models
from equipoise.case.case_file import RepairSpec
from equipoise.case.progress import Bars, no_bars
from equipoise.comparison import Comparison, ScoredCandidate
from equipoise.data import Cohort, Rows
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, collecting, raise_all
from equipoise.measures import AuditSpec
from equipoise.methods import METHODS, STANDARD, Goal, LabelCandidate
from equipoise.report import ReportSpec

if TYPE_CHECKING:
    from torch import nn

RESCORE_ROUNDING = 1e-9  # gaps and performances that differ by less are equal up to rounding
THUMBNAILS = 24  # of the patients whose score changed most
Methods = Mapping[str, Mapping[str, Any]]  # settings by name
Candidates = dict[str, ScoredCandidate]  # by label


@dataclass(frozen=True, eq=False)
class LabelTask:
    """A classifier and the rows that it is repaired and evaluated on: of one label, or of all labels of a network."""

    model: nn.Module | models.Predictor | None  # None: the rows have their scores
    repair: Rows
    test: Rows
    train: Cohort | None = None

    @property
    def is_network(self) -> bool:
        """Whether it is a network, which is run on its rows; the rows of every other classifier have their scores."""
        return isinstance(self.repair, Cohort)


@dataclass(frozen=True, eq=False)
class RepairTask:
    """A classifier to repair: each label with its rows. The labels of one network are also repaired together, by one method."""

    labels: Mapping[str, LabelTask]
    network: LabelTask | None = None  # with several labels, which are its outputs

    @classmethod
    def of(
        cls,
        model: nn.Module | models.Predictor | None,
        labels: Sequence[str],
        repair: Sequence[Rows],
        test: Sequence[Rows],
        train: Cohort | None = None,
        outputs: Mapping[str, int | str] | None = None,
    ) -> RepairTask:
        """The classifier with the sets of each label; or with one set of all labels, which are then these `outputs` of the network."""
        if not repair[0].several:
            tasks = zip(labels, repair, test, strict=True)
            return cls({label: LabelTask(model, rows, held_out, train) for label, rows, held_out in tasks})
        rows, held_out = cast(Cohort, repair[0]), test[0]  # only networks have several outputs
        chosen = models.chosen_outputs(cast("nn.Module", model), rows.inputs, rows.labels, rows.kind, outputs)
        views = {}
        for at, label in enumerate(rows.labels):
            own_train = None if train is None else train.labelled(label)
            views[label] = LabelTask(chosen.view(at), rows.labelled(label), held_out.labelled(label), own_train)
        return cls(views, LabelTask(chosen, rows, held_out, train))

    def name_of(self, label: str) -> str:
        """The label, if there are others."""
        return label if len(self.labels) > 1 else ""


def check_methods(asked: Methods, **offered: Any) -> None:
    """Raises every reason why methods with these settings cannot run on a classifier that offers this, before anything is run.

    `offered` are the keywords of `equipoise.methods.check_method`.
    """
    problems = [] if asked else ["no method was given. Name at least one."]
    for name, settings in asked.items():
        with collecting(problems):
            methods.check_method(name, settings, **offered)
    raise_all(problems)


def try_methods(
    task: RepairTask,
    asked: Methods,
    goals: Mapping[str, Goal],
    spec: RepairSpec = RepairSpec(),
    report: ReportSpec = ReportSpec(),
    provenance: comparison.Provenance | None = None,
    bars: Bars = no_bars,
) -> dict[str, Comparison]:
    """The comparison of each label: every method on the repair set, the best by the goal, and the scores of the test set with each.

    `asked` maps a method to its settings; that they can run was checked before (`check_methods`). A method that fails is listed in
    `failures`; if all fail, that is an error. `goals` are by label. With several outputs of a network, one method is chosen for all of
    them. Too few patients in a cell that a goal needs are an error before any work, unless `spec.force` is set.
    """
    too_small: list[str] = []
    for label, job in task.labels.items():
        with collecting(too_small):
            sets = {"the repair set": job.repair, "the test set": job.test}
            methods.check_cells(sets, {"": goals[label]}, label=task.name_of(label))
    if too_small and not spec.force:
        raise TooFewPatients(*too_small)
    deadline = None if spec.seconds is None else time.monotonic() + spec.seconds
    provenance, whole, comparisons = provenance or comparison.Provenance(), task.network, dict[str, Comparison]()
    # One method is chosen for all labels of a network; otherwise each label has its own.
    for together in [[label] for label in task.labels] if whole is None else [list(task.labels)]:
        tried: dict[str, Candidates] = {name: {} for name in (STANDARD, *asked)}
        failures: dict[str, str] = {}
        jobs: list[tuple[str, LabelTask, Mapping[str, Goal], list[str]]] = []  # the label is empty where all are repaired together
        rest = list(tried)
        if whole is not None:
            # The original is that of each label; argmax leaves it no threshold to choose for a class alone.
            original = STANDARD if not whole.repair.kind.argmax else None
            at_once = [name for name in tried if METHODS[name].labels == methods.ALL_AT_ONCE and name != original]
            if at_once:
                jobs = [("", whole, methods.goals_of(together, whole.repair.kind, Goal(), goals), at_once)]
                rest = [name for name in tried if name not in at_once]
        jobs += [(label, task.labels[label], {"": goals[label]}, rest) for label in together if rest]
        for label, job, job_goals, names in jobs:
            named = f"{label}, " if label and task.name_of(label) else ""
            how = {name: asked.get(name, {}) for name in names}
            limits: dict[str, Any] = {"seed": spec.seed, "train": job.train, "deadline": deadline}
            limits["bars"] = lambda name, named=named: bars(named + name)
            run = methods.run_methods(how, cast("nn.Module", job.model) if job.is_network else None, job.repair, job_goals, **limits)
            if STANDARD in run.errors:
                raise run.errors[STANDARD]
            failures |= {name: str(error) for name, error in run.errors.items()}
            for name, result in run.candidates.items():
                start = time.perf_counter()
                # The same scores with another rule are not computed again.
                known = tried[STANDARD].get(label) if name != STANDARD and METHODS[name].needs_group else None
                try:
                    if spec.recalibrate and job.is_network:  # both sets are at hand to check that no decision changes
                        views: Any = {own: job.model if label else task.labels[own].model for own in result.labels}
                        result = methods.recalibrated(result, views, cast(Cohort, job.repair), also=[cast(Cohort, job.test)])
                    seconds = run.seconds[name] + time.perf_counter() - start
                    for own_label, own in result.labels.items():
                        own = replace(own, model=job.model) if own.rule_only else own  # an estimator is saved with its rule
                        job_of, units = task.labels[own_label or label], tuple[comparison.UnitMap, ...]()
                        if known is not None and known.valid is not None:
                            valid, held_out = known.valid, known.test
                        else:
                            with bars(f"scores of {own.method}") as step:
                                valid = models.predict(own.model, job_of.repair)
                                step(1, 2)
                                held_out = models.predict(own.model, job_of.test)
                            units = unit_maps(own.network) if job_of.is_network else ()
                        tried[name][own_label or label] = ScoredCandidate(rescored(own, valid), valid, held_out, seconds, units)
                except EquipoiseError as error:
                    if name == STANDARD:
                        raise
                    failures[name] = str(error)
        results = [candidates for name, candidates in tried.items() if name in asked and name not in failures]
        if not results:
            raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
        originals, best = tried[STANDARD], comparison.choose(results)
        for label in together:
            own_task, shown = task.labels[label], {}
            if own_task.is_network:
                shown = _shown_inputs(originals[label], results[best][label], own_task, spec, report, bars)
            title = f"{report.title}: {label}" if task.name_of(label) else report.title
            comparisons[label] = Comparison(
                originals[label],
                tuple(result[label] for result in results),
                best,
                title=f"{label}, {provenance.model}" if report.title is None else str(title),
                label=label,
                provenance=provenance,
                settings=AuditSpec(seed=spec.seed),
                failures=failures,
                together=len(task.labels),
                forced=bool(too_small),
                **shown,
            )
    return comparisons


def _shown_inputs(
    original: ScoredCandidate, chosen: ScoredCandidate, task: LabelTask, spec: RepairSpec, report: ReportSpec, bars: Bars
) -> dict[str, Any]:
    """What the inputs of a network show, as fields of a comparison: a simple model, the images that changed most, probes of the layers."""
    test, probes = cast(Cohort, task.test), None
    if spec.probe:
        with bars("probes") as step:
            before = after = models.encoding(original.candidate.network, test, draws=spec.draws, seed=spec.seed, progress=step)
        if chosen.test is not original.test:  # else the same network with another rule
            with bars("probes after repair") as step:
                after = models.encoding(chosen.candidate.network, test, draws=spec.draws, seed=spec.seed, progress=step)
        probes = comparison.Probes(before, after)
    return {
        "thumbnails": most_changed(original.test, chosen.test, test) if report.thumbnails else {},
        "probes": probes,
        "baseline": comparison.baseline_of(original, chosen, test, cast(Cohort, task.repair), task.train, AuditSpec(seed=spec.seed)),
    }


def rescored(candidate: LabelCandidate, scores: data.Scores) -> LabelCandidate:
    """The candidate, with its chosen step re-evaluated on the scores of the network that is saved.

    During a repair a network may be evaluated in another precision, or in batches that round differently; the final network counts.
    """
    goal, row = candidate.goal, candidate.chosen
    gap, performance = comparison.evaluate_rule(candidate.rule, scores, goal)
    recorded = candidate.trace.iloc[row]
    if abs(recorded["gap"] - gap) <= RESCORE_ROUNDING and abs(recorded["performance"] - performance) <= RESCORE_ROUNDING:
        return candidate
    trace = candidate.trace.copy()
    trace.loc[trace.index[row], ["gap", "performance"]] = [gap, performance]
    before = {"gap_before": float(recorded["gap"]), "performance_before": float(recorded["performance"])}
    note = methods.Note("rescored", goal.measure, {**before, "gap": gap, "performance": performance, "of": goal.performance})
    met = candidate.met_in_sample and methods.select(trace.iloc[[row]], goal).met
    why = () if met == candidate.met_in_sample else (methods.Note("final_network_misses"),)
    return replace(candidate, trace=trace, met_in_sample=met, why=(*candidate.why, *why), notes=(*candidate.notes, note))


def unit_maps(model: nn.Module) -> tuple[comparison.UnitMap, ...]:
    """For each convolution of images with units switched off, the share of channels that is still on at each position."""
    from torch import nn

    masked = [(name, module) for name, module in model.named_modules() if type(module) is models.MASKED[nn.Conv2d]]
    return tuple(comparison.UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)


def most_changed(before: data.Scores, after: data.Scores, cohort: Cohort, count: int = THUMBNAILS) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Empty for a table."""
    if not isinstance(cohort.source, data.Images) or len(cohort.source.shape) != 4:
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = (cohort.source.gray(order) * 255).round().byte().numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}
