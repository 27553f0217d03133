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

from equipoise.data import (
    IMAGE_COLUMNS,
    MAX_PIXELS,
    Bins,
    Cohort,
    Encoder,
    Images,
    Scores,
    Table,
    Transform,
    as_parsed,
    bins_in,
)
from equipoise.errors import BadInput, Misuse, did_you_mean, raise_all
from equipoise.measures import FloatArray, Rule
from equipoise.methods import rule_in
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
    network_with,
    output_named,
    outputs,
    place_of,
    predicted,
    safetensors_in,
    sigmoid,
)
from equipoise.repair.new_rows import (
    check_frontal,
    check_images,
    check_names,
    check_one_patient,
    groups_of,
    id_notes,
    image_files,
    new_scores,
    no_group,
    row_notes,
    unlabelled,
)
from equipoise.repair.provenance import OWN_NETWORK
from equipoise.repair.saved_predictor import SCORE, predictor_of
from equipoise.repair.schema import PREDICTOR_KIND, RULE_KIND, opening, transform_to_serve
from equipoise.repair.verified import AGAIN, WEIGHTS, Verified, code_to_run, verify

log = logging.getLogger(__name__)


# The bundle


@dataclass(frozen=True, eq=False)
class Bundle:
    """A repaired network, or a rule for scores, with its preprocessing and its provenance, loaded from a verified folder.

    `decide(rows)` returns the score and the decision of new patients.
    """

    folder: Path
    model: nn.Module | None = field(repr=False)  # None: a rule for scores
    rule: Rule
    run: Mapping[str, Any] = field(repr=False)
    code: Code | None = None  # that was run to build the network
    transform: Transform | None = None  # that makes inputs of images, where options do not
    predictor: Predictor | None = None  # a classifier that is not a network, which makes the scores that the rule decides from

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
        """The bundle in a folder, whose files are verified first (SHA-256).

        A classifier that is not a network is in the folder: as a .skops file, or as a pickle, which is read with `trust=True` only.

        A network's code runs only on request: `model` names the factory to run or is the network itself; `trust=True` runs the code that
        run.json names, if it is unchanged. Without either, an `Untrusted` error shows what would run. Networks of Equipoise need neither.
        A transform of images is code too: it is named with `transform`, or trusted, and must be that of the repair.
        `images` says whether rows will come with images, which is checked before any code runs; `running` is called with that code.
        """
        files = verify(folder)
        run = files.run
        rule = rule_in(files.contents["rule.json"], files.source("rule.json"))
        if rule.needs_group and not run["groups"]:
            raise BadInput("the rule needs a group and run.json names none", source=str(files.folder))
        if images is not None:
            check_images(files.run["inputs"], images, files.folder)
        if run["kind"] == PREDICTOR_KIND:
            made_of = predictor_of(run["predictor"], files.contents, files.folder, model, trust)
            return cls(files.folder, None, rule, run, predictor=made_of)
        if run["kind"] == RULE_KIND:
            if model is not None:
                raise BadInput(f"{files.folder} holds a rule for scores, and no network. Omit --model (Python: model=).")
            return cls(files.folder, None, rule, run)
        made = transform_to_serve(files.run["inputs"]["images"], files.folder, transform, trust, running)
        network, code = _network(files, model, trust, running)
        if run["model"]["output_name"] is not None:
            network = OneOutput(network, output_named(str(run["model"]["output_name"]))).eval()
        if (classes := run["model"].get("classes")) is not None:
            network = OneClass(network, classes["columns"], classes["names"].index(run["label"]), classes["output"]).eval()
        if run["heads"]:  # the repair is in them: without their file there is nothing to serve
            network = heads_in(network, files.contents[HEADS], files.source(HEADS))
        return cls(files.folder, network, rule, run, code, made)

    @property
    def groups(self) -> list[str]:
        """The columns that the rule needs to know a patient's group; empty if it needs none."""
        return [str(name) for name in self.run["groups"]] if self.rule.needs_group else []

    @property
    def bins(self) -> dict[str, Bins]:
        """The bins of numeric columns that are groups."""
        return bins_in(self.run["inputs"].get("bins") or {})

    @property
    def text_columns(self) -> set[str]:
        """The columns of a table that must be read as text: identifiers, image names and groups."""
        how = self.run["inputs"]
        images = () if how["images"] is None else (how.get("image_column"), *IMAGE_COLUMNS)
        return {name for name in (how.get("id"), how.get("patient"), *images, *self.groups) if name is not None and name not in self.bins}

    def score(self, inputs: Any) -> FloatArray:
        """The score of each row, with the network's output read as in the repair."""
        return self._scored(inputs)[0]

    def _scored(self, inputs: Any) -> tuple[FloatArray, dict[str, Any]]:
        """The score of each row; of a network of classes also the class that argmax decides for."""
        told: dict[str, Any] = {}
        if self.predictor is not None:
            return self.predictor.scores(inputs), told
        if self.model is None:
            raise BadInput(f"{self.folder} holds a rule for scores, and no network that makes them. Give the scores: decide(frame)")
        if isinstance(self.model, OneClass):
            every = outputs(self.model.inner, inputs, taken=as_matrix)
            names = np.array(self.run["model"]["classes"]["names"], dtype=object)
            told["class"] = names[every[:, self.model.columns].argmax(1).numpy()]
            raw = self.model.margin(every).double()
        else:
            raw = outputs(self.model, inputs).double()
        bad = int((~torch.isfinite(raw)).sum())
        if bad:
            raise BadInput(f"the network returned NaN or infinity for {bad:,} of {len(raw):,} rows. Check for missing or unscaled inputs.")
        score = (sigmoid(raw) if self.run["model"]["output"] == "logit" else raw).numpy()
        return np.asarray(score, dtype=np.float64), told

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

        `rows` is a frame with the columns of the repair (no label is needed), or a cohort; of a rule for scores, a frame with the scores,
        or Scores. For images, `images` is their folder and the
        other options are those of `Cohort.from_images`. What a user should know about these rows is logged as a warning.
        """
        if isinstance(rows, Cohort) and self.predictor is not None:
            return self._told(predicted(self.predictor, rows), rows.ids, seed)
        if isinstance(rows, Scores) and self.model is None:
            return self._told(rows, rows.ids, seed)
        if isinstance(rows, Cohort) and self.model is not None:
            return self._decide_cohort(rows, seed)
        if not isinstance(rows, pd.DataFrame):
            raise Misuse("Bundle.decide", "a pandas frame or a Cohort; of a rule for scores, a frame or Scores", rows)
        how = self.run["inputs"]
        if self.model is None:
            return self._decide_scores(rows, images is not None, seed, name)
        check_images(how, images is not None, self.folder)
        if how.get("width") is not None:
            raise BadInput(f"the network in {self.folder} was repaired on arrays, which have no columns. Give a cohort: Cohort.from_arrays")
        attributes = groups_of(rows, self.groups, name, self.bins)
        column = image_column or how.get("image_column") or next((c for c in IMAGE_COLUMNS if c in rows.columns), None)
        names = [each for each in (how.get("id"), how.get("patient"), column if images else None) if each in rows.columns]
        if images is not None and column is not None and {column, how.get("patient")} <= set(rows.columns):
            check_one_patient(rows, column, how["patient"], name)
        if how.get("view_column") in rows.columns:
            check_frontal(rows[how["view_column"]], name)
        inputs: Any
        if images is None:
            inputs, kept = self._numbers(rows, name), np.arange(len(rows))
        else:
            files = image_files(rows, column, Path(images), name, allow_outside)
            places = [f"row {at + 1} below the header" for at in range(len(files))]
            options: dict[str, Any] = {"places": places, "skip_broken": skip_broken, "max_pixels": max_pixels, "cache": cache}
            inputs = Images.open(files, **opening(how["images"], self.transform), **options, progress=progress)
            kept = np.array([at for at in range(len(rows)) if at not in inputs.broken])
        score, told = self._scored(inputs)
        attributes = tuple(attribute.take(kept) for attribute in attributes)
        ids = rows[names[0]].to_numpy(dtype=object)[kept] if names else kept.astype(object)
        found = self._decided(unlabelled(score, attributes, ids, name), seed).assign(**told)
        about = rows[list(dict.fromkeys(names))].iloc[kept].reset_index(drop=True) if names else pd.DataFrame({"row": kept + 1})
        check_names(about, found)
        for note in (*row_notes(attributes, len(rows) - len(kept)), *id_notes(about, how.get("id"), name), *self._notes(rows)):
            log.warning(note)
        return pd.concat([about, found], axis=1)

    def _decide_scores(self, frame: pd.DataFrame, images: bool, seed: int, name: str) -> pd.DataFrame:
        """The decisions on new scores, in the columns of the repair."""
        how = self.run["inputs"]
        if self.predictor is not None:
            frame = frame.assign(**{SCORE: self.predictor.scores(self._as_fitted(frame, self.predictor))})
        if images:
            raise BadInput(f"{self.folder} holds a rule for scores, which reads no images. Omit --images.")
        attributes = groups_of(frame, self.groups, name, self.bins)
        names = [each for each in dict.fromkeys((how.get("id"), how.get("patient"))) if each in frame.columns]
        ids = frame[names[0]].to_numpy(dtype=object) if names else np.arange(len(frame)).astype(object)
        reads = getattr(self.rule, "columns", ())
        scores = new_scores(frame, how, attributes or (no_group(len(frame)),), ids, reads, name)
        about = frame[names].reset_index(drop=True) if names else pd.DataFrame({"row": np.arange(len(frame)) + 1})
        found = self._told(scores, about, seed)
        for note in (*row_notes(attributes, 0), *id_notes(about, how.get("id"), name), *self._notes(frame)):
            log.warning(note)
        return found

    def _as_fitted(self, frame: pd.DataFrame, model: Predictor) -> pd.DataFrame:
        """The rows as the classifier takes them: numbers even where a column was read as text because it is a group or an id."""
        inputs = model.columns if model.columns is not None else self.run["inputs"].get("features") or ()
        if model.columns is None and model.kind == "estimator":
            frame = frame[[name for name in inputs if name in frame.columns]]
        both = [name for name in inputs if name in self.text_columns and name in frame.columns]
        return frame.assign(**{name: as_parsed(frame[name]) for name in both})

    def _told(self, scores: Scores, about: Any, seed: int) -> pd.DataFrame:
        """Score and decision of each row next to its identifiers."""
        about = about if isinstance(about, pd.DataFrame) else pd.DataFrame({"id": about})
        found = self._decided(scores, seed)
        check_names(about, found)
        return pd.concat([about, found], axis=1)

    def _decide_cohort(self, cohort: Cohort, seed: int) -> pd.DataFrame:
        """The decisions for a cohort, whose tables are encoded as in the repair."""
        encoder = self.run["inputs"].get("encoder")
        source = cohort.source
        inputs: Any = cohort.inputs
        if isinstance(source, Table):
            inputs = self._numbers(source.frame, cohort.name) if encoder is not None else inputs
        by_name = {attribute.name: attribute for attribute in cohort.attributes}
        if lacking := [name for name in self.groups if name not in by_name]:
            raise BadInput(f"the rule decides by group and needs {', '.join(map(repr, lacking))}; {cohort.name!r} has {', '.join(by_name)}")
        score, told = self._scored(inputs)
        found = self._decided(unlabelled(score, tuple(by_name[name] for name in self.groups), cohort.ids, cohort.name), seed).assign(**told)
        return pd.concat([pd.DataFrame({"id": cohort.ids}), found], axis=1)

    def _numbers(self, frame: pd.DataFrame, name: str) -> Tensor:
        """The input columns as the network takes them, numbers even where a column is a group as well."""
        features, encoder = self.run["inputs"]["features"], self.run["inputs"].get("encoder")
        text = self.text_columns
        frame = frame.assign(**{column: as_parsed(frame[column]) for column in features if column in text and column in frame.columns})
        problems = [f"no input column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
        if encoder is not None:
            raise_all(problems, name)
            numeric = {column: (float(mean), float(scale)) for column, (mean, scale) in encoder["numeric"].items()}
            levels = {column: tuple(each) for column, each in encoder["levels"].items()}
            return Encoder(numeric, levels, tuple(features)).transform(frame)
        for column in (c for c in features if c in frame.columns):
            if frame[column].dtype.kind not in "biuf":
                problems.append(f"input column {column!r} holds no numbers. Encode it as in the repair.")
            elif bad := int((~np.isfinite(frame[column].to_numpy(dtype=float, na_value=np.nan))).sum()):
                problems.append(f"input column {column!r}: {bad:,} of {len(frame):,} rows are empty or infinite. Fill them as in training.")
        raise_all(problems, name)
        return torch.tensor(frame[features].to_numpy(dtype=np.float32))

    def _decided(self, scores: Scores, seed: int) -> pd.DataFrame:
        """Score and decision; for a randomised rule also the probability with which the decision was drawn."""
        probability = self.rule.decide(scores)
        if not self.rule.randomised:
            return pd.DataFrame({"score": scores.score, "decision": probability.astype(int)})
        drawn = self.rule.draw(scores, seed)  # type: ignore[attr-defined]
        return pd.DataFrame({"score": scores.score, "probability": probability, "decision": drawn.astype(int)})

    def _notes(self, frame: pd.DataFrame) -> list[str]:
        """How the new rows may differ from those of the repair without being refused."""
        how = self.run["inputs"]
        found, view = [], how.get("view_column")
        if view is not None and view not in frame.columns:
            found.append(f"the network was repaired on frontal views only, and there is no column {view!r} to check the new rows by")
        if self.rule.needs_group and how.get("conflicts", "row") != "row":
            found.append(
                "the group of each row is taken as recorded; the repair resolved patients with several groups by "
                f"--conflicts {how['conflicts']}"
            )
        return found


def _network(files: Verified, model: object, trust: bool, running: Callable[[Code], None] | None) -> tuple[nn.Module, Code | None]:
    """The network with the repaired weights, in eval mode, and the code that was run to build it, if any."""
    named = model if isinstance(model, str) else None
    if ORIGINAL_ONNX in files.contents:
        code_to_run(files, named, trust)  # raises where another model is named
        graph = place_of(str(files.run["model"]["load"]))
        return OnnxNetwork(files.contents[ORIGINAL_ONNX], files.source(ORIGINAL_ONNX), graph[1] if graph else None), None
    if isinstance(model, nn.Module):
        state = safetensors_in(files.contents[WEIGHTS], files.source(WEIGHTS))
        return fit_weights(copy.deepcopy(model), state, files.source(WEIGHTS)).eval(), None
    code = code_to_run(files, named, trust)
    if code is not None and running is not None and (named is None or named.endswith(PROGRAM)):
        running(code)
    if code is not None and code.named.endswith(PROGRAM):
        return network_with(code.named, code, None, str(code.path)), code
    state = safetensors_in(files.contents[WEIGHTS], files.source(WEIGHTS))
    load = named or str(files.run["model"]["load"])
    if load == OWN_NETWORK:
        return fit_weights(_own_network(state, files.source(WEIGHTS)), state, files.source(WEIGHTS)).eval(), None
    return network_with(load, code, state, files.source(WEIGHTS)), code


def _own_network(state: Mapping[str, Tensor], source: str) -> MLP:
    """The network that `train` builds for tables, of the size of these weights."""
    first = state.get("linears.0.weight")
    if first is None or first.ndim != 2:
        raise BadInput(f"{source} does not hold the weights of the network that eq.train builds. {AGAIN}")
    depth = sum(key.startswith("linears.") and key.endswith(".weight") for key in state) - 1
    return MLP(first.shape[1], first.shape[0], depth)
