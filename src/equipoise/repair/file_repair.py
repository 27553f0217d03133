"""`prepare_file`: the repair of scores in a file, or of a network or estimator on its rows, as `equipoise debias` runs it.

The prepared repair shows a dry run (`estimate`), or tries the methods and writes the folder to serve (`run`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torch import nn

from equipoise.data import (
    Cohort,
    ReadCohort,
    ReadOptions,
    Rows,
    Scores,
    check_apart,
    conflicts_in,
    hold_out,
    hold_out_scores,
    read_cohort,
    read_scores,
    same_groups,
    without_folders,
)
from equipoise.errors import BadInput
from equipoise.methods import Goal
from equipoise.models import Code, code_of, resolve_output, scores_by_label, set_output
from equipoise.presenting import presenter
from equipoise.repair.compare_models import Comparison
from equipoise.repair.dry_run import RepairEstimate, estimate
from equipoise.repair.file_source import Source, check_group_names, check_known, load_classifier
from equipoise.repair.folder import check_folder
from equipoise.repair.methods_tried import Methods, Repairable, check_methods, offers, try_methods
from equipoise.repair.progress import Bars, counting, no_bars
from equipoise.repair.save import Options, Saved, save_all
from equipoise.repair.saved_predictor import PREDICTOR_SCORE
from equipoise.repair.schema import Provenance
from equipoise.repair.serving import ROWS_CHECKED, Serving, inputs_of, original_weights, saved_model, saved_models


@dataclass(frozen=True)
class RepairRequest:
    """The repair of the classifier of a source: the goal, the methods to try, the patients and the files to write."""

    source: Source
    goal: Goal = field(default_factory=Goal)
    methods: Methods = field(default_factory=lambda: {"auto": {}})  # the settings of each method
    goals: Mapping[str, Goal] | None = None  # by label, where a label has its own
    test: Path | None = None  # a file with the test set; default: `test_fraction` of the patients are held out
    test_fraction: float = 0.3
    train: Path | None = None  # a file with the training set, for methods that train from scratch
    seed: int = 0
    budget: float | None = 600.0  # seconds for all methods together
    recalibrate: bool = True
    force: bool = False  # continue with too few patients in a cell
    title: str | None = None  # of the report; default: the label and the model
    probe: bool = False  # report how well each layer predicts the group
    draws: int = 1000  # resamples of the probes
    options: Options = field(default_factory=Options)  # of the files to write
    arguments: Sequence[str] = ()  # the command, for the provenance

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        source = self.source
        estimator = source.model if source.is_estimator else None
        files = (source.file, source.weights, self.train, self.test, source.check_scores, estimator)
        return [Path(file) for file in files if file is not None]


@dataclass(frozen=True, eq=False)
class PreparedRepair:
    """A classifier and its patients, ready for the repair."""

    request: RepairRequest
    classifier: Repairable
    serving: Mapping[str, Serving]  # by label
    provenance: Provenance
    left_out: Mapping[str, object]  # rows and images left out
    notes: Sequence[str]  # on the rows and the classifier, in words

    def estimate(self) -> RepairEstimate:
        """The dry run: the patients of each set, the work of each method, and about how long it would take."""
        request = self.request
        return estimate(self.classifier, request.methods, request.goal, request.draws if request.probe else None, request.budget)

    def run(self, folder: str | Path, *, bars: Bars = no_bars) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and the files written for it in the folder."""
        check_folder(Path(folder), self.request.options.overwrite)  # before any work
        request, source = self.request, self.request.source
        cases = try_methods(
            self.classifier,
            request.methods,
            request.goal,
            goals=request.goals,
            seed=request.seed,
            budget=request.budget,
            recalibrate=request.recalibrate,
            force=request.force,
            title=request.title,
            provenance=self.provenance,
            probe_draws=request.draws if request.probe else None,
            thumbnails=request.options.thumbnails,
            bars=bars,
        )
        title = request.title or f"{len(source.labels)} {source.reading.kind} of {without_folders(source.model or source.file.name)}"
        return cases, save_all(cases, Path(folder), self.serving, request.options, title=title, bars=bars)


def prepare_file(request: RepairRequest, *, bars: Bars = no_bars, running: Callable[[Code | None], None] | None = None) -> PreparedRepair:
    """The repair of a request with its classifier loaded, its patients read and divided, and its scores compared with known ones.

    `.estimate()` returns the dry run. `.run(folder)` tries the methods, chooses one on the repair set, evaluates it on the held-out
    patients and writes a folder to serve; it returns the comparison of each label, and the files written for it. `bars` shows progress
    bars, and `running` is called before the code in an exported program is run.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = "".join(f"{k % 2},{(3 * k) % 10 / 10},{'FM'[k // 2 % 2]}\\n" for k in range(400))
    >>> _ = (folder / "scores.csv").write_text("sick,p,sex\\n" + rows)
    >>> source = Source(folder / "scores.csv", ReadOptions(labels=["sick"], group=["sex"], reference=["M"]), scores=["p"])
    >>> prepared = prepare_file(RepairRequest(source, Goal(max_gap=0.05), {"group-thresholds": {}}))
    >>> [step.method for step in prepared.estimate().methods]
    ['standard', 'group-thresholds']
    >>> comparisons, saved = prepared.run(folder / "rule")
    >>> comparisons["sick"].result.name, (folder / "rule" / "report.html").is_file()
    ('group-thresholds', True)
    """
    source, labels = request.source, request.source.labels
    code = None if source.model is None or source.is_estimator else code_of(source.model)
    model, reading, origin = load_classifier(source, code=code, running=running)
    network = model if isinstance(model, nn.Module) else None
    if network is None and (request.train is not None or request.probe):
        raise BadInput("train= and probe= (--train, --probe) are for a network. Omit them.")
    check_methods(request.methods, train=request.train is not None, **offers(model, bool(reading.features)))
    checkpoint, weight_notes = (None, []) if network is None else original_weights(network, source.weights)
    files: dict[Path, ReadCohort] = {}

    def read(path: Path, how: ReadOptions) -> list[Rows]:
        """The rows of a file: one set with all outputs of a network, otherwise the scores of each label."""
        if model is None:
            return list(read_scores(path, how, source.scores, logits=source.logits).values())
        files[path] = read_cohort(path, how, progress=counting(bars))
        return [files[path].cohort] if network is not None else list(scores_by_label(model, files[path].cohort, labels).values())

    rows = read(source.file, reading)
    check_group_names(request.options.group_names, rows[0])
    train = None if request.train is None else read_cohort(request.train, reading.with_bins_of(rows[0]), progress=counting(bars)).cohort
    repair, test = _sets(request, rows, lambda path: read(path, reading.like(rows[0])))
    for repaired, held_out in zip(repair, test, strict=True):  # a label may be unknown in rows where another one is known
        check_apart(training=train, repair=repaired, test=held_out)
    output = _output(source, network, repair[0])
    file = files.get(source.file)
    checks = []
    if file is not None and source.check_scores is not None:
        scores = scores_by_label(model, file.cohort, labels, output, source.outputs)
        checks = check_known(source, reading, model, file.cohort, scores)
    classifier = Repairable.of(model, labels, repair, test, train, source.outputs if len(labels) > 1 else None)
    columns = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
    if network is None or file is None:
        scored = zip(labels, rows, source.scores or [PREDICTOR_SCORE], strict=True)
        serving = {label: Serving(inputs_of(own, **columns, score=column, logits=source.logits)) for label, own, column in scored}
    else:
        if reading.images is not None:
            columns |= {"image_column": reading.image_column, "view_column": reading.view}
        inputs, sample = inputs_of(file.cohort, **columns), cast(Cohort, test[0]).inputs[:ROWS_CHECKED]
        load, chosen = str(source.model), classifier.chosen
        only = {} if chosen is not None else {labels[0]: saved_model(load, output, code=code, output_name=source.output_name)}
        models = only if chosen is None else saved_models(chosen, labels, load, code)
        serving = {label: Serving(inputs, own, sample, checkpoint) for label, own in models.items()}
    limits, notes = _notes(file, rows[0], weight_notes, checks, origin)
    arguments, name = request.arguments, source.model or f"scores in {source.file.name}"
    cohort = None if file is None else file.cohort
    provenance = Provenance.now(arguments=arguments, model=name, seed=request.seed, files=request.files, cohort=cohort, limits=limits)
    return PreparedRepair(request, classifier, serving, provenance, {"left_out": []} if file is None else file.to_dict(), notes)


def _sets(request: RepairRequest, rows: Sequence[Rows], read: Callable[[Path], Sequence[Rows]]) -> tuple[Sequence[Rows], Sequence[Rows]]:
    """The repair sets and the test sets of the same rows: those of a file, or held out."""
    if request.test is not None:
        return rows, [same_groups(own, held_out) for own, held_out in zip(rows, read(request.test), strict=True)]
    if isinstance(rows[0], Cohort):
        repair, test = hold_out(rows[0], request.test_fraction, seed=request.seed)
        return [repair], [test]
    scores = cast(Sequence[Scores], rows)
    by_label = hold_out_scores(dict(zip(request.source.labels, scores, strict=True)), request.test_fraction, seed=request.seed)
    return list(by_label[0].values()), list(by_label[1].values())


def _output(source: Source, network: nn.Module | None, repair: Rows) -> str:
    """The type of the network's output, logit or probability, if known; wrong shapes are reported before any work."""
    if network is None or isinstance(repair, Scores):
        return source.output
    if len(source.labels) > 1:
        set_output(network, source.output)
        return source.output
    scores_by_label(network, repair.take(range(min(2, len(repair)))), source.labels)
    return resolve_output(network, repair.inputs, source.output)


def _notes(
    file: ReadCohort | None, rows: Rows, weight_notes: Sequence[str], checks: Sequence[object], origin: str
) -> tuple[list[str], list[str]]:
    """The limits of the repair for its provenance, and the notes for the terminal, which also name images left out.

    Provenance holds words, which belong to the room that presents.
    """
    if file is None:
        varying = list(map(presenter("varying_words"), conflicts_in(rows.attributes, rows.patients)))
        return [*varying, "the rule decides from scores; the classifier that makes them was not examined"], varying
    inputs = presenter("input_words")(checks, file.cohort.source.to_dict(), origin)
    limits, notes = ([*presenter("reading_words")(file, names=names), *weight_notes] for names in (False, True))
    if rows.labels:
        listed = f"{len(rows.labels)} {rows.kind} at once: {', '.join(rows.labels)}"
        limits.append(f"the network was repaired for {listed}; each has its own report")
    return [*limits, *inputs], [*notes, *inputs]
