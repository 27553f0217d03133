"""`prepare_repair`: the repair of a case's scores, or of its network or estimator on its rows, as `equipoise debias` runs it.

The prepared repair shows a dry run (`estimate`), or tries the methods (`repair`): each on the repair set, for every label, then compared on
the same held-out rows. What the classifier offers (gradients, layers, features) decides which methods can run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise import comparison, data, methods, models, report
from equipoise.case.audit import Bars, check_group_names, counting, load_classifier, no_bars
from equipoise.case.case import CROSS, Case, RepairSpec
from equipoise.case.save import ROWS_CHECKED, Saved, Serving, inputs_of, save_all, saved_models
from equipoise.case.schema import PREDICTOR_SCORE
from equipoise.comparison import Comparison, Provenance, ScoredCandidate
from equipoise.data import Cohort, Columns, FloatArray, ReadCohort, Rows, Scores
from equipoise.disk import without_folders
from equipoise.errors import BadInput, EquipoiseError, TooFewPatients, UnknownName, collecting, raise_all
from equipoise.measures import AuditSpec
from equipoise.methods import METHODS, STANDARD, Goal, Kind, LabelCandidate, Speed, cross_fitting_parts, make_settings
from equipoise.report import ReportSpec

if TYPE_CHECKING:
    from torch import nn

RESCORE_ROUNDING = 1e-9  # gaps and performances that differ by less are equal up to rounding
THUMBNAILS = 24  # of the patients whose score changed most
PROBE_ROWS = {"images": 128, "table": 2000}  # rows to time the probes on; with fewer, the time does not grow with the rows
WARM_UP, TIMED_RESAMPLES = 32, 20  # rows of the first run, which loads libraries, and resamples to time
Methods = Mapping[str, Mapping[str, Any]]  # settings by name


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


@dataclass(frozen=True, eq=False)
class Repaired:
    """The comparison of each label on held-out patients; `save` writes a folder to serve."""

    case: Case
    comparisons: Mapping[str, Comparison]  # by label
    serving: Mapping[str, Serving]

    def choose(self, name: str, instead_of: str = "") -> Repaired:
        """The repair with another candidate taken for every label, as it was fitted (see `Comparison.choose`)."""
        return replace(self, comparisons={label: own.choose(name, instead_of) for label, own in self.comparisons.items()})

    def save(self, folder: str | Path, *, overwrite: bool = False, keep: bool = False, bars: Bars = no_bars) -> dict[str, Saved]:
        """The files written for each label in the folder: weights, rule, audits, report, cards and checksums.

        With `keep`, what the folder held is kept in it, and can be chosen again.
        """
        case = self.case
        title = case.report.title or f"{len(case.labels)} {case.data.kind} of {without_folders(case.model.load or case.table.name)}"
        how: dict[str, Any] = {"overwrite": overwrite or keep, "keep": keep, "title": title, "bars": bars, "made_from": case.to_dict()}
        return save_all(self.comparisons, Path(folder), self.serving, case.report, **how)


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A classifier and its patients, ready for the repair."""

    case: Case
    methods: Methods
    task: RepairTask
    serving: Mapping[str, Serving]  # by label
    provenance: Provenance
    left_out: Mapping[str, object]  # rows and images left out
    notes: Sequence[str]  # on the rows and the classifier, in words

    def estimate(self) -> RepairEstimate:
        """The dry run: the patients of each set, the work of each method, and about how long it would take."""
        spec = self.case.repair
        return estimate_repair(self.task, self.methods, self.case.label_goals, spec.draws if spec.probe else None, spec.seconds)

    def original(self, *, bars: Bars = no_bars) -> Repaired:
        """The original alone, from which rules for its scores can be chosen: "level up" (see `Comparison.choose`)."""
        return replace(self, methods={STANDARD: {}}).repair(bars=bars)

    def repair(self, *, bars: Bars = no_bars) -> Repaired:
        """The repair: every method tried, one chosen on the repair set and evaluated on the held-out patients."""
        case = self.case
        found = try_methods(self.task, self.methods, case.label_goals, case.repair, case.report, self.provenance, bars, case.audit_spec)
        return Repaired(case, found, self.serving)


def methods_of(case: Case) -> dict[str, dict[str, Any]]:
    """The methods of a case with their settings; raises one error with everything wrong with them."""
    names, problems, model = case.repair.method, list[str](), case.model
    problems += [f"--method {name} was given twice; name each method once" for name in dict.fromkeys(names) if names.count(name) > 1]
    asked: dict[str, dict[str, Any]] = {name: dict(case.methods.get(name, {})) for name in names}
    for name in case.methods:
        if name not in asked:
            problems += UnknownName("method with settings, which is not among repair.method (--method):", name, asked).problems
    for name in names if not case.repair.group_rules else ():
        if name in METHODS and METHODS[name].needs_group:
            problems.append(f"repair.group_rules = false leaves out rules that need each patient's group; --method {name} is one. Omit it.")
        if name in METHODS and METHODS[name].kind == Kind.OTHERS:
            asked[name]["allow_group"] = False
    offered: dict[str, Any] = {"network": model.load is not None and not model.is_estimator, "kind": case.data.kind}
    offered |= {"features": model.load is not None or bool(case.data.features), "train": case.data.train is not None}
    with collecting(problems):
        check_methods(asked, **offered, labels=case.labels if len(case.labels) > 1 and not case.data.score else ())
    raise_all(problems)
    return asked


def prepare_repair(
    case: Case, *, arguments: Sequence[str] = (), bars: Bars = no_bars, running: Callable[[models.Code | None], None] | None = None
) -> PreparedRepair:
    """The repair of a case with its classifier loaded, its patients read and divided, and its scores compared with known ones.

    `.estimate()` returns the dry run. `.repair()` tries the methods, chooses one on the repair set and evaluates it on the held-out
    patients; `.save(folder)` of the result writes a folder to serve.

    - `case`: data, model, goal and methods.
    - `arguments`: the command, for the provenance.
    - `bars`, `running`: as in `audit_case`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = "".join(f"{k % 2},{(3 * k) % 10 / 10},{'FM'[k // 2 % 2]}\\n" for k in range(400))
    >>> _ = (folder / "scores.csv").write_text("sick,p,sex\\n" + rows)
    >>> data = {"table": folder / "scores.csv", "label": "sick", "score": "p", "group": "sex", "reference": "M"}
    >>> prepared = prepare_repair(Case(data=data, goal={"max_gap": 0.05}, repair={"method": "group-thresholds"}))
    >>> [step.method for step in prepared.estimate().methods]
    ['standard', 'group-thresholds']
    >>> repaired = prepared.repair()
    >>> repaired.comparisons["sick"].result.name, "report.html" in repaired.save(folder / "rule")["sick"].files
    ('group-thresholds', True)
    """
    case = case.with_pairs()
    labels, table, spec, named = case.labels, case.table, case.repair, case.model.load
    asked = methods_of(case)
    is_network, checkpoint, weight_notes = named is not None and not case.model.is_estimator, None, list[str]()
    code = models.code_of(str(named)) if is_network else None
    model, columns, images, origin = load_classifier(case, code=code, running=running)
    if is_network:
        check_methods(asked, train=case.data.train is not None, layers=not isinstance(model, models.ExportedNetwork))
        checkpoint, reason = models.original_weights(model, case.model.weights)
        weight_notes = [f"the weights are written under the network's own keys, not under the original file's: {reason}"] if reason else []
    files: dict[Path, ReadCohort] = {}

    def read(path: Path, how: Columns) -> list[Rows]:
        """The rows of a file: one set with all outputs of a network, otherwise the scores of each label."""
        if model is None:
            return list(data.read_scores(path, how).values())
        files[path] = data.read_cohort(path, how, images, progress=counting(bars))
        return [files[path].cohort] if is_network else list(models.scores_by_label(model, files[path].cohort, labels).values())

    rows = read(table, columns)
    check_group_names(case.report.words, rows[0])
    like_table = columns.with_bins_of(rows[0].attributes)
    train = None if case.data.train is None else data.read_cohort(case.data.train, like_table, images, progress=counting(bars)).cohort
    repair: Sequence[Rows] = rows
    later = None if spec.test_after is None else data.LaterPatients.of(rows, spec.test_after)
    if later is not None:
        repair, test = later.parts(rows)
    elif spec.test == CROSS:
        test = rows
    elif spec.test is None:
        repair, test = data.hold_out_each(rows, spec.test_fraction, seed=spec.seed)
    else:
        given = read(Path(spec.test), columns.like(rows[0].attributes))
        test = [held_out.with_groups_of(own) for own, held_out in zip(rows, given, strict=True)]
    for repaired, held_out in zip(repair, test, strict=True):  # a label may be unknown in rows where another one is known
        data.check_apart(training=train, repair=repaired, **({} if spec.test == CROSS else {"test": held_out}))
    file, checks = files.get(table), []
    output: str = case.model.output
    if is_network:
        output = models.resolve_output(model, cast(Cohort, repair[0]), output)
    if file is not None and case.model.check_scores is not None:
        from equipoise.case.score_checks import check_known_scores

        scores = models.scores_by_label(model, file.cohort, labels, output, case.outputs)
        checks = check_known_scores(case, images, model, file.cohort, scores)
    task = RepairTask.of(model, labels, repair, test, train, case.outputs if len(labels) > 1 else None)
    if not is_network or file is None:
        scored = zip(labels, rows, columns.score or [PREDICTOR_SCORE], strict=True)
        serving = {label: Serving(inputs_of(own, columns, score=column)) for label, own, column in scored}
    else:
        names = {} if images.folder is None else {"image_column": images.column}
        names |= {"view": "view"} if images.from_headers and not columns.view else {}
        inputs, sample = inputs_of(file.cohort, columns, **names), cast(Cohort, test[0]).inputs[:ROWS_CHECKED]
        chosen = None if task.network is None else cast("models.ChosenOutputs", task.network.model)
        saved = saved_models(chosen, labels, str(named), code, output, case.output_name)
        serving = {label: Serving(inputs, own, sample, checkpoint) for label, own in saved.items()}
    # The limits of the repair for its provenance, in words; the notes for the terminal also name images left out.
    if file is None:
        notes = list(map(report.varying_words, rows[0].conflicts))
        limits = [*notes, "the rule decides from scores; the classifier that makes them was not examined"]
    else:
        about_inputs = report.input_words(checks, file.cohort.source.to_dict(), origin)
        limits, notes = ([*report.reading_words(file, names=named_too), *weight_notes] for named_too in (False, True))
        if task.network is not None:
            listed = f"{len(labels)} {rows[0].kind} at once: {', '.join(rows[0].labels)}"
            limits.append(f"the network was repaired for {listed}; each has its own report")
        limits, notes = [*limits, *about_inputs], [*notes, *about_inputs]
    limits += [] if later is None else [report.later_patients_words(later)]
    if spec.test == CROSS:
        crossed = report.cross_test_words(methods.OUTER_FOLDS)
        limits, notes = [*limits, crossed], [*notes, crossed]
    cohort, called = None if file is None else file.cohort, named or f"scores in {table.name}"
    read_files = (
        table,
        case.model.weights,
        case.data.train,
        None if spec.test == CROSS else spec.test,
        case.model.check_scores,
        named if case.model.is_estimator else None,
    )
    read_paths = [Path(path) for path in read_files if path is not None]
    provenance = Provenance.now(arguments=arguments, model=called, seed=spec.seed, files=read_paths, cohort=cohort, limits=limits)
    return PreparedRepair(case, asked, task, serving, provenance, {"left_out": []} if file is None else file.to_dict(), notes)


def check_methods(asked: Methods, **offered: Any) -> None:
    """Raises every reason why methods with these settings cannot run on a classifier that offers this (see `methods.check_method`)."""
    problems = [] if asked else ["no method was given. Name at least one."]
    for name, settings in asked.items():
        with collecting(problems):
            methods.check_method(name, settings, **offered)
    raise_all(problems)


# The methods, each tried and scored on both sets


def try_methods(
    task: RepairTask,
    asked: Methods,
    goals: Mapping[str, Goal],
    spec: RepairSpec = RepairSpec(),
    report: ReportSpec = ReportSpec(),
    provenance: comparison.Provenance | None = None,
    bars: Bars = no_bars,
    audit: AuditSpec = AuditSpec(),
) -> dict[str, Comparison]:
    """The comparison of each label: every method on the repair set, the best by the goal, and the scores of the test set with each.

    `asked` maps a method to its settings; that they can run was checked before (`check_methods`). A method that fails is listed in
    `failures`; if all fail, that is an error. `goals` are by label. With several outputs of a network, one method is chosen for all of
    them. Too few patients in a cell that a goal needs are an error before any work, unless `spec.force` is set. `audit` has the family of
    the audits before and after.
    """
    too_small, several = list[str](), len(task.labels) > 1
    for label, job in task.labels.items():
        with collecting(too_small):
            sets = {"the repair set": job.repair, "the test set": job.test}
            methods.check_cells(sets, {"": goals[label]}, label=label if several else "")
    if too_small and not spec.force:
        raise TooFewPatients(*too_small)
    deadline = None if spec.seconds is None else time.monotonic() + spec.seconds
    provenance, whole, comparisons = provenance or comparison.Provenance(), task.network, dict[str, Comparison]()
    # One method is chosen for all labels of a network; otherwise each label has its own.
    for together in [[label] for label in task.labels] if whole is None else [list(task.labels)]:
        tried: dict[str, dict[str, ScoredCandidate]] = {name: {} for name in (STANDARD, *asked)}
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
            named = f"{label}, " if label and several else ""
            how = {name: asked.get(name, {}) for name in names}
            limits: dict[str, Any] = {"seed": spec.seed, "train": job.train, "deadline": deadline}
            limits["bars"] = lambda name, named=named: bars(named + name)
            run = methods.run_methods(how, cast("nn.Module", job.model) if job.is_network else None, job.repair, job_goals, **limits)
            if STANDARD in run.errors:
                raise run.errors[STANDARD]
            failures |= {name: str(error) for name, error in run.errors.items()}
            for name, result in run.candidates.items():
                start = time.perf_counter()
                if spec.test == CROSS:
                    with bars(f"{named}{name}, judged by nested cross-fitting") as step:
                        network, given = cast("nn.Module", job.model) if job.is_network else None, how[name]
                        result = methods.cross_test(result, network, job.repair, job_goals, settings=given, train=job.train, progress=step)
                # The same scores with another rule are not computed again.
                known = tried[STANDARD].get(label) if name != STANDARD and METHODS[name].needs_group else None
                try:
                    if spec.recalibrate and job.is_network:  # both sets are at hand to check that no decision changes
                        views: Any = {own: job.model if label else task.labels[own].model for own in result.labels}
                        result = methods.recalibrate_result(result, views, cast(Cohort, job.repair), also=[cast(Cohort, job.test)])
                    seconds = run.seconds[name] + time.perf_counter() - start
                    for own_label, own in result.labels.items():
                        own = replace(own, model=job.model) if own.rule_only else own  # an estimator is saved with its rule
                        job_of, units = task.labels[own_label or label], dict[str, FloatArray]()
                        if known is not None and known.valid is not None:
                            valid, held_out = known.valid, known.test
                        else:
                            with bars(f"scores of {own.method}") as step:
                                valid = models.predict(own.model, job_of.repair)
                                step(1, 2)
                                held_out = models.predict(own.model, job_of.test)
                            units = models.unit_maps(own.network) if job_of.is_network else {}
                        tried[name][own_label or label] = ScoredCandidate(rescored(own, valid), valid, held_out, seconds, units)
                except EquipoiseError as error:
                    if name == STANDARD:
                        raise
                    failures[name] = str(error)
        results = [candidates for name, candidates in tried.items() if name in asked and name not in failures]
        if not results:
            raise BadInput(*(f"{method}: {reason}" for method, reason in failures.items()))
        originals, best = tried[STANDARD], comparison.choose_candidate(results)
        for label in together:
            own_task, shown = task.labels[label], {}
            if own_task.is_network:
                shown = _shown_inputs(originals[label], results[best][label], own_task, spec, report, bars)
            title = f"{report.title}: {label}" if several else report.title
            comparisons[label] = Comparison(
                (originals[label], *(result[label] for result in results)),
                best,
                title=f"{label}, {provenance.model}" if report.title is None else str(title),
                label=label,
                provenance=provenance,
                settings=AuditSpec(seed=spec.seed, primary=audit.primary, intersections=audit.intersections),
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
        probes = {"before": before, "after": after}
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


def most_changed(before: data.Scores, after: data.Scores, cohort: Cohort, count: int = THUMBNAILS) -> dict[object, npt.NDArray[np.uint8]]:
    """The images of the patients whose score changed most, by id, as 8-bit gray (h, w). Empty for a table."""
    if not isinstance(cohort.source, data.Images) or len(cohort.source.shape) != 4:
        return {}
    order = np.argsort(-np.abs(after.score - before.score), kind="stable")[:count]
    pixels = (cohort.source.gray(order) * 255).round().byte().numpy()
    return {cohort.ids[row]: image for row, image in zip(order, pixels, strict=True)}


# The dry run: the patients in each set, the work of each method, and about how long it would take; nothing is repaired


@dataclass(frozen=True)
class MethodEstimate:
    """The work of one method in words, and the number of rows through the network, counted as passes without gradients."""

    method: str
    what: str
    rows: int | None  # None: unknown
    seconds: float | None


@dataclass(frozen=True, eq=False)
class RepairEstimate:
    """The patients of each set and the work of each method, estimated."""

    sets: pd.DataFrame  # set, group, label, rows, patients (None without patient ids)
    methods: tuple[MethodEstimate, ...]
    goals: Mapping[str, Goal]  # by label
    probes: MethodEstimate | None = None  # of the layers, if they are requested for the report

    @property
    def seconds(self) -> float | None:
        """The estimated time of everything, at most; None if the time of a method is unknown."""
        parts = [*self.methods, *([] if self.probes is None else [self.probes])]
        seconds = [part.seconds for part in parts if part.seconds is not None]
        return float(sum(seconds)) if len(seconds) == len(parts) else None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        probes = {} if self.probes is None else {"probes": {"what": self.probes.what, "seconds": self.probes.seconds}}
        return {
            "schema": "equipoise.dry_run",
            "schema_version": 1,
            "goal": "; ".join(dict.fromkeys(map(str, self.goals.values()))),
            "sets": self.sets.astype(object).where(self.sets.notna(), None).to_dict("records"),
            "methods": [asdict(method) for method in self.methods],
            **probes,
            "seconds": self.seconds,
        }


def estimate_repair(
    task: RepairTask, methods: Methods, goals: Mapping[str, Goal], probe_draws: int | None = None, budget: float | None = None
) -> RepairEstimate:
    """The work of `try_methods` with these methods, timed on a few rows. With `probe_draws` probes of the layers are included.

    All methods together end within `budget` seconds, if it is given: `auto` starts no further method, and fine-tuning ends with the steps
    that it has made. Rules and probes always run to their end. With several labels, the first is timed: a method that repairs all labels
    of a network together takes one run, with one evaluation per label; any other method takes one run per label.
    """
    labels, (name_of_first, first), counts = len(task.labels), next(iter(task.labels.items())), []
    network, goal = cast(Any, first.model) if first.is_network else None, goals[name_of_first]
    for name in ("repair", "test", "train"):
        for label, own in task.labels.items():
            if (rows := getattr(own, name)) is not None:
                values = [f"{label}: {y}" for y in rows.y] if labels > 1 else rows.y
                frame = pd.DataFrame({"group": pd.Series(rows.groups).fillna("(missing)"), "label": values})
                frame["patient"] = range(len(rows)) if rows.patients is None else rows.patients
                of_set = frame.groupby(["group", "label"])["patient"].agg(rows="size", patients="nunique").reset_index()
                of_set["patients"] = of_set["patients"].astype(object) if rows.patients is not None else None
                of_set.insert(0, "set", name)
                counts.append(of_set)
    speed = Speed.measured(network, first.repair, goal, first.train, 1 if network is None else labels)
    estimates, remaining = [], budget
    for name, settings in {STANDARD: {}, **methods}.items():
        work, method = speed.work(name, settings), METHODS[name]
        if network is None:  # the scores of each label, timed on those of the first
            scores, total = cast(Scores, first.repair), 0.0
            for rule in make_settings(name, settings).order(scores) if method.kind == Kind.OTHERS else [name]:
                with suppress(EquipoiseError) if method.kind == Kind.OTHERS else nullcontext():  # auto leaves it out
                    total += labels * _fit_seconds(rule, scores, speed, settings if rule == name else {})
            what = f"{labels} runs, one per label, of: {work.what}" if labels > 1 else work.what
            limited = min(total, budget) if budget is not None and method.kind == Kind.OTHERS else total
            estimates.append(MethodEstimate(name, what, None if work.rows is None else round(labels * work.rows), limited))
            continue
        scored_rows = len(first.repair) + len(first.test) if not method.needs_group else 0  # for the report
        rows = None if work.rows is None else round(work.rows + scored_rows)
        seconds = speed.seconds(work, scored_rows)
        if remaining is not None:
            scoring = scored_rows * speed.per_row
            if method.kind == Kind.OTHERS or method.kind == Kind.STEPS:
                seconds = remaining + scoring if seconds is None else min(seconds, remaining + scoring)
            remaining -= 0.0 if seconds is None or name == STANDARD else min(remaining, max(0.0, seconds - scoring))
        estimates.append(MethodEstimate(name, work.what, rows, seconds))
    probes = None
    if probe_draws is not None and network is not None:
        seconds = 2 * seconds_to_probe(network, cast(Cohort, first.test), probe_draws)
        probes = MethodEstimate("probes", "probes of the group in every layer, before and after", None, seconds)
    return RepairEstimate(pd.concat(counts, ignore_index=True), tuple(estimates), goals, probes)


def _fit_seconds(name: str, scores: Scores, speed: Speed, settings: Mapping[str, Any]) -> float:
    """Seconds of a method with cross-fitted selection: one fit of a rule is timed; methods of other kinds have a cost model."""
    method, goal = METHODS[name], speed.goal
    if method.kind != Kind.RULE:
        return speed.seconds(speed.work(name, settings)) or 0.0
    start = time.perf_counter()
    method.run(scores, goal.for_steps(), make_settings(name, settings)).grid()
    fits = 1 if goal.selection == "paper" or not method.selects else 1 + cross_fitting_parts(method, len(scores))
    return (time.perf_counter() - start) * fits


def seconds_to_probe(model: Any, cohort: Cohort, draws: int) -> float:
    """Seconds to predict the groups from every layer of a network, with `draws` resamples for the intervals, timed on a few rows."""
    count = min(len(cohort), PROBE_ROWS["images" if len(cohort.inputs.shape) > 2 else "table"])
    sample = cohort.take(np.linspace(0, len(cohort) - 1, count).astype(int))  # not the first rows, which may all be of one group
    models.encoding(model, sample.take(range(min(count, WARM_UP))), draws=2)
    timings = []
    for resamples in (2, 2 + TIMED_RESAMPLES):
        start = time.perf_counter()
        models.encoding(model, sample, draws=resamples)
        timings.append(time.perf_counter() - start)
    per_draw = max(0.0, timings[1] - timings[0]) / TIMED_RESAMPLES
    return (timings[0] + draws * per_draw) * len(cohort) / count
