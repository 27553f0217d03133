"""`prepare_file`: the repair of scores in a file, or of a network or estimator on its rows, as `equipoise debias` runs it.

The prepared repair shows a dry run (`estimate`), or tries the methods and writes the folder to serve (`run`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from equipoise.data import (
    Cohort,
    ReadOptions,
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
from equipoise.models import Checkpoint, Code, Predictor, code_of, resolve_output, scores_by_label, set_output
from equipoise.presenting import presenter
from equipoise.repair.compare_models import Comparison
from equipoise.repair.dry_run import RepairEstimate, estimate, estimate_rules
from equipoise.repair.file_source import Source, check_group_names, check_known, load_classifier
from equipoise.repair.folder import check_folder
from equipoise.repair.progress import Bars, counting, no_bars
from equipoise.repair.provenance import (
    ROWS_CHECKED,
    Provenance,
    Serving,
    absolute_model_name,
    inputs_of,
    original_weights,
    serving_by_label,
    serving_of_rule,
)
from equipoise.repair.repair_network import Methods, Request, check_methods, try_methods
from equipoise.repair.repair_scores import check_rules, try_rules, with_predictor
from equipoise.repair.save import Options, Saved, save_all
from equipoise.repair.saved_predictor import PREDICTOR_SCORE

ByLabel = Mapping[str, Scores]


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
class PreparedNetwork:
    """A network and its patients, ready for the repair."""

    request: RepairRequest
    network: nn.Module
    code: Code | None
    checkpoint: Checkpoint | None  # the original weights
    output: str  # logit or probability, if known
    reading: ReadOptions
    cohort: Cohort  # all rows of the data file
    train: Cohort | None
    repair: Cohort
    test: Cohort
    provenance: Provenance
    left_out: Mapping[str, object]  # rows and images left out
    notes: Sequence[str]  # on the rows and the network, in words

    def estimate(self) -> RepairEstimate:
        """The dry run: the patients of each set, the work of each method, and about how long it would take."""
        request = self.request
        draws, outputs = request.draws if request.probe else None, _outputs(request.source)
        return estimate(self.network, self.repair, self.test, request.methods, request.goal, self.train, draws, outputs, request.budget)

    def run(self, folder: str | Path, *, bars: Bars = no_bars) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and the files written for it in the folder."""
        check_folder(Path(folder), self.request.options.overwrite)  # before any work
        request, source, reading = self.request, self.request.source, self.reading
        labels, outputs, model = source.labels, _outputs(source), source.model or ""
        columns = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts}
        if reading.images is not None:
            columns |= {"image_column": reading.image_column, "view_column": reading.view}
        inputs = inputs_of(self.cohort, **columns)
        sample = self.test.inputs[: min(len(self.test), ROWS_CHECKED)]
        served = Serving(absolute_model_name(model), self.output, sample, inputs, source.output_name, self.checkpoint, self.code)
        serving = serving_by_label(self.network, self.repair, labels[0], outputs, served)
        cases = try_methods(
            self.network,
            self.repair,
            self.test,
            request.methods,
            request.goal,
            request=Request(labels[0], request.title, self.provenance, request.draws, request.options.thumbnails, request.probe),
            outputs=outputs,
            goals=request.goals,
            seed=request.seed,
            train=self.train,
            budget=request.budget,
            recalibrate=request.recalibrate,
            force=request.force,
            bars=bars,
        )
        title = request.title or f"{len(labels)} {reading.kind} of {without_folders(model)}"
        return cases, save_all(cases, Path(folder), serving, request.options, title=title, bars=bars)


@dataclass(frozen=True, eq=False)
class PreparedScores:
    """The scores in a file, or of an estimator, ready for the repair."""

    request: RepairRequest
    reading: ReadOptions
    estimator: Predictor | None  # saved in the folder
    scores: ByLabel
    repair: ByLabel
    test: ByLabel
    provenance: Provenance
    left_out: Mapping[str, object]  # none of the rows
    notes: Sequence[str]  # on patients in several groups and the comparison with known scores, in words

    def estimate(self) -> RepairEstimate:
        """The dry run: the patients of each set, the work of each method, and about how long it would take."""
        return estimate_rules(self.repair, self.test, self.request.methods, self.request.goal, self.request.budget)

    def run(self, folder: str | Path, *, bars: Bars = no_bars) -> tuple[dict[str, Comparison], dict[str, Saved]]:
        """The comparison of each label, and the files written for it in the folder."""
        check_folder(Path(folder), self.request.options.overwrite)  # before any work
        request, source, reading = self.request, self.request.source, self.reading
        labels, columns = reading.labels, source.scores if self.estimator is None else [PREDICTOR_SCORE]
        roles: dict[str, Any] = {"patient": reading.patient, "id": reading.id, "conflicts": reading.conflicts, "logits": source.logits}
        serving = {label: serving_of_rule(self.scores[label], score=column, **roles) for label, column in zip(labels, columns, strict=True)}
        cases = try_rules(
            self.repair,
            self.test,
            request.methods,
            request.goal,
            request=Request(labels[0], request.title, self.provenance),
            goals=request.goals,
            seed=request.seed,
            budget=request.budget,
            force=request.force,
            bars=bars,
        )
        if self.estimator is not None:
            cases = {label: with_predictor(case, self.estimator) for label, case in cases.items()}
        title = request.title or f"{len(labels)} labels of {source.file.name}"
        return cases, save_all(cases, Path(folder), serving, request.options, title=title, bars=bars)


def prepare_file(
    request: RepairRequest, *, bars: Bars = no_bars, running: Callable[[Code | None], None] | None = None
) -> PreparedNetwork | PreparedScores:
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
    if request.source.scores or request.source.is_estimator:
        return _prepare_scores(request, bars)
    return _prepare_network(request, bars, running)


def _prepare_network(request: RepairRequest, bars: Bars, running: Callable[[Code | None], None] | None) -> PreparedNetwork:
    """The network with its patients; its scores are compared with known ones."""
    source, labels = request.source, request.source.labels
    model, progress = source.model or "", counting(bars)
    code = code_of(model)
    network, reading, origin = load_classifier(source, code=code, running=running)
    checkpoint, weight_notes = original_weights(network, source.weights)
    check_methods(network, request.methods, request.train is not None)
    read = read_cohort(source.file, reading, progress=progress)
    cohort = read.cohort
    check_group_names(request.options.group_names, cohort)
    train = None if request.train is None else read_cohort(request.train, reading.with_bins_of(cohort), progress=progress).cohort
    if request.test is None:
        repair, test = hold_out(cohort, request.test_fraction, seed=request.seed)
    else:
        test = read_cohort(request.test, reading.like(cohort), progress=progress).cohort
        repair, test = cohort, same_groups(cohort, test)
    check_apart(training=train, repair=repair, test=test)
    output = source.output
    if len(labels) == 1:
        scores_by_label(network, repair.take(range(min(2, len(repair)))), labels)  # reports wrong shapes before any work
        output = resolve_output(network, repair.inputs, output)
    else:
        set_output(network, output)
    checks = []
    if source.check_scores is not None:
        scores = scores_by_label(network, cohort, labels, output, source.outputs)
        checks = check_known(source, reading, network, cohort, scores)
    # Provenance holds words, which belong to the room that presents.
    reading_words, input_notes = presenter("reading_words"), presenter("input_words")(checks, cohort.source.to_dict(), origin)
    limits = [*reading_words(read, names=False), *weight_notes]
    if len(labels) > 1:
        limits.append(f"the network was repaired for {len(labels)} {reading.kind} at once: {', '.join(labels)}; each has its own report")
    limits += input_notes
    provenance = Provenance.now(
        arguments=request.arguments, model=model, seed=request.seed, files=request.files, cohort=cohort, limits=limits
    )
    notes = [*reading_words(read, names=True), *weight_notes, *input_notes]
    rows = (reading, cohort, train, repair, test)
    return PreparedNetwork(request, network, code, checkpoint, output, *rows, provenance, read.to_dict(), notes)


def _prepare_scores(request: RepairRequest, bars: Bars) -> PreparedScores:
    """The scores in a file, or of an estimator, which are then compared with known ones."""
    source = request.source
    estimator, reading, _ = load_classifier(source)
    if request.train is not None or request.probe:
        raise BadInput("train= and probe= (--train, --probe) are for a network. Omit them.")
    check_rules(request.methods, bool(reading.features) or estimator is not None)

    def read(path: Path, how: ReadOptions) -> tuple[dict[str, Scores], Cohort | None]:
        if estimator is None:
            return read_scores(path, how, source.scores, logits=source.logits), None
        cohort = read_cohort(path, how, progress=counting(bars)).cohort
        return scores_by_label(estimator, cohort, source.labels), cohort

    scores, cohort = read(source.file, reading)
    checks = [] if cohort is None else check_known(source, reading, estimator, cohort, scores)
    first = scores[reading.labels[0]]
    check_group_names(request.options.group_names, first)
    repair: ByLabel
    test: ByLabel
    if request.test is None:
        repair, test = hold_out_scores(scores, request.test_fraction, seed=request.seed)
    else:
        test_scores, _ = read(request.test, reading.like(first))
        repair, test = scores, {label: same_groups(scores[label], test_scores[label]) for label in scores}
        for label in scores:  # a label may be unknown in rows where another one is known
            check_apart(repair=scores[label], test=test_scores[label])
    notes = [*map(presenter("varying_words"), conflicts_in(first.attributes, first.patients)), *map(str, checks)]
    model, limits = source.model, notes
    if model is None:
        model = f"scores in {source.file.name}"
        limits = [*notes, "the rule decides from scores; the classifier that makes them was not examined"]
    provenance = Provenance.now(arguments=request.arguments, model=model, seed=request.seed, files=request.files, limits=limits)
    return PreparedScores(request, reading, estimator, scores, repair, test, provenance, {"left_out": []}, notes)


def _outputs(source: Source) -> Mapping[str, int | str]:
    """The output of the network for each of several labels; the only output of a network with one label is chosen when it is loaded."""
    return source.outputs if len(source.labels) > 1 else {}
