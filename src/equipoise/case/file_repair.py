"""`prepare_file`: the repair of scores in a file, or of a network or estimator on its rows, as `equipoise debias` runs it.

The prepared repair shows a dry run (`estimate`), or tries the methods (`repair`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from equipoise.case.case_spec import CaseSpec
from equipoise.case.dry_run import RepairEstimate, estimate
from equipoise.case.file_audit import check_group_names, load_classifier
from equipoise.case.methods_tried import Methods, Repairable, check_methods, offers, try_methods
from equipoise.case.progress import Bars, counting, no_bars
from equipoise.case.save import Saved, save_all
from equipoise.case.schema import PREDICTOR_SCORE
from equipoise.case.score_checks import check_known_scores
from equipoise.case.serving import ROWS_CHECKED, Serving, inputs_of, original_weights, saved_models
from equipoise.comparison import Comparison, Provenance
from equipoise.data import (
    Cohort,
    Columns,
    ReadCohort,
    Rows,
    check_apart,
    conflicts_in,
    hold_out_each,
    read_cohort,
    read_scores,
    same_groups,
    without_folders,
)
from equipoise.errors import UnknownName, collecting, raise_all
from equipoise.methods import METHODS
from equipoise.report import input_words, reading_words, varying_words

if TYPE_CHECKING:
    from equipoise.models import Code


@dataclass(frozen=True, eq=False)
class Repaired:
    """The comparison of each label on held-out patients; `save` writes a folder to serve."""

    case: CaseSpec
    comparisons: Mapping[str, Comparison]  # by label
    serving: Mapping[str, Serving]

    def save(self, folder: str | Path, *, overwrite: bool = False, bars: Bars = no_bars) -> dict[str, Saved]:
        """The files written for each label in the folder: weights, rule, audits, report, cards and checksums."""
        case = self.case
        title = case.report.title or f"{len(case.labels)} {case.data.kind} of {without_folders(case.model.load or case.table.name)}"
        how: dict[str, Any] = {"overwrite": overwrite, "title": title, "bars": bars, "made_from": case.to_dict()}
        return save_all(self.comparisons, Path(folder), self.serving, case.report, **how)


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A classifier and its patients, ready for the repair."""

    case: CaseSpec
    methods: Methods
    classifier: Repairable
    serving: Mapping[str, Serving]  # by label
    provenance: Provenance
    left_out: Mapping[str, object]  # rows and images left out
    notes: Sequence[str]  # on the rows and the classifier, in words

    def estimate(self) -> RepairEstimate:
        """The dry run: the patients of each set, the work of each method, and about how long it would take."""
        spec = self.case.repair
        return estimate(self.classifier, self.methods, self.case.common_goal, spec.draws if spec.probe else None, spec.seconds)

    def repair(self, *, bars: Bars = no_bars) -> Repaired:
        """The repair: every method tried, one chosen on the repair set and evaluated on the held-out patients."""
        case, spec = self.case, self.case.repair
        comparisons = try_methods(
            self.classifier,
            self.methods,
            case.common_goal,
            goals=case.label_goals,
            seed=spec.seed,
            budget=spec.seconds,
            recalibrate=spec.recalibrate,
            force=spec.force,
            title=case.report.title,
            provenance=self.provenance,
            probe_draws=spec.draws if spec.probe else None,
            thumbnails=case.report.thumbnails,
            bars=bars,
        )
        return Repaired(case, comparisons, self.serving)


def methods_of(case: CaseSpec) -> dict[str, dict[str, Any]]:
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
        if name in METHODS and METHODS[name].runs_others:
            methods[name]["allow_group"] = False
    together = case.labels if len(case.labels) > 1 and not case.data.score else ()
    with collecting(problems):
        check_methods(methods, train=case.repair.train is not None, labels=together, kind=case.data.kind)
    raise_all(problems)
    return methods


def prepare_file(
    case: CaseSpec, *, arguments: Sequence[str] = (), bars: Bars = no_bars, running: "Callable[[Code | None], None] | None" = None
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
    >>> prepared = prepare_file(CaseSpec(data=data, goal={"max_gap": 0.05}, repair={"method": "group-thresholds"}))
    >>> [step.method for step in prepared.estimate().methods]
    ['standard', 'group-thresholds']
    >>> repaired = prepared.repair()
    >>> repaired.comparisons["sick"].result.name, "report.html" in repaired.save(folder / "rule")["sick"].files
    ('group-thresholds', True)
    """
    case = case.with_pairs()
    labels, table, spec, named = case.labels, case.table, case.repair, case.model.load
    methods = methods_of(case)
    is_network, code, checkpoint, weight_notes = named is not None and not case.model.is_estimator, None, None, list[str]()
    if named is not None:  # torch is imported for a model only
        from equipoise.models import code_of, scores_by_label

        code = code_of(named) if is_network else None
    model, columns, images, origin = load_classifier(case, code=code, running=running)
    check_methods(methods, train=spec.train is not None, **offers(model, is_network, bool(columns.features)))
    if is_network:
        checkpoint, weight_notes = original_weights(model, case.model.weights)
    files: dict[Path, ReadCohort] = {}

    def read(path: Path, how: Columns) -> list[Rows]:
        """The rows of a file: one set with all outputs of a network, otherwise the scores of each label."""
        if model is None:
            return list(read_scores(path, how).values())
        files[path] = read_cohort(path, how, images, progress=counting(bars))
        return [files[path].cohort] if is_network else list(scores_by_label(model, files[path].cohort, labels).values())

    rows = read(table, columns)
    check_group_names(case.report.words, rows[0])
    like_table = columns.with_bins_of(rows[0].attributes)
    train = None if spec.train is None else read_cohort(spec.train, like_table, images, progress=counting(bars)).cohort
    repair, test = _sets(case, rows, lambda path: read(path, columns.like(rows[0].attributes)))
    for repaired, held_out in zip(repair, test, strict=True):  # a label may be unknown in rows where another one is known
        check_apart(training=train, repair=repaired, test=held_out)
    output = _output(case, model, cast(Cohort, repair[0])) if is_network else case.model.output
    file = files.get(table)
    checks = []
    if file is not None and case.model.check_scores is not None:
        scores = scores_by_label(model, file.cohort, labels, output, case.outputs)
        checks = check_known_scores(case, images, model, file.cohort, scores)
    classifier = Repairable.of(model, labels, repair, test, train, case.outputs if len(labels) > 1 else None)
    names: dict[str, Any] = {"patient": columns.patient, "id": columns.id, "conflicts": columns.conflicts}
    if not is_network or file is None:
        scored = zip(labels, rows, columns.score or [PREDICTOR_SCORE], strict=True)
        serving = {label: Serving(inputs_of(own, **names, score=column, logits=columns.logits)) for label, own, column in scored}
    else:
        if images.folder is not None:
            names |= {"image_column": images.column, "view_column": columns.view or ("view" if images.from_headers else None)}
        inputs, sample = inputs_of(file.cohort, **names), cast(Cohort, test[0]).inputs[:ROWS_CHECKED]
        models = saved_models(classifier.chosen, labels, str(named), code, output, case.output_name)
        serving = {label: Serving(inputs, own, sample, checkpoint) for label, own in models.items()}
    limits, notes = _notes(file, rows[0], weight_notes, checks, origin)
    cohort, called = None if file is None else file.cohort, named or f"scores in {table.name}"
    provenance = Provenance.now(arguments=arguments, model=called, seed=spec.seed, files=_files(case), cohort=cohort, limits=limits)
    return PreparedRepair(case, methods, classifier, serving, provenance, {"left_out": []} if file is None else file.to_dict(), notes)


def _files(case: CaseSpec) -> list[Path]:
    """The files that are read."""
    model = case.model
    estimator = model.load if model.is_estimator else None
    files = (case.table, model.weights, case.repair.train, case.repair.test, model.check_scores, estimator)
    return [Path(file) for file in files if file is not None]


def _sets(case: CaseSpec, rows: Sequence[Rows], read: Callable[[Path], Sequence[Rows]]) -> tuple[Sequence[Rows], Sequence[Rows]]:
    """The repair sets and the test sets of the same rows: those of a file, or held out."""
    spec = case.repair
    if spec.test is not None:
        return rows, [same_groups(own, held_out) for own, held_out in zip(rows, read(spec.test), strict=True)]
    return hold_out_each(rows, spec.test_fraction, seed=spec.seed)


def _output(case: CaseSpec, network: Any, repair: Cohort) -> str:
    """The type of the network's output, logit or probability, if known; wrong shapes are reported before any work."""
    from equipoise.models import resolve_output, scores_by_label, set_output

    output = case.model.output
    if len(case.labels) > 1:
        set_output(network, output)
        return output
    scores_by_label(network, repair.take(range(min(2, len(repair)))), case.labels)
    return resolve_output(network, repair.inputs, output)


def _notes(
    file: ReadCohort | None, rows: Rows, weight_notes: Sequence[str], checks: Sequence[object], origin: str
) -> tuple[list[str], list[str]]:
    """The limits of the repair for its provenance, and the notes for the terminal, which also name images left out.

    Provenance holds words, which belong to the room that presents.
    """
    if file is None:
        varying = list(map(varying_words, conflicts_in(rows.attributes, rows.patients)))
        return [*varying, "the rule decides from scores; the classifier that makes them was not examined"], varying
    inputs = input_words(checks, file.cohort.source.to_dict(), origin)
    limits, notes = ([*reading_words(file, names=names), *weight_notes] for names in (False, True))
    if rows.several:
        listed = f"{len(rows.labels)} {rows.kind} at once: {', '.join(rows.labels)}"
        limits.append(f"the network was repaired for {listed}; each has its own report")
    return [*limits, *inputs], [*notes, *inputs]
