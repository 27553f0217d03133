"""`prepare_repair`: the repair of a case's scores, or of its network or estimator on its rows, as `equipoise debias` runs it.

The prepared repair shows a dry run (`estimate`), or tries the methods (`repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from equipoise import data, models, report
from equipoise.case.case_audit import check_group_names, load_classifier
from equipoise.case.case_file import Case
from equipoise.case.methods_tried import Methods, RepairTask, check_methods, try_methods
from equipoise.case.progress import Bars, counting, no_bars
from equipoise.case.save import ROWS_CHECKED, Saved, Serving, inputs_of, save_all, saved_models
from equipoise.case.schema import PREDICTOR_SCORE
from equipoise.comparison import Comparison, Provenance
from equipoise.data import Cohort, Columns, ReadCohort, Rows
from equipoise.errors import BadInput, UnknownName, collecting, raise_all
from equipoise.methods import METHODS, Kind

if TYPE_CHECKING:
    from equipoise.case.dry_run import RepairEstimate


@dataclass(frozen=True, eq=False)
class Repaired:
    """The comparison of each label on held-out patients; `save` writes a folder to serve."""

    case: Case
    comparisons: Mapping[str, Comparison]  # by label
    serving: Mapping[str, Serving]

    def save(self, folder: str | Path, *, overwrite: bool = False, bars: Bars = no_bars) -> dict[str, Saved]:
        """The files written for each label in the folder: weights, rule, audits, report, cards and checksums."""
        case = self.case
        title = case.report.title or f"{len(case.labels)} {case.data.kind} of {data.without_folders(case.model.load or case.table.name)}"
        how: dict[str, Any] = {"overwrite": overwrite, "title": title, "bars": bars, "made_from": case.to_dict()}
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
        from equipoise.case.dry_run import estimate

        spec = self.case.repair
        return estimate(self.task, self.methods, self.case.label_goals, spec.draws if spec.probe else None, spec.seconds)

    def repair(self, *, bars: Bars = no_bars) -> Repaired:
        """The repair: every method tried, one chosen on the repair set and evaluated on the held-out patients."""
        case = self.case
        found = try_methods(self.task, self.methods, case.label_goals, case.repair, case.report, self.provenance, bars)
        return Repaired(case, found, self.serving)


def methods_of(case: Case) -> dict[str, dict[str, Any]]:
    """The methods of a case with their settings; raises one error with everything wrong with them."""
    names, problems = case.repair.method, list[str]()
    problems += [f"--method {name} was given twice; name each method once" for name in dict.fromkeys(names) if names.count(name) > 1]
    methods: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, given in case.methods.items():
        if name not in methods:
            problems += UnknownName("method with settings, which is not among repair.method (--method):", name, methods).problems
        else:
            methods[name] = dict(given)
    for name in names if not case.repair.group_rules else ():
        if name in METHODS and METHODS[name].needs_group:
            problems.append(f"repair.group_rules = false leaves out rules that need each patient's group; --method {name} is one. Omit it.")
        if name in METHODS and METHODS[name].kind == Kind.OTHERS:
            methods[name]["allow_group"] = False
    together = case.labels if len(case.labels) > 1 and not case.data.score else ()
    with collecting(problems):
        check_methods(methods, train=case.repair.train is not None, labels=together, kind=case.data.kind)
    raise_all(problems)
    return methods


def prepare_repair(
    case: Case, *, arguments: Sequence[str] = (), bars: Bars = no_bars, running: Callable[[models.Code | None], None] | None = None
) -> PreparedRepair:
    """The repair of a case with its classifier loaded, its patients read and divided, and its scores compared with known ones.

    `.estimate()` returns the dry run. `.repair()` tries the methods, chooses one on the repair set and evaluates it on the held-out
    patients; `.save(folder)` of the result writes a folder to serve. `arguments` are the command, for the provenance; `bars` shows progress
    bars, and `running` is called before the code in an exported program is run.

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
    methods = methods_of(case)
    is_network, checkpoint, weight_notes = named is not None and not case.model.is_estimator, None, list[str]()
    code = models.code_of(str(named)) if is_network else None
    model, columns, images, origin = load_classifier(case, code=code, running=running)
    exported = is_network and isinstance(model, models.ExportedNetwork)
    offered: dict[str, Any] = {"network": is_network, "layers": not exported, "features": model is not None or bool(columns.features)}
    check_methods(methods, train=spec.train is not None, **offered)
    if is_network:
        checkpoint, weight_notes = _original_weights(model, case.model.weights)
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
    train = None if spec.train is None else data.read_cohort(spec.train, like_table, images, progress=counting(bars)).cohort
    repair: Sequence[Rows] = rows
    if spec.test is None:
        repair, test = data.hold_out_each(rows, spec.test_fraction, seed=spec.seed)
    else:
        given = read(spec.test, columns.like(rows[0].attributes))
        test = [held_out.with_groups_of(own) for own, held_out in zip(rows, given, strict=True)]
    for repaired, held_out in zip(repair, test, strict=True):  # a label may be unknown in rows where another one is known
        data.check_apart(training=train, repair=repaired, test=held_out)
    file, checks = files.get(table), []
    output: str = case.model.output
    if is_network and len(labels) > 1:
        models.set_output(model, output)
    elif is_network:  # a wrong shape of the output is reported before any work
        own_rows = cast(Cohort, repair[0])
        models.scores_by_label(model, own_rows.take(range(min(2, len(own_rows)))), labels)
        output = models.resolve_output(model, own_rows.inputs, output)
    if file is not None and case.model.check_scores is not None:
        from equipoise.case.score_checks import check_known_scores

        scores = models.scores_by_label(model, file.cohort, labels, output, case.outputs)
        checks = check_known_scores(case, images, model, file.cohort, scores)
    task = RepairTask.of(model, labels, repair, test, train, case.outputs if len(labels) > 1 else None)
    names: dict[str, Any] = {"patient": columns.patient, "id": columns.id, "conflicts": columns.conflicts}
    if not is_network or file is None:
        scored = zip(labels, rows, columns.score or [PREDICTOR_SCORE], strict=True)
        serving = {label: Serving(inputs_of(own, **names, score=column, logits=columns.logits)) for label, own, column in scored}
    else:
        if images.folder is not None:
            names |= {"image_column": images.column, "view_column": columns.view or ("view" if images.from_headers else None)}
        inputs, sample = inputs_of(file.cohort, **names), cast(Cohort, test[0]).inputs[:ROWS_CHECKED]
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
    cohort, called = None if file is None else file.cohort, named or f"scores in {table.name}"
    read_files = (table, case.model.weights, spec.train, spec.test, case.model.check_scores, named if case.model.is_estimator else None)
    read_paths = [Path(path) for path in read_files if path is not None]
    provenance = Provenance.now(arguments=arguments, model=called, seed=spec.seed, files=read_paths, cohort=cohort, limits=limits)
    return PreparedRepair(case, methods, task, serving, provenance, {"left_out": []} if file is None else file.to_dict(), notes)


def _original_weights(network: Any, weights: Path | None) -> tuple[models.Checkpoint | None, list[str]]:
    """The original weights as in their file, and a note if the repaired weights cannot be written in the same format."""
    if weights is None:
        while isinstance(network, (models.OneOutput, models.HuggingFaceNetwork)):
            network = network.inner
        return models.Checkpoint(models.weights_of(network)), []
    checkpoint = models.read_checkpoint(weights)
    try:
        models.state_like(checkpoint.state, network)
    except BadInput as error:
        return None, [f"the weights are written under the network's own keys, not under those of the original file: {error.problems[0]}"]
    return checkpoint, []
