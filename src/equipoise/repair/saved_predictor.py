"""A classifier that is not a network in a bundle: its file, its entry in run.json, and how it is loaded again.

An estimator is written with skops if that is installed, otherwise as a pickle. Neither runs code when the bundle is loaded unless the user
trusts it: a pickle always needs trust, a .skops file only if it holds types that skops does not know. A function is not written; it must be
given again when the bundle is loaded.
"""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from equipoise.data import add_path_to_errors
from equipoise.errors import BadInput, Untrusted
from equipoise.methods import STRICT
from equipoise.models import TRUSTED_TYPES, Predictor, predictor, predictor_in

PREDICTOR_SCORE = "score of the model"  # the column of its scores
FILES = ("predictor.skops", "predictor.joblib")


@checked(config=STRICT, kw_only=True, frozen=True)
class SavedPredictor:
    """The entry `predictor` of run.json."""

    named: str  # its type
    file: Annotated[str, Field(pattern=r"^predictor\.(skops|joblib)$")] | None  # None: it is given when the bundle is loaded
    positive: str | int | float | bool | None  # the positive class
    columns: list[str] | None  # the columns that it was fitted on
    libraries: dict[str, str]
    trusted: list[str]  # types in a .skops file that were trusted when it was written


def save_predictor(model: Predictor, folder: Path) -> SavedPredictor:
    """Writes the estimator's file, and returns its entry in run.json."""
    file, content, trusted = _serialised(model)
    if file is not None:
        with add_path_to_errors(folder / file):
            (folder / file).write_bytes(content)
    return SavedPredictor(
        named=type(model.model).__name__,
        file=file,
        positive=model.positive,  # type: ignore[arg-type]  # checked
        columns=None if model.columns is None else list(model.columns),
        libraries=dict(model.libraries),
        trusted=trusted,
    )


def _serialised(model: Predictor) -> tuple[str | None, bytes, list[str]]:
    """The file name, the bytes, and the types in them that must be trusted; no file for a function."""
    if model.kind != "estimator":
        return None, b"", []
    try:
        import skops.io

        content = skops.io.dumps(model.model)
        return FILES[0], content, [name for name in skops.io.get_untrusted_types(data=content) if name not in TRUSTED_TYPES]
    except Exception:  # not installed, or a type that it cannot write
        import joblib

        stream = BytesIO()
        joblib.dump(model.model, stream)
        return FILES[1], stream.getvalue(), []


def predictor_of(
    recorded: SavedPredictor, contents: Mapping[str, bytes], folder: Path, given: object = None, trust: bool = False
) -> Predictor:
    """The classifier of a bundle: from its file, or as given; raises an error if that would run code that is not trusted."""
    file = recorded.file
    if given is not None and not isinstance(given, str):
        return predictor(given, positive=recorded.positive)
    if given is not None:
        raise BadInput(f"{folder} holds its classifier, a {recorded.named}. Omit --model.")
    if file is None:
        raise BadInput(f"{folder} was saved from a function, which is not written. Give it again: Bundle.load(folder, model=function)")
    try:
        types = recorded.trusted if trust else ()
        return predictor_in(contents[file], str(folder / file), trusted=types, trust_pickle=trust, positive=recorded.positive)
    except Untrusted:
        form = "a pickle" if file == FILES[1] else f"a file with the types {', '.join(recorded.trusted)}"
        raise Untrusted(
            f"{folder} holds its classifier, a {recorded.named}, as {form}, which can run code when it is read. If you know "
            "who wrote the folder, load it with --trust (Python: trust=True)."
        ) from None
