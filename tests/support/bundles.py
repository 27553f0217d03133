"""A repaired folder in a millisecond: what `equipoise debias` writes, with a network of one layer and nothing else in it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from equipoise.case.schema import sealed
from equipoise.disk import sha256
from equipoise.measures import Rule, Threshold
from equipoise.methods import read_rule, rule_to_dict
from equipoise.models import code_of

CODE = "from torch import nn\n\ndef build():\n    return nn.Linear(3, 1)\n"
AUDIT: dict[str, Any] = {
    "schema": "equipoise.audit",
    "schema_version": 1,
    "name": "test",
    "rows": 4,
    "patients": None,
    "threshold": 0.5,
    "needs_group": False,
    "groups": [],
    "gaps": [],
}


def network(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(3, 1)


def document(model: str, files: dict[str, str]) -> dict[str, Any]:
    """What run.json holds but for its digest."""
    code = code_of(model)
    about = None if code is None else {"path": str(code.path), "sha256": code.sha256}
    return {
        "schema": "equipoise.repaired",
        "schema_version": 9,
        "title": "Tiny",
        "label": "sick",
        "provenance": {
            "command": "equipoise debias",
            "model": model,
            "seed": 0,
            "when": "2026-11-15T00:00:00+00:00",
            "versions": {"equipoise": "0.1.0"},
            "hashes": {"local.csv": "0" * 64},
            "limits": ["none"],
        },
        "model": {"load": model, "output": "logit", "output_name": None, "code": about},
        "heads": None,
        "inputs": {"patient": "pid", "group": ["sex"], "features": ["a", "b", "c"]},
        "method": "standard",
        "ran": "standard",
        "settings": {},
        "methods": ["standard"],
        "goal": {"words": "small", "measure": "eod"},
        "outcome": "closed",
        "met": True,
        "sets": {"repair": {"rows": 4, "patients": None}, "test": {"rows": 4, "patients": 4}},
        "onnx": None,
        "failures": {},
        "files": files,
    }


def write(folder: Path, *, rule: Rule = Threshold(0.5), seed: int = 0, **more: bytes) -> Path:
    """The folder with its network's code beside it; `more` are further files, with _ for the dot in their names."""
    folder.mkdir(parents=True)
    code = folder.parent / "net.py"
    code.write_text(CODE)
    save_file(network(seed).state_dict(), folder / "repaired.safetensors")
    (folder / "rule.json").write_text(json.dumps(rule_to_dict(rule), indent=2))
    judged = {"outcome": "closed", "met": None, "judgement": {}}
    audits = {"schema": "equipoise.debias", "schema_version": 5, **judged, "chosen": "standard", "why": [], "goal": {}}
    (folder / "audit.json").write_text(json.dumps({**audits, "before": AUDIT, "after": AUDIT, "limit": None, "methods": {}}))
    (folder / "report.html").write_text("<html></html>")
    for name, content in more.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    seal(folder, document(f"{code}:build", {}))
    return folder


def seal(folder: Path, run: dict[str, Any]) -> None:
    """Writes run.json with the checksums of what is there."""
    files = {path.name: sha256(path.read_bytes()) for path in sorted(folder.iterdir()) if path.name != "run.json"}
    (folder / "run.json").write_text(sealed({**{key: value for key, value in run.items() if key != "digest"}, "files": files}))


def run_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def rule_in_file(path: Path) -> Rule:
    """The rule in a file."""
    return read_rule(path.read_bytes(), str(path))
