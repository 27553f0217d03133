"""A repaired folder in use: the network and its rule again, and decisions for rows that nobody has labelled yet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from equipoise.data.attribute import MISSING, Attribute, group_names
from equipoise.data.bins import Bins, numbers_in
from equipoise.data.columns import ObjectArray
from equipoise.data.files import sha256
from equipoise.data.scores import Scores
from equipoise.errors import BadInput, raise_all
from equipoise.measures.cells import FloatArray
from equipoise.measures.decision import Rule
from equipoise.methods.rules import randomised, read_rule
from equipoise.models.checkpoint import load_model
from equipoise.models.export import HEADS, load_heads
from equipoise.models.score import outputs, sigmoid
from equipoise.report.folder import WEIGHTS
from equipoise.report.repaired import SCHEMA, SCHEMA_VERSION

WHERE = "Name the folder that `equipoise debias` wrote."


@dataclass(frozen=True, eq=False)
class Repaired:
    """What a repaired folder holds: the network, its rule, and how it was made."""

    model: nn.Module
    rule: Rule
    run: Mapping[str, Any]
    remarks: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """The columns that the rule needs to know a patient's group; empty where it needs none."""
        return [str(name) for name in self.run["groups"]] if self.rule.needs_group else []

    def score(self, inputs: Any) -> FloatArray:
        """The score of each row, as `debias` has read the network's output."""
        raw = outputs(self.model, inputs).double()
        bad = int((~torch.isfinite(raw)).sum())
        if bad:
            raise BadInput(f"the network gave NaN or infinity for {bad:,} of {len(raw):,} rows. Look for missing or unscaled inputs.")
        return np.asarray((sigmoid(raw) if self.run["model"]["output"] == "logit" else raw).numpy(), dtype=np.float64)


def open_repaired(folder: Path, model: str | None = None) -> Repaired:
    """The network and rule in a folder. The network's factory is the one in run.json, whose code is run, or `model` in its place."""
    run = read_run(folder)
    rule = read_rule(folder / "rule.json")
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise BadInput(f"{folder} holds no weights ({', '.join(WEIGHTS)}). {WHERE}")
    if weights.suffix == ".pt2" and model is None:
        network = load_model(str(weights))
    else:
        if weights.suffix == ".pt2":
            weights = folder / "repaired.safetensors"
        factory = model or str(run["model"]["load"])
        place = factory.rpartition(":")[0]
        if model is None and place.endswith(".py") and not Path(place).is_file():
            raise BadInput(
                f"the network's code, {place}, is not there any more. Say where it is now: --model file.py:{factory.rpartition(':')[2]}"
            )
        network = load_model(factory, weights)
    if run["model"].get("output_name") is not None:
        from equipoise.models.vision import OneOutput

        name = str(run["model"]["output_name"])
        network = OneOutput(network, int(name) if name.lstrip("-").isdigit() else name).eval()
    if run.get("heads"):  # the repair is in them alone: without their file there is nothing to serve
        network = load_heads(network, folder / HEADS)
    return Repaired(network, rule, run, tuple(_remarks(run, model)))


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json holds, checked to be one of ours."""
    path = folder / "run.json"
    if not folder.is_dir():
        raise BadInput(f"no such folder: {folder}. {WHERE}")
    if not path.is_file():
        inside = sorted(place.parent.name for place in folder.glob("*/run.json"))
        labels = f" It holds a folder for each label: {', '.join(inside)}. Name one of them." if inside else f" {WHERE}"
        raise BadInput(f"{folder} has no run.json.{labels}")
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not readable as JSON: {error}. {WHERE}") from error
    if not isinstance(run, dict) or run.get("schema") != SCHEMA:
        raise BadInput(f"{path} is not of a repaired network (schema {SCHEMA!r}). {WHERE}")
    if run.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{path} has version {run.get('schema_version')!r}; this Equipoise reads {SCHEMA_VERSION}. Use the one that wrote it."
        )
    lacking = [key for key in ("model", "inputs", "groups") if key not in run]
    raise_all([f"{path} is damaged: it says nothing of {', '.join(lacking)}"] if lacking else [])
    return run


def _remarks(run: Mapping[str, Any], model: str | None) -> list[str]:
    """What may have changed since the repair."""
    place = str(run["model"]["load"]).rpartition(":")[0]
    known = run.get("hashes", {}).get(Path(place).name)
    if model is None and known and Path(place).is_file() and sha256(Path(place).read_bytes()) != known:
        return [f"{place} has changed since the repair; check that it still builds the same network"]
    return []


def groups_of(frame: pd.DataFrame, columns: Sequence[str], source: str, bins: Mapping[str, Bins] | None = None) -> tuple[Attribute, ...]:
    """The groups of new rows in the columns that a rule needs, cut as in the repair. One group is enough; rows may have none."""
    lacking = [column for column in columns if column not in frame.columns]
    if lacking:
        raise BadInput(
            f"the rule decides by group and needs the column{'s' if len(lacking) > 1 else ''} {', '.join(map(repr, lacking))}; "
            f"the columns are: {', '.join(map(str, frame.columns))}. Add what is missing, or repair with a method that needs no group, "
            "such as bias-gda.",
            source=source,
        )
    found = []
    for column in columns:
        cut = (bins or {}).get(column)
        if cut is not None:
            found.append(Attribute(column, cut.names, cut.codes(numbers_in(frame[column], column)), bins=cut))
            continue
        names = group_names(frame[column])
        levels = tuple(sorted(str(level) for level in names.dropna().unique())) or ("(none)",)
        codes = pd.Categorical(names, categories=list(levels)).codes.astype(np.int64)
        found.append(Attribute(column, levels, codes))
    return tuple(found)


def decide(
    repaired: Repaired, score: FloatArray, attributes: tuple[Attribute, ...], ids: ObjectArray, seed: int, name: str
) -> pd.DataFrame:
    """Score and decision of each row; for a randomised rule also the probability with which the decision was drawn."""
    n = len(score)
    attributes = attributes or (Attribute("group", ("(none)",), np.full(n, MISSING, dtype=np.int64)),)
    scores = Scores(np.zeros(n, dtype=np.int64), score, attributes, None, ids, name)
    chance = repaired.rule.decide(scores)
    if not randomised(repaired.rule):
        return pd.DataFrame({"score": score, "decision": chance.astype(int)})
    drawn = repaired.rule.draw(scores, seed)  # type: ignore[attr-defined]
    return pd.DataFrame({"score": score, "probability": chance, "decision": drawn.astype(int)})
