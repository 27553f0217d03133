"""Files of estimators in place of a network: the options that trust them, and how their rows are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise import data
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.models import Predictor

FILES = (".skops", ".pkl", ".pickle", ".joblib")  # as in models; named here so that no library is imported for a network
TrustPickleOption = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Read the --model from a pickle (.pkl, .pickle, .joblib), which runs any code that its author put into it.",
        rich_help_panel="Network",
    ),
]
TrustTypeOption = Annotated[
    list[str] | None,
    typer.Option(help="Type in a .skops file that may be built, as in the message that lists them; repeat it.", rich_help_panel="Network"),
]


def is_estimator(model: str | None) -> bool:
    """Whether --model names the file of an estimator."""
    return model is not None and model.endswith(FILES)


def estimator_problems(
    model: str | None, labels: list[str], network_only: Mapping[str, object], trust_pickle: bool, trust_type: list[str] | None
) -> list[str]:
    """What does not go with the file of an estimator, or with anything else."""
    if not is_estimator(model):
        given = {"--trust-pickle": trust_pickle, "--trust-type": trust_type}
        return [f"{option} is for a --model in a file ({', '.join(FILES)}). Omit it." for option, value in given.items() if value]
    found = [f"{option} is for networks, and {model} holds an estimator. Omit it." for option, value in network_only.items() if value]
    if len(labels) > 1:
        found.append(f"{model} gives one score per row; name one --label, not {', '.join(labels)}")
    return found


def estimator_of(
    model: str, reading: data.Reading, trust_pickle: bool = False, trust_type: list[str] | None = None
) -> tuple[Predictor, data.Reading]:
    """The classifier in a file, and how its rows are read: the raw columns that it was fitted on, or those of --feature."""
    from equipoise.models import load_predictor

    found = load_predictor(model, trusted=trust_type or (), trust_pickle=trust_pickle, positive=reading.positive)
    if reading.images is not None:
        raise BadInput(f"{model} holds an estimator, which takes columns of a table. Omit --images.")
    columns = reading.features or (None if found.columns is None else list(found.columns))
    return found, replace(reading, features=columns, raw=True)
