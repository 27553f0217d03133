"""A data file with the classifier to audit or repair: columns of scores, or a network or estimator that is run on the rows.

Torch is imported only if there is a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data import Cohort, ReadOptions, Rows, Scores
from equipoise.errors import UnknownName, pick, raise_all
from equipoise.presenting import presenter

if TYPE_CHECKING:
    from equipoise.models import Code
    from equipoise.repair.score_checks import ScoreCheck


@dataclass(frozen=True)
class Source:
    """A data file, how to read it, and the classifier to audit or repair on its rows.

    >>> from equipoise.data import ReadOptions
    >>> reading = ReadOptions(labels=["sick"], group=["sex"], reference=["M"], patient="patient_id")
    >>> Source(Path("scores.csv"), reading, scores=["p"]).labels
    ['sick']
    >>> Source(Path("local.csv"), reading, model="my_model.py:build", weights=Path("net.safetensors"), outputs={"sick": 3}).output_name
    '3'
    """

    file: Path
    reading: ReadOptions
    scores: Sequence[str] = ()  # columns of scores, one per label, if there is no model
    logits: bool = False  # whether these columns hold logits
    model: str | None = None  # a network, as in `models.load_model`, or the file of an estimator
    weights: Path | None = None
    output: str = "auto"  # of the network: logit or probability
    outputs: Mapping[str, int | str] = field(default_factory=dict)  # the output of a network with several, by label
    trusted: Sequence[str] = ()  # types in a .skops file
    trust_pickle: bool = False
    check_scores: Path | None = None  # a file with known scores of the model, which are compared with its scores first
    known: Sequence[str] = ()  # the columns of that file, one per label
    tolerance: float | None = None  # default: repair.TOLERANCE

    def __post_init__(self) -> None:
        for name in ("file", "weights", "check_scores"):
            path = getattr(self, name)
            object.__setattr__(self, name, None if path is None else Path(path))
        problems = []
        if bool(self.scores) == (self.model is not None):
            problems.append("give either columns of scores (scores=, --score) or a model (model=, --model)")
        for name, columns, expected in (("scores=", self.scores, self.scores), ("known=", self.known, self.check_scores)):
            if expected and len(columns) != len(self.labels):
                problems.append(f"{name} must have one column per label, in the same order: {len(self.labels)}; got {len(columns)}")
        for label in self.outputs:
            if label not in self.labels:
                problems += UnknownName("label in outputs", label, self.labels).problems
        raise_all(problems)

    @property
    def labels(self) -> list[str]:
        """The labels, or the classes of the only label, that are audited or repaired."""
        return self.reading.outputs

    @property
    def output_name(self) -> str | None:
        """The output of the network for the only label, if it is one of several."""
        return str(self.outputs[self.labels[0]]) if len(self.labels) == 1 and self.outputs else None

    @property
    def is_estimator(self) -> bool:
        """Whether the model is the file of an estimator."""
        from equipoise.models import is_estimator_file

        return self.model is not None and is_estimator_file(self.model)


def load_classifier(
    source: Source, *, code: Code | None = None, running: Callable[[Code | None], None] | None = None
) -> tuple[Any, ReadOptions, str]:
    """The network or estimator of a source, how its rows are read, and the origin of the images' preprocessing in words.

    There is no model if the file holds scores. `running` is called before the code in an exported program is run.
    """
    if source.model is None:
        return None, source.reading, ""
    from equipoise.models import OUTPUTS, load_estimator, load_network, with_saved_preprocessing

    pick("output of the network (--output-type)", source.output, OUTPUTS)
    if source.is_estimator:
        return *load_estimator(source.model, source.reading, trusted=source.trusted, trust_pickle=source.trust_pickle), ""
    reading, origin = with_saved_preprocessing(source.model, source.reading)
    network = load_network(source.model, source.weights, reading, output_name=source.output_name, code=code, running=running)
    return network, reading, origin


def check_known(source: Source, reading: ReadOptions, model: Any, cohort: Cohort, scores: Mapping[str, Scores]) -> list[ScoreCheck]:
    """The scores of each label compared with the known ones, if the source has any; see `check_known_scores`."""
    if source.check_scores is None:
        return []
    from equipoise.repair.score_checks import TOLERANCE, check_known_scores

    options: dict[str, Any] = {"outputs": source.outputs, "tolerance": source.tolerance or TOLERANCE}
    return check_known_scores(source.check_scores, source.known, model, cohort, scores, reading=reading, **options)


def check_group_names(group_names: Mapping[str, str] | None, rows: Rows) -> None:
    """Raises an error for words for a group that the rows do not have."""
    presenter("group_words")(group_names, {attribute.name: attribute.levels for attribute in rows.attributes})
