"""Where a repair comes from and how it is used again: the network and the file of its weights, the inputs, checksums and versions."""

from __future__ import annotations

import platform
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import __version__, data
from equipoise.cli import inputs as given
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from torch import nn

    from equipoise.models import Checkpoint, Code


def network_of(
    model: str, weights: Path | None, inputs: given.Inputs, output_name: str | None, code: Code | None
) -> tuple[nn.Module, Checkpoint | None, list[str]]:
    """The network, the file that its weights came in, and a remark where they cannot go back the same way."""
    from equipoise.models import Checkpoint, OneOutput, read_checkpoint, state_like, weights_of

    network = given.network_of(model, weights, inputs, output_name, code)
    if weights is None:
        inner = network.inner if output_name is not None and isinstance(network, OneOutput) else network
        return network, Checkpoint(weights_of(inner)), []
    came = read_checkpoint(weights)
    try:
        state_like(came.state, network)
    except BadInput as error:
        return network, None, [f"the weights are written under the network's own keys, not as they came: {error.problems[0]}"]
    return network, came, []


def findable(model: str) -> str:
    """The model's name with an absolute path, to be found from any folder."""
    place, colon, name = model.rpartition(":")
    if colon and (place.endswith(".py") or "/" in place):
        return f"{Path(place).absolute()}:{name}"
    return str(Path(model).absolute()) if model.endswith(".pt2") else model


def plain(inputs: given.Inputs, cohort: data.Cohort) -> dict[str, object]:
    """How new rows become inputs, for `equipoise apply`."""
    from equipoise.data import Images, Table

    bins = {a.name: a.bins.to_dict() for a in cohort.attributes if a.bins is not None}
    names = {"patient": inputs.patient, "id": inputs.id, "bins": bins, "conflicts": inputs.conflicts}
    if isinstance(cohort.source, Images):
        source = cohort.source
        how = {"size": int(source.shape[-1]), "channels": source.channels, "mean": list(source.mean), "std": list(source.std)}
        return {**names, "images": how, "image_column": inputs.image_column, "view_column": inputs.view}
    assert isinstance(cohort.source, Table)
    return {**names, "images": None, "features": [str(c) for c in cohort.source.frame.columns]}


def provenance(
    arguments: list[str],
    model: str,
    file: Path,
    weights: Path | None,
    train: Path | None,
    opened: given.Opened,
    seed: int,
    remarks: list[str],
) -> Any:
    import numpy as np
    import pandas as pd
    import torch

    from equipoise.data import Images
    from equipoise.report import Provenance

    code = model.rpartition(":")[0]
    paths = [path for path in (file, weights, train, Path(code) if code.endswith(".py") else None) if path is not None]
    hashes = {path.name: _sha256(path) for path in (*paths, *([Path(model)] if model.endswith(".pt2") else []))}
    if isinstance(opened.cohort.source, Images):
        hashes["list of images"] = _sha256_of("\n".join(map(str, opened.cohort.ids)))
    versions = {"equipoise": __version__, "torch": torch.__version__, "numpy": np.__version__, "pandas": pd.__version__}
    return Provenance(
        command=shlex.join(map(without_folders, arguments)),
        model=without_folders(model),
        seed=seed,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={**versions, "python": platform.python_version()},
        hashes=hashes,
        limits=(*opened.summary(), *remarks),
    )


def without_folders(argument: str) -> str:
    """An argument of the command line; of a path its last part alone, since folders may name a person and help nobody elsewhere.

    >>> without_folders("/home/ada/nets/my_model.py:build"), without_folders("--images=../scans/local/"), without_folders("0.5/0.25")
    ('my_model.py:build', '--images=local', '0.5/0.25')
    """
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    path = Path(value)
    is_path = len(path.parts) > 1 and (path.is_absolute() or path.parts[0] in ("..", "~") or Path(path.parts[0]).exists())
    return f"{option}{equals}{path.name}" if is_path else argument


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of(text: str) -> str:
    from equipoise.data import sha256

    return sha256(text.encode())
