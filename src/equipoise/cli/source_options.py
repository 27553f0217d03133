"""The data file of an audit or a repair, with its scores or its model: the options, their problems, and what they are parsed to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise import data
from equipoise.cli.inputs import Inputs
from equipoise.cli.options import NetworkOptions, ScoreOptions
from equipoise.errors import BadInput, UnknownName, raise_all

if TYPE_CHECKING:
    from equipoise.repair import Source

ESTIMATOR_FILES = (".skops", ".pkl", ".pickle", ".joblib")  # as in models, repeated here to avoid imports for a network


@dataclass(frozen=True)
class SourceOptions:
    """The options about the data file of an audit or a repair, with columns of scores or with the network that makes them."""

    file: Path
    network: NetworkOptions
    inputs: Inputs
    scores: ScoreOptions

    @property
    def columns(self) -> list[str]:
        """The columns of the scores to audit or repair, one per label; none with a network."""
        return list(self.scores.score or []) if self.scores.check_scores is None else []

    @property
    def known(self) -> list[str]:
        """The columns of the known scores in the file of --check-scores."""
        return list(self.scores.score or []) if self.scores.check_scores is not None else []

    @property
    def kind(self) -> str:
        """Either "labels" or "classes"."""
        return "classes" if self.inputs.options["classes"] else "labels"

    @property
    def network_only(self) -> dict[str, object]:
        """The values of the options that only a network takes."""
        network, options = self.network, self.inputs.options
        return {
            "--weights": network.weights,
            "--output-type": network.output_type,
            "--output-name": network.output_name,
            "--class": options["classes"],
            "--images": options["images"],
        }

    def source(self) -> Source:
        """The file and the classifier as the library takes them. This runs the code of --transform."""
        from equipoise.repair import Source

        network, scores, labels = self.network, self.scores, self.inputs.labels
        outputs: dict[str, int | str] = {}
        if network.output_name and len(labels) > 1:
            outputs = parse_outputs(network.output_name, labels)
        elif (output := parse_output(network.output_name)) is not None:
            outputs = {labels[0]: output}
        return Source(
            self.file,
            self.inputs.reading,
            scores=self.columns,
            logits=scores.logits,
            model=network.model,
            weights=network.weights,
            output=network.output_type or "auto",
            outputs=outputs,
            trusted=network.trust_type or (),
            trust_pickle=network.trust_pickle,
            check_scores=scores.check_scores,
            known=self.known,
            tolerance=scores.tolerance,
        )


def source_of(file: Path, network: NetworkOptions, inputs: Inputs, scores: ScoreOptions) -> SourceOptions:
    """The data file with the score column of each label, named by --score or found by --score-prefix."""
    prefix = scores.score_prefix
    if prefix is None:
        return SourceOptions(file, network, inputs, scores)
    if scores.score:
        raise BadInput("--score names score columns one by one, --score-prefix all at once; use one of them")
    pairs = data.paired_columns(file, prefix)
    if lacking := [label for label in inputs.columns if label not in pairs]:
        raise BadInput(
            *(f"label {label!r} has no score column {prefix + label!r} next to it" for label in lacking),
            f"The pairs of label and score are: {', '.join(pairs)}. Name those, or correct --score-prefix {prefix}",
            source=file.name,
        )
    chosen = {label: pairs[label] for label in inputs.columns or pairs}
    labelled = Inputs({**inputs.options, "labels": list(chosen)})
    return SourceOptions(file, network, labelled, replace(scores, score=list(chosen.values())))


def role_problems(source: SourceOptions, network_only: Mapping[str, object]) -> list[str]:
    """Problems with the choice between scores and a network: exactly one of them is audited or repaired."""
    problems, columns, labels, model = [], source.columns, source.inputs.labels, source.network.model
    if bool(columns) == (model is not None):
        problems.append("give either a column of scores with --score (or --score-prefix) or a network with --model (and --weights)")
    if columns and len(columns) != len(labels):
        problems.append(f"{len(labels)} --label and {len(columns)} --score do not match; give one score per label, in the same order")
    if model is None:
        problems += [f"{option} requires --model. Omit it." for option, value in network_only.items() if value]
    return problems


def estimator_problems(source: SourceOptions, network_only: Mapping[str, object]) -> list[str]:
    """Options for estimators without one, or options for networks with an estimator."""
    model, labels = source.network.model, source.inputs.labels
    if model is None or not model.endswith(ESTIMATOR_FILES):
        trust = {"--trust-pickle": source.network.trust_pickle, "--trust-type": source.network.trust_type}
        return [f"{option} is for a --model in a file ({', '.join(ESTIMATOR_FILES)}). Omit it." for option, value in trust.items() if value]
    problems = [f"{option} is for networks, and {model} holds an estimator. Omit it." for option, value in network_only.items() if value]
    if len(labels) > 1:
        problems.append(f"{model} gives one score per row; name one --label, not {', '.join(labels)}")
    return problems


def check_score_problems(source: SourceOptions) -> list[str]:
    """Problems with --check-scores and the options that it needs."""
    options, tolerance = source.inputs.options, source.scores.tolerance
    if source.scores.check_scores is None:
        return [] if tolerance is None else ["--tolerance requires --check-scores. Omit it."]
    problems = []
    if source.network.model is None:
        problems.append("--check-scores compares the scores of a --model. Add it, or omit --check-scores.")
    if not source.known or len(source.known) != len(source.inputs.labels):
        each = "--class, with its probability, in the same order" if options["classes"] else "--label"
        problems.append(f"--check-scores needs the column of the known scores: one --score per {each}; got {len(source.known)}")
    if options["images"] is None and options["id"] is None:
        problems.append("--check-scores joins rows by --id; name the column with ids that both files have.")
    if tolerance is not None and not tolerance > 0:
        problems.append(f"--tolerance must be positive, as in 0.0001; got {tolerance:g}")
    return problems


def parse_outputs(texts: list[str] | None, labels: list[str]) -> dict[str, int | str]:
    """The output of the network for each of several labels, from --output-name.

    >>> parse_outputs(["Effusion=3", "Mass=Mass/Nodule"], ["Effusion", "Mass"])
    {'Effusion': 3, 'Mass': 'Mass/Nodule'}
    """
    from equipoise.models import output_named

    outputs: dict[str, int | str] = {}
    problems = []
    for text in texts or []:
        label, equals, output = (piece.strip() for piece in text.partition("="))
        if not equals or not output:
            problems.append(f"--output-name must be LABEL=OUTPUT where there are several labels, as in {labels[0]}=0; got {text!r}")
        elif label not in labels:
            problems += UnknownName("label in --output-name", label, labels).problems
        elif label in outputs:
            problems.append(f"--output-name {label} was given twice; give one output per label")
        else:
            outputs[label] = output_named(output)
    raise_all(problems)
    return outputs


def parse_output(texts: list[str] | None) -> str | None:
    """The name or number of the output of the network for the only label, from --output-name."""
    if texts and len(texts) > 1:
        raise BadInput(f"--output-name takes one output where there is one --label; got {', '.join(map(repr, texts))}")
    return texts[0] if texts else None
