"""A bundle in use: the classifier and the rule loaded from verified files, and decisions for new patients.

Nothing in a folder is executed. Code that the network needs runs only on request (`model` or `trust`), and only if it is unchanged.
Torch is imported only if there is a network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise import data, models
from equipoise.case.schema import OWN_NETWORK, PREDICTOR_SCORE, Run, SavedModel, SavedPredictor, ServedImages, ServedInputs
from equipoise.case.verify import Verified, verify
from equipoise.data import Attribute, Cohort, FeatureTable, FloatArray, Scores, Transform
from equipoise.disk import sha256
from equipoise.errors import BadInput, Misuse, Untrusted, did_you_mean, raise_all
from equipoise.measures import Rule
from equipoise.methods import read_rule
from equipoise.models import Predictor

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Code

    Running = Callable[[Code], None] | None

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

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        model: str | nn.Module | object = None,
        transform: str | Callable[[Any], Any] | None = None,
        trust: bool = False,
        images: bool | None = None,
        running: Running = None,
    ) -> Bundle:
        """The bundle in a folder, after its files are verified (SHA-256).

        Code runs only on request. Without `model` or `trust`, an `Untrusted` error shows it; networks of Equipoise need neither.

        - `folder`: the folder that `debias` or `Comparison.save` wrote.
        - `model`: the factory of the network, file.py:factory, or the network or function itself.
        - `transform`: the transform of images, file.py:transform or callable; it must be the one of the repair.
        - `trust`: runs the code that run.json names, if it is unchanged; also reads a classifier that was saved as a pickle.
        - `images`: whether new rows will have images, which is checked before any code runs.
        - `running`: called with the code before it runs.
        """
        files = verify(folder)
        run, rule = files.run, read_rule(files.contents["rule.json"], files.source("rule.json"))
        if images is not None:
            _check_images(run, images, files.folder)
        if run.predictor is not None:
            return cls(files.folder, None, rule, run, predictor=_predictor_of(files, run.predictor, model, trust))
        if run.model is not None:
            prepare = transform_to_serve(run.inputs.images, files.folder, transform, trust, running)
            network, code = _network_of(files, run.model, model, trust, running)
            return cls(files.folder, network, rule, run, code, prepare)
        if model is not None:
            raise BadInput(f"{files.folder} holds a rule for scores, and no network. Omit --model (Python: model=).")
        return cls(files.folder, None, rule, run)

    @property
    def outcome(self) -> str:
        """The outcome of the repair on held-out patients: closed, reduced, unclear, harm or unchanged. Do not use a rule that did harm."""
        return str(self.run.outcome)

    @property
    def forced(self) -> bool:
        """Whether the repair was run although a cell (group, label) has too few patients for any claim."""
        return self.run.forced

    @property
    def groups(self) -> list[str]:
        """The columns with the groups that the rule needs; empty if it needs none."""
        return list(self.run.inputs.group) if self.rule.needs_group else []

    @property
    def text_columns(self) -> set[str]:
        """The columns of a table that must be read as text: identifiers, image names and groups."""
        recorded = self.run.inputs
        images = () if recorded.images is None else (recorded.image_column, *data.IMAGE_COLUMNS)
        names = (recorded.id, recorded.patient, *images, *self.groups)
        return {name for name in names if name is not None and name not in recorded.bins}

    def score(self, inputs: Any) -> FloatArray:
        """The score of each row, with the network's output read as in the repair."""
        return self._scores(inputs)[0]

    def _scores(self, inputs: Any) -> tuple[FloatArray, dict[str, Any]]:
        """The score of each row, and further columns: with a network of classes, the class that argmax decides for."""
        if self.predictor is not None:
            return self.predictor.scores(inputs), {}
        if self.model is None or (saved := self.run.model) is None:
            raise BadInput(f"{self.folder} holds a rule for scores, and no network that makes them. Give the scores: decide(frame)")
        import torch

        inputs = torch.tensor(inputs) if isinstance(inputs, np.ndarray) else inputs
        scores, winner = models.scores_and_class(self.model, inputs, saved.output)
        if winner is None or saved.classes is None:
            return scores, {}
        return scores, {"class": np.array(saved.classes.names, dtype=object)[winner]}

    def decide(
        self,
        rows: pd.DataFrame | Cohort | Scores,
        *,
        images: str | Path | None = None,
        image_column: str | None = None,
        skip_broken: bool = False,
        allow_outside: bool = False,
        max_pixels: int = data.MAX_PIXELS,
        cache: str | Path | None = None,
        seed: int = 0,
        name: str = "rows",
        progress: Callable[[int], None] | None = None,
    ) -> pd.DataFrame:
        """Score and decision of each row, next to its identifiers; for a randomised rule also the probability of a positive decision.

        Warnings about the repair and about these rows are logged.

        - `rows`: a frame with the columns of the repair (no label is needed), or a cohort; for a rule for scores, also Scores.
        - `images`, `image_column`: the folder of the images, and the column with their names, by default that of the repair.
        - `skip_broken`, `allow_outside`, `max_pixels`, `cache`: as in `Cohort.from_images`.
        - `seed`: a randomised rule draws each decision from it and the id of the row, independent of the other rows; rows need ids.
        - `name`: what messages call the rows.
        - `progress`: called with the number of images that were read.
        """
        if self.outcome == "harm":
            why = f"The reason is in {self.folder / 'report.html'}"
            log.warning("the outcome of this repair on held-out patients is harm: do not use its decisions. %s", why)
        if self.forced:
            log.warning(
                "this repair was forced although a cell (group, label) has too few patients; held-out patients cannot show whether it helps"
            )
        if not isinstance(rows, pd.DataFrame):
            scores, columns = self._known_rows(rows)
            return self._with_decisions(pd.DataFrame({"id": rows.ids}), scores, seed, columns)
        recorded, kept, features, columns = self.run.inputs, np.arange(len(rows)), None, {}
        _check_images(self.run, images is not None, self.folder)
        attributes = groups_of(rows, self.groups, name, recorded)
        if recorded.width is not None:
            raise BadInput(f"the network in {self.folder} was repaired on arrays, which have no columns. Give a cohort: Cohort.from_arrays")
        image = None
        if images is not None and recorded.images is not None:
            image = image_column or recorded.image_column or next((c for c in data.IMAGE_COLUMNS if c in rows.columns), None)
            _check_one_patient(rows, image, recorded.patient, name)
        if (view := recorded.view) in rows.columns and (other := ~data.is_view(rows[view])).any():
            raise BadInput(  # the repair left other views out, so their scores are untested
                f"{int(other.sum()):,} of {len(rows):,} rows are not frontal views by the column {view!r}; the first is row "
                f"{int(other.argmax()) + 1:,} below the header. The network was repaired on frontal views only. Leave those rows out.",
                source=name,
            )
        if self.model is None:
            score, features = self._score_column(rows, name)
        elif images is None or recorded.images is None:
            score, columns = self._scores(self._network_inputs(rows, name))
        else:
            if image is None or image not in rows.columns:
                shown = ", ".join(map(str, rows.columns))
                raise BadInput(f"no column with the names of images. Name it with images.column. The columns are: {shown}.", source=name)
            files = list(data.find_files(rows[image], Path(images), image, allow_outside=allow_outside))
            places = [f"row {row + 1} below the header" for row in range(len(files))]
            options: dict[str, Any] = {"places": places, "skip_broken": skip_broken, "max_pixels": max_pixels, "cache": cache}
            opened = data.Images.open(files, **recorded.images.options(self.transform), **options, progress=progress)
            kept = np.array([row for row in range(len(rows)) if row not in opened.broken])
            score, columns = self._scores(opened)
        attributes = tuple(attribute.take(kept) for attribute in attributes)
        id_frame, ids = identifiers(rows, kept, recorded.id, recorded.patient, image)
        decisions = self._with_decisions(id_frame, unlabelled(score, attributes, ids, name, features=features), seed, columns)
        for note in self._notes(rows, attributes, id_frame, name):
            log.warning(note)
        return decisions

    def _known_rows(self, rows: Cohort | Scores) -> tuple[Scores, dict[str, Any]]:
        """The scores of rows that are not a frame, and further columns; a table is encoded as in the repair."""
        if isinstance(rows, Scores) and self.model is None:
            return rows, {}
        if not isinstance(rows, Cohort) or (self.model is None and self.predictor is None):
            raise Misuse("Bundle.decide", "a pandas frame or a Cohort; of a rule for scores, a frame or Scores", rows)
        if self.predictor is not None:
            return models.predict(self.predictor, rows), {}
        by_name = {attribute.name: attribute for attribute in rows.attributes}
        if missing := [name for name in self.groups if name not in by_name]:
            raise BadInput(f"the rule decides by group and needs {', '.join(map(repr, missing))}; {rows.name!r} has {', '.join(by_name)}")
        frame = rows.source.frame if isinstance(rows.source, FeatureTable) and self.run.inputs.encoder is not None else None
        score, columns = self._scores(rows.inputs if frame is None else self._network_inputs(frame, rows.name))
        groups = tuple(by_name[name] for name in self.groups)
        return unlabelled(score, groups, rows.ids, rows.name, patients=rows.patients), columns

    def _parsed(self, frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """The frame with these columns parsed as numbers even if they were read as text because they are groups or ids."""
        return frame.assign(**{name: data.as_parsed(frame[name]) for name in self.text_columns.intersection(columns, frame.columns)})

    def _network_inputs(self, frame: pd.DataFrame, name: str) -> Any:
        """The input columns of the network as numbers, encoded as in the repair."""
        features, encoder = list(self.run.inputs.features), self.run.inputs.encoder
        frame = self._parsed(frame, features)
        problems = [f"no input column {c!r}.{did_you_mean(c, map(str, frame.columns), 0.6)}" for c in features if c not in frame.columns]
        if encoder is not None:
            raise_all(problems, name)
            return data.Encoder(encoder.numeric, encoder.levels, tuple(features)).transform(frame)
        for column in (c for c in features if c in frame.columns):
            if frame[column].dtype.kind not in "biuf":
                problems.append(f"input column {column!r} holds no numbers. Encode it as in the repair.")
            elif bad := int((~np.isfinite(frame[column].to_numpy(dtype=float, na_value=np.nan))).sum()):
                problems.append(f"input column {column!r}: {bad:,} of {len(frame):,} rows are empty or infinite. Fill them as in training.")
        raise_all(problems, name)
        return frame[features].to_numpy(dtype=np.float32)

    def _score_column(self, frame: pd.DataFrame, name: str) -> tuple[FloatArray, FeatureTable | None]:
        """The scores of new rows, from their column or from the saved classifier, and the further columns that the rule reads."""
        recorded, features = self.run.inputs, list(getattr(self.rule, "columns", ()))
        if (model := self.predictor) is not None:
            given = model.columns if model.columns is not None else recorded.features
            inputs = frame[[c for c in given if c in frame.columns]] if model.columns is None and model.kind == "estimator" else frame
            frame = frame.assign(**{PREDICTOR_SCORE: model.scores(self._parsed(inputs, given))})
        column, columns = recorded.score[0], list(map(str, frame.columns))
        lacking = [(what, c) for what, names in (("score", [column]), ("feature", features)) for c in names if c not in columns]
        if problems := [f"no {what} column {c!r}.{did_you_mean(c, columns, 0.6)}" for what, c in lacking]:
            raise BadInput(*problems, source=name, advice=f"The columns are: {', '.join(columns)}.")
        twice = [c for c in (column, *features) if columns.count(c) > 1]
        raise_all([f"column {c!r} is there more than once. Rename all but one." for c in twice], name)
        score, _, problems = data.read_score_column(data.without_texts(frame[column], recorded.missing), column, recorded.logits)
        raise_all(problems, name)
        return score, FeatureTable(frame[features].reset_index(drop=True)) if features else None

    def _with_decisions(self, id_frame: pd.DataFrame, scores: Scores, seed: int, columns: dict[str, Any]) -> pd.DataFrame:
        """Identifiers, score and decision of each row; for a randomised rule also the probability with which the decision was drawn."""
        decisions, probability = pd.DataFrame({"score": scores.score}), self.rule.decide(scores)
        if self.rule.randomised:
            decisions["probability"] = probability
            probability = self.rule.draw(scores, seed)  # type: ignore[attr-defined]
        decisions = decisions.assign(decision=probability.astype(int), **columns)
        if taken := [column for column in id_frame.columns if column in decisions.columns]:
            shown = ", ".join(map(repr, taken))
            raise BadInput(f"the ids are in {shown}, which is also the name of a column of the decisions. Rename the column.")
        return pd.concat([id_frame, decisions], axis=1)

    def _notes(self, frame: pd.DataFrame, attributes: tuple[Attribute, ...], id_frame: pd.DataFrame, name: str) -> list[str]:
        """Warnings about new rows without a decision, a group or an id of their own, or that cannot be checked as in the repair."""
        recorded, left_out = self.run.inputs, len(frame) - len(id_frame)
        notes = [f"{left_out:,} rows whose image cannot be read have no decision"] if left_out else []
        if without_group := int(np.any([attribute.codes < 0 for attribute in attributes], axis=0).sum()) if attributes else 0:
            notes.append(f"{without_group:,} rows have no group; the rule decides them as rows of unknown group")
        id, view = recorded.id, recorded.view
        if id is not None and id not in id_frame.columns:
            notes.append(f"{name} has no column {id!r}, which held the ids in the repair; rows are identified by {id_frame.columns[0]!r}")
        elif id is not None and (repeated := id_frame[id][id_frame[id].duplicated() & id_frame[id].notna()].nunique()):
            notes.append(f"{repeated:,} ids in {id!r} are in more than one row, and each row has its own decision")
        if view is not None and view not in frame.columns:
            notes.append(f"the network was repaired on frontal views only, and there is no column {view!r} to check the new rows by")
        if self.rule.needs_group and recorded.conflicts != "row":
            how = f"data.conflicts={recorded.conflicts}"
            notes.append(f"the group of each row is taken as recorded; the repair resolved patients with several groups by {how}")
        return notes


def _predictor_of(files: Verified, recorded: SavedPredictor, given: object, trust: bool) -> Predictor:
    """The classifier of a bundle: from its file, or as given; raises an error if that would run code that is not trusted."""
    folder = files.folder
    if given is not None and not isinstance(given, str):
        return models.predictor(given, positive=recorded.positive)
    if given is not None:
        raise BadInput(f"{folder} holds its classifier, a {recorded.named}. Omit --model.")
    if (file := recorded.file) is None:
        raise BadInput(f"{folder} was saved from a function, which is not written. Give it again: Bundle.load(folder, model=function)")
    try:
        types = recorded.trusted if trust else ()
        source, content = files.source(file), files.contents[file]
        return models.load_predictor(source, content=content, trusted=types, trust_pickle=trust, positive=recorded.positive)
    except Untrusted:
        form = "a pickle" if file.endswith(".joblib") else f"a file with the types {', '.join(recorded.trusted)}"
        raise Untrusted(
            f"{folder} holds its classifier, a {recorded.named}, as {form}, which can run code when it is read. If you know "
            "who wrote the folder, load it with --trust (Python: trust=True)."
        ) from None


def _network_of(files: Verified, saved: SavedModel, model: object, trust: bool, running: Running) -> tuple[nn.Module, Code | None]:
    """The network of a bundle with its repair, in eval mode, and the code that was run to build it, if any."""
    named, given, code = model if isinstance(model, str) else None, model if models.is_network(model) else None, None
    if models.ORIGINAL_ONNX in files.contents and model is not None:
        raise BadInput(f"{files.folder} holds its ONNX file. Omit --model {model}.")
    if models.ORIGINAL_ONNX not in files.contents and given is None:
        code = _code_to_run(files, saved, named, trust)
        if code is not None and running is not None and (named is None or code.is_program):
            running(code)
    load = named or str(saved.load)
    classes = saved.classes
    network = models.saved_network(
        files.contents,
        files.source,
        None if load == OWN_NETWORK else load,
        code,
        given,
        output_name=saved.output_name,
        one_class=None if classes is None else (classes.columns, classes.names.index(files.run.label), classes.output),
        heads=bool(files.run.heads),  # they hold the repair
    )
    return network, code


# Code that a bundle needs


def _code_to_run(files: Verified, recorded: SavedModel, model: str | None, trust: bool) -> Code | None:
    """The code that builds the network of a bundle; None for a network of Equipoise. Runs nothing; raises an error without trust."""
    if model is not None:
        code = models.code_of(model)
        if code is not None and code.is_program and code.sha256 != files.run.files.get(models.REPAIRED_PROGRAM):
            raise BadInput(
                f"the exported program {model} contains its weights and is not the repaired one. Omit --model, or name the "
                "factory of the network, as file.py:factory."
            )
        return code
    if models.REPAIRED_PROGRAM in files.contents:
        content, path = files.contents[models.REPAIRED_PROGRAM], (files.folder / models.REPAIRED_PROGRAM).absolute()
        code, expected = models.Code(str(path), path, sha256(content), content), files.run.files[models.REPAIRED_PROGRAM]
    elif (load := recorded.load) is None:
        raise BadInput(f"{files.folder} was saved from Python and does not name the network's code. Give the network: model=network")
    elif load == OWN_NETWORK:
        return None
    else:
        path_name, _, name = load.rpartition(":")
        if path_name.endswith(".py") and not Path(path_name).is_file():
            raise BadInput(f"the network's code, {path_name}, no longer exists. Name its present location: --model file.py:{name}")
        code, expected = models.code_of(load, here=False), "" if recorded.code is None else recorded.code.sha256
    if code is None:
        return None
    place, _, name = code.named.rpartition(":")
    argument = f"--model {f'{code.path}:{name}' if place.endswith('.py') else code.named}"
    _check_code(code, expected, f"If it still builds the same network, name it: {argument}", "the network's code")
    _check_trust(code, trust, f"{files.folder} needs code to build its network", f"or name the code yourself: {argument}")
    return code


def transform_to_serve(
    images: ServedImages | None, folder: Path, given: str | Callable[[Any], Any] | None, trust: bool, running: Running
) -> Transform | None:
    """The custom transform of new images, or None if there is none; raises an error if it is not that of the repair.

    Its code runs only if it is named (`given`) or trusted, and only with the checksum of the repair: it decides what the network sees.
    """
    recorded = None if images is None else images.transform
    if recorded is None:
        if given is not None:
            raise BadInput(f"the network in {folder} takes images without a transform. Omit images.transform (transform=).")
        return None
    if given is not None and not isinstance(given, str):
        return Transform.of(given)
    if recorded.path is None:
        raise BadInput(
            f"{folder} was saved from Python with the transform {recorded.named}, whose code it does not name. Give it: transform="
        )
    name = recorded.named.rpartition(":")[2]
    if given is None and not Path(recorded.path).is_file():
        instead = f"--set images.transform=file.py:{name}"
        raise BadInput(f"the code of the transform, {recorded.path}, no longer exists. Name its present place: {instead}")
    named = given or f"{recorded.path}:{name}"
    code = models.code_of(named, here=given is not None)
    _check_code(code, recorded.sha256, "Restore the file of the repair, or repair again with the new one.", "the transform")
    if given is None and code is not None:
        _check_trust(code, trust, f"{folder} needs code to prepare its images", f"or name it: --set images.transform={named}")
        if running is not None:
            running(code)
    return models.load_transform(named, code)


def _check_code(code: Code | None, expected: str, remedy: str, what: str) -> None:
    found = "" if code is None else code.sha256
    if code is None or found != expected:
        raise Untrusted(f"{what} has changed since the repair: {code}. Its SHA-256 is {found}, and run.json has {expected}. {remedy}")


def _check_trust(code: Code, trust: bool, needs: str, instead: str) -> None:
    if not trust:
        raise Untrusted(
            f"{needs}, which would run with all your rights: {code}. Its SHA-256 is {code.sha256}, the same as in the repair. "
            f"Read it, then run it with --trust (Python: trust=True), {instead}"
        )


# New rows


def _check_images(run: Run, images: bool, folder: Path) -> None:
    """Raises an error if images are given for a classifier that takes none, or missing for one that does."""
    if run.inputs.images is None and images:
        raise BadInput(f"the classifier in {folder} takes columns of numbers, not images. Omit --images.")
    if run.inputs.images is not None and not images:
        raise BadInput(f"the network in {folder} takes images. Name their folder: --images xrays/")


def groups_of(frame: pd.DataFrame, columns: Sequence[str], source: str, how: ServedInputs) -> tuple[Attribute, ...]:
    """The groups of new rows in the columns that a rule needs, read as in the repair. Rows may all be of one group, or have none."""
    if missing := [column for column in columns if column not in frame.columns]:
        raise BadInput(
            f"the rule decides by group and needs the column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}; "
            f"the columns are: {', '.join(map(str, frame.columns))}. Add what is missing, or repair with a method that needs no group, "
            "such as bias-gda.",
            source=source,
        )
    found = {column: data.without_texts(frame[column], how.missing) for column in columns}
    found |= {column: data.merge_groups(values, how.merge) for column, values in found.items() if column not in how.bins}
    return tuple(Attribute.of_new_rows(values, column, how.bins.get(column)) for column, values in found.items())


def identifiers(
    frame: pd.DataFrame, kept: data.IntArray, id: str | None, patient: str | None, image: str | None = None
) -> tuple[pd.DataFrame, npt.NDArray[np.object_]]:
    """The identifying columns of the kept rows, and an id per row as text, None if it is empty; without such columns, row numbers.

    The id of a row is in the column of ids, else in that of images, else in that of patients.
    """
    columns = [name for name in dict.fromkeys((id, patient, image)) if name in frame.columns]
    if not columns:
        return pd.DataFrame({"row": kept + 1}), np.arange(len(kept))  # type: ignore[return-value]  # numbered, not named
    key = next(name for name in (id, image, patient) if name in columns)
    texts = [None if pd.isna(value) or not str(value).strip() else str(value) for value in data.read_identifiers(frame[key])[kept]]
    return frame[columns].iloc[kept].reset_index(drop=True), np.array(texts, dtype=object)


def _check_one_patient(frame: pd.DataFrame, image: str | None, patient: str | None, name: str) -> None:
    """Raises an error if one image is named for several patients, who would get another patient's score."""
    if not {image, patient} <= set(frame.columns):
        return
    patients = frame.groupby(image)[patient].nunique()
    if len(shared := patients[patients > 1].index):
        shown = ", ".join(map(repr, shared[:5])) + (" ..." if len(shared) > 5 else "")
        raise BadInput(
            f"image column {image!r}: {len(shared):,} images are named for more than one patient of {patient!r}: {shown}. "
            "Correct the table: an image belongs to one patient.",
            source=name,
        )


def unlabelled(
    score: FloatArray,
    attributes: tuple[Attribute, ...],
    ids: npt.NDArray[np.object_],
    name: str,
    patients: npt.NDArray[np.object_] | None = None,
    **more: Any,
) -> Scores:
    """The scores of new rows, which have no labels, with further fields; rows whose group is not needed have the group "(none)"."""
    no_group = Attribute("group", ("(none)",), np.full(len(score), data.MISSING, dtype=np.int64))
    return Scores(np.zeros(len(score), dtype=np.int64), score, attributes or (no_group,), patients, ids, name, **more)
