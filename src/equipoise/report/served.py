"""A repaired folder in use: the network and its rule again, and decisions for rows that nobody has labelled yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from equipoise.data import MISSING, Attribute, Bins, ObjectArray, Scores, group_names, numbers_in, sha256
from equipoise.errors import BadInput, Untrusted
from equipoise.measures import FloatArray, Rule
from equipoise.methods import rule_in
from equipoise.models import HEADS, PROGRAM, Code, code_of, heads_in, network_with, outputs, safetensors_in, sigmoid
from equipoise.report.bundle import Bundle, read_bundle

REPAIRED_PROGRAM = f"repaired{PROGRAM}"


@dataclass(frozen=True, eq=False)
class Repaired:
    """What a repaired folder holds: the network, its rule, and how it was made."""

    model: nn.Module
    rule: Rule
    run: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    code: Code | None = None  # that was run to build the network

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


def open_repaired(folder: Path, model: str | None = None, trust: bool = False) -> Repaired:
    """The network and rule in a folder, each file of which is the one that was written (SHA-256).

    A network's code is run only when that is asked for: `model` names the factory to run, `trust=True` runs the one that run.json names, if
    it is unchanged. Without either an Untrusted error shows what would be run. Backbones are Equipoise's own code and need neither.
    """
    bundle = read_bundle(Path(folder))
    return repaired_in(bundle, code_asked_for(bundle, model, trust), model)


def code_asked_for(bundle: Bundle, model: str | None = None, trust: bool = False) -> Code | None:
    """The code that is run to build the network of a folder; None for a backbone. Runs nothing; raises where nobody asked for it."""
    recorded = bundle.run["model"]
    if model is not None:
        code = code_of(model)
        if code is not None and model.endswith(PROGRAM) and code.sha256 != bundle.run["files"].get(REPAIRED_PROGRAM):
            raise BadInput(
                f"the exported program {model} has its weights with it and is not the repaired one. Leave out --model, or name the "
                "factory of the network, as file.py:factory."
            )
        return code
    if REPAIRED_PROGRAM in bundle.contents:
        content = bundle.contents[REPAIRED_PROGRAM]
        path = (bundle.folder / REPAIRED_PROGRAM).absolute()
        code, known = Code(str(path), path, sha256(content), content), bundle.run["files"][REPAIRED_PROGRAM]
    else:
        load = str(recorded["load"])
        place, _, name = load.rpartition(":")
        if place.endswith(".py") and not Path(place).is_file():
            raise BadInput(f"the network's code, {place}, is not there any more. Name where it is now: --model file.py:{name}")
        found = code_of(load, here=False)
        if found is None:
            return None
        code, known = found, (recorded["code"] or {}).get("sha256")
    if code.sha256 != known:
        raise Untrusted(
            f"the network's code has changed since the repair: {code}. Its SHA-256 is {code.sha256}, and run.json has {known}. "
            f"If it still builds the same network, name it: --model {_typed(code)}"
        )
    if not trust:
        raise Untrusted(
            f"{bundle.folder} needs code to build its network, which would run with all your rights: {code}. "
            f"Its SHA-256 is {code.sha256}, the same as when the network was repaired. "
            f"Look at it, then run it with --trust (Python: trust=True), or name the code yourself: --model {_typed(code)}"
        )
    return code


def _typed(code: Code) -> str:
    """How the code is named on a command line."""
    _, colon, name = code.named.rpartition(":")
    return f"{code.path}:{name}" if colon and code.named.rpartition(":")[0].endswith(".py") else code.named


def repaired_in(bundle: Bundle, code: Code | None, model: str | None = None) -> Repaired:
    """The network and rule of a folder, built by this code, which is run."""
    run = bundle.run
    rule = rule_in(bundle.contents["rule.json"], bundle.source("rule.json"))
    if rule.needs_group and not run["groups"]:
        raise BadInput("the rule needs a group and run.json names none", source=str(bundle.folder))
    if code is not None and code.named.endswith(PROGRAM):
        network = network_with(code.named, code, None, str(code.path))
    else:
        state = safetensors_in(bundle.contents["repaired.safetensors"], bundle.source("repaired.safetensors"))
        network = network_with(model or str(run["model"]["load"]), code, state, bundle.source("repaired.safetensors"))
    if run["model"]["output_name"] is not None:
        from equipoise.models import OneOutput, output_named

        network = OneOutput(network, output_named(str(run["model"]["output_name"]))).eval()
    if run["heads"]:  # the repair is in them alone: without their file there is nothing to serve
        network = heads_in(network, bundle.contents[HEADS], bundle.source(HEADS))
    return Repaired(network, rule, run, code=code)


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
    if not repaired.rule.randomised:
        return pd.DataFrame({"score": score, "decision": chance.astype(int)})
    drawn = repaired.rule.draw(scores, seed)  # type: ignore[attr-defined]
    return pd.DataFrame({"score": score, "probability": chance, "decision": drawn.astype(int)})
