"""Several labels of one network on the command line: their scores, and a repair for all of them with a folder each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from equipoise import data, report
from equipoise.cli.console import out

if TYPE_CHECKING:
    from torch import nn

    from equipoise.repair import Comparison, Saved


def scores_of_labels(network: nn.Module, cohort: data.Cohort, output: str, outputs: Mapping[str, int | str]) -> dict[str, data.Scores]:
    """The scores of each label, from one pass of the network over the rows."""
    from equipoise.models import chosen_outputs, scores_of
    from equipoise.repair import set_output

    set_output(network, output)
    chosen = chosen_outputs(network, cohort.inputs, cohort.labels, cohort.kind, outputs)
    return scores_of({name: chosen.view(at) for at, name in enumerate(cohort.labels)}, cohort)


def print_labels(folder: Path, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], remarks: list[str]) -> None:
    """The result of each label; of one label, just that."""
    from equipoise.cli.outcome import print_result

    for name, case in cases.items():
        if len(cases) > 1:
            out.print(Text(f"\n{report.printable(name)}", style="bold underline"))
        print_result(case, saved[name], remarks if len(cases) == 1 else [])
    if len(cases) > 1:
        for line in remarks:
            out.print(Text(report.printable(line)), soft_wrap=True)
        out.print(Text(f"\nAll labels: {report.printable(str(folder / 'report.html'))}"), soft_wrap=True)


def told_as_json(folder: Path, saved: Mapping[str, Saved], left_out: Mapping[str, object]) -> str:
    """What --json prints: audit.json and what was written, by label where there are several."""
    found = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    files, failures = {name: list(one.files) for name, one in saved.items()}, {name: dict(one.failures) for name, one in saved.items()}
    extra: dict[str, Any] = {"files": files, "failures": failures}
    if len(saved) == 1:
        extra = {key: next(iter(value.values())) for key, value in extra.items()}
    return json.dumps({**found, "out": str(folder), **extra, "rows_left_out": left_out}, indent=2, allow_nan=False)
