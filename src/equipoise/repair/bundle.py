"""A bundle in use: the network and the rule loaded from verified files, and decisions for new patients.

Nothing in a folder is executed. Code that the network needs runs only on request (`model` or `trust`), and only if it is unchanged.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from equipoise.data import IMAGE_COLUMNS, MAX_PIXELS, Attribute, Bins, Cohort, Images, Scores, Table, Transform, as_parsed
from equipoise.errors import BadInput, Misuse
from equipoise.measures import FloatArray, Rule
from equipoise.methods import read_rule
from equipoise.models import (
    HEADS,
    MLP,
    ORIGINAL_ONNX,
    PROGRAM,
    Code,
    OneClass,
    OneOutput,
    OnnxNetwork,
    Predictor,
    as_matrix,
    fit_weights,
    heads_in,
    is_network,
    network_with,
    onnx_file_and_output,
    output_named,
    outputs,
    predict,
    safetensors_in,
    sigmoid,
)
from equipoise.repair.new_rows import (
    check_frontal,
    check_images,
    check_one_patient,
    groups_of,
    identifiers,
    image_files,
    network_inputs,
    notes_on_repair,
    notes_on_rows,
    score_column,
    unlabelled,
)
from equipoise.repair.saved_predictor import PREDICTOR_SCORE, predictor_of
from equipoise.repair.schema import Run
from equipoise.repair.serving import OWN_NETWORK
from equipoise.repair.verify import AGAIN, WEIGHTS, Verified, code_to_run, transform_to_serve, verify

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A repaired network, or a rule for scores, with its preprocessing and its provenance, loaded from a verified folder.

    `decide(rows)` returns the score and the decision of new patients.
    """

    folder: Path
    model: nn.Module | None = field(repr=False)  # None: a rule for scores
    rule: Rule
    run: Run = field(repr=False)
    code: Code | None = None  # that was run to build the network
    transform: Transform | None = None  # custom preprocessing of images
    predictor: Predictor | None = None  # a classifier that is not a network, such as a scikit-learn estimator
    forced: bool = False  # the repair was run although a cell (group, label) has too few patients for any claim

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        model: str | nn.Module | object = None,
        transform: str | Callable[[Any], Any] | None = None,
        trust: bool = False,
        images: bool | None = None,
        running: Callable[[Code], None] | None = None,
    ) -> "Bundle":
        """The bundle in a folder, after its files are verified (SHA-256).

        A classifier that is not a network is in the folder as a .skops file, or as a pickle, which is read with `trust=True` only.

        A network's code runs only on request: `model` names the factory to run or is the network itself; `trust=True` runs the code that
        run.json names, if it is unchanged. Without either, an `Untrusted` error shows what would run. Networks of Equipoise need neither.
        A transform of images is code too: it is named with `transform`, or trusted, and must be the transform of the repair.
        `images` states whether new rows will have images, which is checked before any code runs; `running` is called with that code.
        """
        files = verify(folder)
        run = files.run
        rule = read_rule(files.contents["rule.json"], files.source("rule.json"))
        if images is not None:
            check_images(run.inputs, images, files.folder)
        forced, saved = files.audits.forced, run.model
        if run.predictor is not None:
            predictor = predictor_of(run.predictor, files.contents, files.folder, model, trust)
            return cls(files.folder, None, rule, run, predictor=predictor, forced=forced)
        if saved is None:
            if model is not None:
                raise BadInput(f"{files.folder} holds a rule for scores, and no network. Omit --model (Python: model=).")
            return cls(files.folder, None, rule, run, forced=forced)
        prepare = transform_to_serve(run.inputs.images, files.folder, transform, trust, running)
        network, code = _network(files, model, trust, running)
        if saved.output_name is not None:
            network = OneOutput(network, output_named(saved.output_name)).eval()
        if (classes := saved.classes) is not None:
            network = OneClass(network, classes.columns, classes.names.index(run.label), classes.output).eval()
        if run.heads:  # they hold the repair
            network = heads_in(network, files.contents[HEADS], files.source(HEADS))
        return cls(files.folder, network, rule, run, code, prepare, forced=forced)

    @property
    def outcome(self) -> str:
        """The outcome of the repair on held-out patients: closed, reduced, unclear, harm or unchanged. Do not use a rule that did harm."""
        return str(self.run.outcome)

    @property
    def groups(self) -> list[str]:
        """The columns with the groups that the rule needs; empty if it needs none."""
        return self.run.groups if self.rule.needs_group else []

    @property
    def bins(self) -> dict[str, Bins]:
        """The bins of numeric columns that define groups."""
        return self.run.inputs.bins

    @property
    def text_columns(self) -> set[str]:
        """The columns of a table that must be read as text: identifiers, image names and groups."""
        recorded = self.run.inputs
        images = () if recorded.images is None else (recorded.image_column, *IMAGE_COLUMNS)
        names = (recorded.id, recorded.patient, *images, *self.groups)
        return {name for name in names if name is not None and name not in self.bins}

    def score(self, inputs: Any) -> FloatArray:
        """The score of each row, with the network's output read as in the repair."""
        if self.predictor is not None:
            return self.predictor.scores(inputs)
        return self._network_scores(inputs)[0]

    def _network_scores(self, inputs: Any) -> tuple[FloatArray, dict[str, Any]]:
        """The score of each row, and further columns: with a network of classes, the class that argmax decides for."""
        columns: dict[str, Any] = {}
        if self.model is None:
            raise BadInput(f"{self.folder} holds a rule for scores, and no network that makes them. Give the scores: decide(frame)")
        if isinstance(self.model, OneClass):
            logits = outputs(self.model.inner, inputs, taken=as_matrix)
            classes = self.run.network.classes
            names = np.array([] if classes is None else classes.names, dtype=object)
            columns["class"] = names[logits[:, self.model.columns].argmax(1).numpy()]
            raw = self.model.margin(logits).double()
        else:
            raw = outputs(self.model, inputs).double()
        invalid = int((~torch.isfinite(raw)).sum())
        if invalid:
            raise BadInput(
                f"the network returned NaN or infinity for {invalid:,} of {len(raw):,} rows. Check for missing or unscaled inputs."
            )
        score = (sigmoid(raw) if self.run.network.output == "logit" else raw).numpy()
        return np.asarray(score, dtype=np.float64), columns

    def decide(
        self,
        rows: pd.DataFrame | Cohort | Scores,
        *,
        images: str | Path | None = None,
        image_column: str | None = None,
        skip_broken: bool = False,
        allow_outside: bool = False,
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        seed: int = 0,
        name: str = "rows",
        progress: Callable[[int], None] | None = None,
    ) -> pd.DataFrame:
        """Score and decision of each row, next to its identifiers; for a randomised rule also the probability of a positive decision.

        `rows` is a frame with the columns of the repair (no label is needed), or a cohort; for a rule for scores, a frame with the scores,
        or Scores. For images, `images` is their folder and the other options are those of `Cohort.from_images`. Warnings about the repair
        and about these rows are logged. A randomised rule draws each decision from `seed` and the id of the row, so that it does not depend
        on the other rows; rows must have ids.
        """
        for note in notes_on_repair(self.outcome, self.forced, self.folder):
            log.warning(note)
        if isinstance(rows, Cohort) and self.predictor is not None:
            return self._with_decisions(pd.DataFrame({"id": rows.ids}), predict(self.predictor, rows), seed)
        if isinstance(rows, Scores) and self.model is None:
            return self._with_decisions(pd.DataFrame({"id": rows.ids}), rows, seed)
        if isinstance(rows, Cohort) and self.model is not None:
            return self._decide_cohort(rows, seed)
        if not isinstance(rows, pd.DataFrame):
            raise Misuse("Bundle.decide", "a pandas frame or a Cohort; of a rule for scores, a frame or Scores", rows)
        if self.model is None:
            return self._decide_scores(rows, images is not None, seed, name)
        recorded = self.run.inputs
        check_images(recorded, images is not None, self.folder)
        if recorded.width is not None:
            raise BadInput(f"the network in {self.folder} was repaired on arrays, which have no columns. Give a cohort: Cohort.from_arrays")
        attributes = groups_of(rows, self.groups, name, self.bins)
        column = image_column or recorded.image_column or next((c for c in IMAGE_COLUMNS if c in rows.columns), None)
        if images is not None and column is not None and recorded.patient is not None and {column, recorded.patient} <= set(rows.columns):
            check_one_patient(rows, column, recorded.patient, name)
        if recorded.view_column in rows.columns:
            check_frontal(rows[recorded.view_column], name)
        inputs: Any
        if images is None or recorded.images is None:
            inputs, kept = network_inputs(rows, recorded, self.text_columns, name), np.arange(len(rows))
        else:
            files = image_files(rows, column, Path(images), name, allow_outside)
            places = [f"row {row + 1} below the header" for row in range(len(files))]
            options: dict[str, Any] = {"places": places, "skip_broken": skip_broken, "max_pixels": max_pixels, "cache": cache}
            inputs = Images.open(files, **recorded.images.options(self.transform), **options, progress=progress)
            kept = np.array([row for row in range(len(rows)) if row not in inputs.broken])
        score, columns = self._network_scores(inputs)
        attributes = tuple(attribute.take(kept) for attribute in attributes)
        id_frame, ids = identifiers(rows, kept, recorded.id, recorded.patient, column if images else None)
        decisions = self._with_decisions(id_frame, unlabelled(score, attributes, ids, name), seed, **columns)
        self._log_notes(rows, attributes, id_frame, name)
        return decisions

    def _decide_scores(self, frame: pd.DataFrame, images: bool, seed: int, name: str) -> pd.DataFrame:
        """The decisions on new scores, in the columns of the repair, or on the scores of the saved classifier."""
        recorded = self.run.inputs
        if self.predictor is not None:
            frame = frame.assign(**{PREDICTOR_SCORE: self.predictor.scores(self._predictor_inputs(frame, self.predictor))})
        if images:
            raise BadInput(f"{self.folder} holds a rule for scores, which reads no images. Omit --images.")
        attributes = groups_of(frame, self.groups, name, self.bins)
        id_frame, ids = identifiers(frame, np.arange(len(frame)), recorded.id, recorded.patient)
        score, features = score_column(frame, recorded, getattr(self.rule, "columns", ()), name)
        decisions = self._with_decisions(id_frame, unlabelled(score, attributes, ids, name, features), seed)
        self._log_notes(frame, attributes, id_frame, name)
        return decisions

    def _decide_cohort(self, cohort: Cohort, seed: int) -> pd.DataFrame:
        """The decisions for a cohort; a table is encoded as in the repair."""
        recorded = self.run.inputs
        inputs: Any = cohort.inputs
        if isinstance(cohort.source, Table) and recorded.encoder is not None:
            inputs = network_inputs(cohort.source.frame, recorded, self.text_columns, cohort.name)
        by_name = {attribute.name: attribute for attribute in cohort.attributes}
        if missing := [name for name in self.groups if name not in by_name]:
            raise BadInput(f"the rule decides by group and needs {', '.join(map(repr, missing))}; {cohort.name!r} has {', '.join(by_name)}")
        score, columns = self._network_scores(inputs)
        scores = unlabelled(score, tuple(by_name[name] for name in self.groups), cohort.ids, cohort.name, patients=cohort.patients)
        return self._with_decisions(pd.DataFrame({"id": cohort.ids}), scores, seed, **columns)

    def _predictor_inputs(self, frame: pd.DataFrame, model: Predictor) -> pd.DataFrame:
        """The input columns of the classifier, parsed as numbers even if they were read as text because they are groups or ids."""
        inputs = model.columns if model.columns is not None else self.run.inputs.features or ()
        if model.columns is None and model.kind == "estimator":
            frame = frame[[name for name in inputs if name in frame.columns]]
        read_as_text = [name for name in inputs if name in self.text_columns and name in frame.columns]
        return frame.assign(**{name: as_parsed(frame[name]) for name in read_as_text})

    def _with_decisions(self, id_frame: pd.DataFrame, scores: Scores, seed: int, **columns: Any) -> pd.DataFrame:
        """Identifiers, score and decision of each row; for a randomised rule also the probability with which the decision was drawn."""
        probability = self.rule.decide(scores)
        decisions = pd.DataFrame({"score": scores.score})
        if self.rule.randomised:
            drawn = self.rule.draw(scores, seed)  # type: ignore[attr-defined]
            decisions = decisions.assign(probability=probability, decision=drawn.astype(int))
        else:
            decisions = decisions.assign(decision=probability.astype(int))
        decisions = decisions.assign(**columns)
        if taken := [column for column in id_frame.columns if column in decisions.columns]:
            shown = ", ".join(map(repr, taken))
            raise BadInput(f"the ids are in {shown}, which is also the name of a column of the decisions. Rename the column.")
        return pd.concat([id_frame, decisions], axis=1)

    def _log_notes(self, frame: pd.DataFrame, attributes: tuple[Attribute, ...], id_frame: pd.DataFrame, name: str) -> None:
        """Logs warnings about new rows that get a decision but differ from those of the repair."""
        recorded = self.run.inputs
        notes = notes_on_rows(attributes, len(frame) - len(id_frame), id_frame, recorded.id, name)
        view = recorded.view_column
        if view is not None and view not in frame.columns:
            notes.append(f"the network was repaired on frontal views only, and there is no column {view!r} to check the new rows by")
        if self.rule.needs_group and recorded.conflicts != "row":
            notes.append(
                "the group of each row is taken as recorded; the repair resolved patients with several groups by "
                f"data.conflicts={recorded.conflicts}"
            )
        for note in notes:
            log.warning(note)


def _network(files: Verified, model: object, trust: bool, running: Callable[[Code], None] | None) -> tuple[nn.Module, Code | None]:
    """The network with the repaired weights, in eval mode, and the code that was run to build it, if any."""
    named = model if isinstance(model, str) else None
    if ORIGINAL_ONNX in files.contents:
        code_to_run(files, named, trust)  # raises an error if another model is named
        graph = onnx_file_and_output(str(files.run.network.load))
        return OnnxNetwork(files.contents[ORIGINAL_ONNX], files.source(ORIGINAL_ONNX), graph[1] if graph else None), None
    if is_network(model):
        state = safetensors_in(files.contents[WEIGHTS], files.source(WEIGHTS))
        return fit_weights(copy.deepcopy(model), state, files.source(WEIGHTS)).eval(), None
    code = code_to_run(files, named, trust)
    if code is not None and running is not None and (named is None or named.endswith(PROGRAM)):
        running(code)
    if code is not None and code.named.endswith(PROGRAM):
        return network_with(code.named, code, None, str(code.path)), code
    state = safetensors_in(files.contents[WEIGHTS], files.source(WEIGHTS))
    load = named or str(files.run.network.load)
    if load == OWN_NETWORK:
        return fit_weights(_own_network(state, files.source(WEIGHTS)), state, files.source(WEIGHTS)).eval(), None
    return network_with(load, code, state, files.source(WEIGHTS)), code


def _own_network(state: Mapping[str, Tensor], source: str) -> MLP:
    """The network that `train` builds for tables, with the layer sizes of these weights."""
    first = state.get("linears.0.weight")
    if first is None or first.ndim != 2:
        raise BadInput(f"{source} does not hold the weights of the network that eq.train builds. {AGAIN}")
    depth = sum(key.startswith("linears.") and key.endswith(".weight") for key in state) - 1
    return MLP(first.shape[1], first.shape[0], depth)
