"""Methods tried on a classifier: each on the repair set, for every label, then compared on the same held-out rows.

The classifier is a network, an estimator or a column of scores; what it offers (gradients, layers, features) decides which methods can run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from equipoise.case.progress import Bars, no_bars
from equipoise.comparison import Comparison, Probes, Provenance, ScoredCandidate, UnitMap, baseline_of, choose, evaluate_rule
from equipoise.data import Cohort, Images, LabelKind, Rows, Scores
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, pick, raise_all
from equipoise.measures import AuditSpec
from equipoise.methods import (
    ALL_AT_ONCE,
    METHODS,
    STANDARD,
    Goal,
    Kind,
    LabelCandidate,
    Note,
    check_cells,
    check_method,
    debias,
    make_settings,
    recalibrated,
    select,
)
from equipoise.models import is_network, predict

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import ChosenOutputs, Predictor

ROUNDING = 1e-9  # gaps and performances that differ by less are equal up to rounding
THUMBNAILS = 24  # of the patients whose score changed most
Methods = Mapping[str, Mapping[str, Any]]  # settings by name
Candidates = dict[str, ScoredCandidate]  # by label


@dataclass(frozen=True, eq=False)
class LabelTask:
    """A classifier and the rows that it is repaired and evaluated on: of one label, or of all labels of a network."""

    model: "nn.Module | Predictor | None"  # None: the rows have their scores
    repair: Rows
    test: Rows
    train: Cohort | None = None

    @property
    def is_network(self) -> bool:
        """Whether it is a network, which is run on its rows; the rows of every other classifier have their scores."""
        return isinstance(self.repair, Cohort)

    @property
    def subject(self) -> dict[str, Any]:
        """The classifier with its rows, as arguments of `debias`."""
        return {"model": self.model, "cohort": self.repair, "train": self.train} if self.is_network else {"model": self.repair}


@dataclass(frozen=True, eq=False)
class Repairable:
    """A classifier to repair: each label with its rows. The labels of one network are also repaired together, by one method."""

    labels: Mapping[str, LabelTask]
    network: LabelTask | None = None  # with several labels, which are its outputs
    outputs: Mapping[str, int | str] | None = None  # of these labels, as given
    chosen: "ChosenOutputs | None" = None

    @classmethod
    def of(
        cls,
        model: "nn.Module | Predictor | None",
        labels: Sequence[str],
        repair: Sequence[Rows],
        test: Sequence[Rows],
        train: Cohort | None = None,
        outputs: Mapping[str, int | str] | None = None,
    ) -> "Repairable":
        """The classifier with the sets of each label; or with one set of all labels, which are then outputs of the network."""
        if not repair[0].several:
            tasks = zip(labels, repair, test, strict=True)
            return cls({label: LabelTask(model, rows, held_out, train) for label, rows, held_out in tasks})
        (rows,), (held_out,) = repair, test
        from equipoise.models import chosen_outputs

        assert isinstance(rows, Cohort)
        network = cast("nn.Module", model)  # only networks have several outputs
        chosen = chosen_outputs(network, rows.inputs, rows.labels, rows.kind, outputs)
        trains = {label: None if train is None else train.labelled(label) for label in rows.labels}
        views = {
            label: LabelTask(chosen.view(at), rows.labelled(label), held_out.labelled(label), trains[label])
            for at, label in enumerate(rows.labels)
        }
        return cls(views, LabelTask(network, rows, held_out, train), outputs, chosen)

    @property
    def first(self) -> LabelTask:
        """The first label."""
        return next(iter(self.labels.values()))

    @property
    def chosen_together(self) -> list[list[str]]:
        """The labels for which one method is chosen: all labels of a network; otherwise each label has its own."""
        return [[label] for label in self.labels] if self.network is None else [list(self.labels)]

    def name_of(self, label: str) -> str:
        """The label, if there are others."""
        return label if len(self.labels) > 1 else ""

    def small_cells(self, goals: Mapping[str, Goal]) -> list[str]:
        """Messages about the cells that a goal needs and that have too few patients."""
        problems: list[str] = []
        for label, task in self.labels.items():
            try:
                check_cells({"the repair set": task.repair, "the test set": task.test}, {"": goals[label]}, label=self.name_of(label))
            except TooFewPatients as error:
                problems += error.problems
        return problems


def check_methods(
    methods: Methods,
    *,
    train: bool = False,
    network: bool = True,
    layers: bool = True,
    features: bool = True,
    labels: Sequence[str] = (),
    kind: LabelKind = LabelKind.LABELS,
) -> None:
    """Raises every reason why methods with these settings cannot run on a classifier that offers this, before anything is run.

    `train` is whether there is a training set; `labels` are the outputs of a network that are repaired together.
    """
    problems = [] if methods else ["no method was given. Name at least one."]
    for name, settings in methods.items():
        try:
            make_settings(pick("method", name, METHODS), settings)
            if labels:
                check_method(name, kind, labels[0])
        except BadInput as error:
            problems += error.problems
            continue
        method = METHODS[name]
        if not network and not method.on_scores:
            able = ", ".join(other for other in METHODS if METHODS[other].on_scores)
            problems.append(
                f"{name} changes a network, and these are scores without one. Use one of: {able}; or give the network with --model"
            )
        elif method.needs_train and not train:
            problems.append(f"{name} trains from scratch and needs a training set: --set repair.train=train.csv (in Python train=)")
        if method.needs_layers and not layers:
            problems.append(
                f"{name} needs the layers of a network, which an exported program no longer has. Give the architecture as file.py:factory."
            )
        if method.kind == Kind.PROBES and not features:
            problems.append(f"{name} reads further columns next to the score. Name them: --set data.features=age (Python: features=[...])")
    raise_all(problems)


def offers(model: object, network: bool, features: bool) -> dict[str, Any]:
    """What a classifier offers to methods, as arguments of `check_methods`; `features` is whether scores have further columns."""
    layers = True
    if network:
        from equipoise.models import ExportedNetwork

        layers = not isinstance(model, ExportedNetwork)
    return {"network": network, "layers": layers, "features": model is not None or features}


def try_methods(
    classifier: Repairable,
    methods: Methods,
    goal: Goal,
    *,
    goals: Mapping[str, Goal] | None = None,
    seed: int = 0,
    budget: float | None = 600.0,
    recalibrate: bool = True,
    force: bool = False,
    title: str | None = None,
    provenance: Provenance = Provenance(),
    probe_draws: int | None = None,
    thumbnails: bool = False,
    bars: Bars = no_bars,
) -> dict[str, Comparison]:
    """The comparison of each label: every method on the repair set, the best by the goal, and the scores of the test set with each.

    `methods` maps a name to its settings. A method that fails is listed in `failures`; if all fail, that is an error. With several outputs
    of a network, one method is chosen for all of them; `goals` sets the goal of single labels. All methods together end within about
    `budget` seconds. Too few patients in a cell that a goal needs are an error before any work, unless `force` is set. The report is called
    `title` (default: the label and the model); with `probe_draws`, it also has probes of the layers with as many resamples.
    """
    first, whole = classifier.first, classifier.network
    labels, kind = ((), LabelKind.LABELS) if whole is None else (whole.repair.labels, whole.repair.kind)
    offered = offers(first.model, first.is_network, isinstance(first.repair, Scores) and first.repair.features is not None)
    check_methods(methods, train=first.train is not None, labels=labels, kind=kind, **offered)
    too_small = classifier.small_cells({label: (goals or {}).get(label, goal) for label in classifier.labels})
    if too_small and not force:
        raise TooFewPatients(*too_small)
    deadline = None if budget is None else time.monotonic() + budget
    repairs, settings = _Repairs(classifier, goal, goals, seed, recalibrate, deadline, bars), AuditSpec(seed=seed)
    comparisons: dict[str, Comparison] = {}
    for together in classifier.chosen_together:
        originals, results, failures = repairs.run(STANDARD, {}, together), [], {}
        for method, own in methods.items():
            try:
                results.append(repairs.run(method, own, together, originals))
            except EquipoiseError as error:
                failures[method] = str(error)
        if not results:
            raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
        candidates = {label: tuple(result[label] for result in results) for label in together}
        best = choose(results)
        for label in together:
            named = f"{label}, {provenance.model}" if title is None else f"{title}: {label}" if classifier.name_of(label) else title
            case = Comparison(originals[label], candidates[label], best, named, label, provenance, settings, failures)
            case = replace(case, together=len(classifier.labels), forced=bool(too_small))
            comparisons[label] = _with_inputs(case, classifier.labels[label], probe_draws, thumbnails, bars)
    return comparisons


def _with_inputs(case: Comparison, task: LabelTask, probe_draws: int | None, thumbnails: bool, bars: Bars) -> Comparison:
    """The comparison with what the inputs of a network show: a simple model, the images that changed most, and probes of the layers."""
    if not isinstance(task.repair, Cohort) or not isinstance(task.test, Cohort):
        return case
    original, chosen = case.original, case.result
    return replace(
        case,
        thumbnails=most_changed(original.test, chosen.test, task.test) if thumbnails else {},
        probes=None if probe_draws is None else _probes(original, chosen, task.test, probe_draws, case.settings.seed, bars),
        baseline=baseline_of(original, chosen, task.test, task.repair, task.train, case.settings),
    )


@dataclass(frozen=True, eq=False)
class _Repairs:
    """Runs methods on the same classifier, rows, goals and budget."""

    classifier: Repairable
    goal: Goal
    goals: Mapping[str, Goal] | None
    seed: int
    recalibrate: bool
    deadline: float | None
    bars: Bars

    def run(self, method: str, settings: Mapping[str, Any], labels: Sequence[str], originals: Candidates | None = None) -> Candidates:
        """The candidate of each of these labels: from one repair of all labels together, or from one repair per label."""
        tasks, network, about = self.classifier.labels, self.classifier.network, METHODS[method]
        jobs: list[tuple[LabelTask, str, dict[str, Any]]]
        # Without originals this is the original itself; argmax leaves it no threshold to choose for a class alone.
        if network is not None and about.labels == ALL_AT_ONCE and (originals is not None or network.repair.kind.argmax):
            goals = {"goal": self.goal} if self.goals is None else {"goals": self.goals, "selection": self.goal.selection}
            jobs = [(network, "", {**goals, "outputs": self.classifier.outputs or {}})]
        else:
            jobs = [(tasks[label], label, {"goal": (self.goals or {}).get(label, self.goal)}) for label in labels]
        candidates = {}
        for task, label, goals in jobs:
            with self.bars(f"{label}, {method}" if label and self.classifier.name_of(label) else method) as step:
                start = time.perf_counter()
                budget = None if self.deadline is None else max(1.0, self.deadline - time.monotonic())
                # Recalibration follows where both sets are at hand to check that no decision changes; cells were checked before.
                limits: dict[str, Any] = {"recalibrate": False, "force": True, "budget": budget, "seed": self.seed, "progress": step}
                result = debias(**task.subject, method=method, **limits, **goals, **settings)
                if self.recalibrate and isinstance(task.repair, Cohort) and isinstance(task.test, Cohort):
                    views: Any = {name: task.model if label else tasks[name].model for name in result.labels}
                    result = recalibrated(result, views, task.repair, also=[task.test])
                seconds = time.perf_counter() - start
            known = originals[label] if label and originals is not None and about.needs_group else None  # the same scores with another rule
            for name, own in ((name or label, own) for name, own in result.labels.items()):
                own = replace(own, model=task.model) if own.rule_only else own  # an estimator is saved with its rule
                candidates[name] = scored(own, tasks[name].repair, tasks[name].test, seconds, self.bars, known)
        return candidates


def scored(
    candidate: LabelCandidate, repair: Rows, test: Rows, seconds: float, bars: Bars, known: ScoredCandidate | None = None
) -> ScoredCandidate:
    """A candidate with its scores on both sets: those of its classifier, or of another candidate with the same one."""
    if known is not None and known.valid is not None:
        return ScoredCandidate(rescored(candidate, known.valid), known.valid, known.test, seconds)
    with bars(f"scores of {candidate.method}") as step:
        valid = predict(candidate.model, repair)
        step(1, 2)
        held_out = predict(candidate.model, test)
    return ScoredCandidate(rescored(candidate, valid), valid, held_out, seconds, unit_maps(candidate.model))


def rescored(candidate: LabelCandidate, scores: Scores) -> LabelCandidate:
    """The candidate, with its chosen step re-evaluated on the scores of the network that is saved.

    During a repair a network may be evaluated in another precision, or in batches that round differently; the final network counts.
    """
    goal, row = candidate.goal, candidate.chosen
    gap, performance = evaluate_rule(candidate.rule, scores, goal)
    recorded = candidate.trace.iloc[row]
    if abs(recorded["gap"] - gap) <= ROUNDING and abs(recorded["performance"] - performance) <= ROUNDING:
        return candidate
    trace = candidate.trace.copy()
    trace.loc[trace.index[row], ["gap", "performance"]] = [gap, performance]
    before = {"gap_before": float(recorded["gap"]), "performance_before": float(recorded["performance"])}
    note = Note("rescored", goal.measure, {**before, "gap": gap, "performance": performance, "of": goal.performance})
    met = candidate.met_in_sample and select(trace.iloc[[row]], goal).met
    why = () if met == candidate.met_in_sample else (Note("final_network_misses"),)
    return replace(candidate, trace=trace, met_in_sample=met, why=(*candidate.why, *why), notes=(*candidate.notes, note))


def unit_maps(model: Any) -> tuple[UnitMap, ...]:
    """For each convolution of images with units switched off, the share of channels that is still on at each position."""
    if not is_network(model):
        return ()
    from torch import nn

    from equipoise.models import MASKED

    masked = [(name, module) for name, module in model.named_modules() if type(module) is MASKED[nn.Conv2d]]
    return tuple(UnitMap(name, module.get_buffer("unit_mask").double().mean(0).cpu().numpy()) for name, module in masked)


def most_changed(before: Scores, after: Scores, cohort: Cohort, count: int = THUMBNAILS) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Empty for a table."""
    if not isinstance(cohort.source, Images) or len(cohort.source.shape) != 4:
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = (cohort.source.gray(order) * 255).round().byte().numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}


def _probes(original: ScoredCandidate, chosen: ScoredCandidate, test: Cohort, draws: int, seed: int, bars: Bars) -> Probes:
    from equipoise.models import encoding

    with bars("probes") as step:
        before = encoding(original.candidate.network, test, draws=draws, seed=seed, progress=step)
    if chosen.test is original.test:  # the same network with another rule
        return Probes(before, before)
    with bars("probes after repair") as step:
        return Probes(before, encoding(chosen.candidate.network, test, draws=draws, seed=seed, progress=step))
