"""`equipoise demo`: from nothing to an audit."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from equipoise.cli.console import bar, out
from equipoise.data import catalogue
from equipoise.data.files import check_writable, write_text
from equipoise.data.splits import split
from equipoise.report.terminal import audit_view


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where to write scores, audit and figures.")] = Path("demo-output"),
    rows: Annotated[int, typer.Option(help="Simulated rows.")] = 12_000,
    alpha: Annotated[float, typer.Option(help="How strongly the label depends on the group.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
) -> None:
    """Simulate data, train a biased classifier on them, audit it: nothing to download, under a minute.

    [bold]Example:[/bold] equipoise demo --out demo-output
    """
    import pandas as pd

    from equipoise.measures.audit import audit as run_audit
    from equipoise.models.score import predict
    from equipoise.models.train import Training, train
    from equipoise.report.figures import save_audit_figures

    check_writable(folder / "scores.csv")
    cohort = catalogue.load("loh", n=rows, alpha=alpha, seed=seed)
    parts = split(cohort, seed=seed)
    why = "the label depends on the group" if alpha else "the label does not depend on the group"
    out.print(f"Simulated {rows:,} people in two groups (Loh et al., alpha = {alpha:g}); {why}.", soft_wrap=True)
    settings = Training()
    with bar("training", settings.epochs) as step:
        network = train(parts.train, parts.valid, seed=seed, settings=settings, progress=lambda epoch, _: step(epoch + 1, settings.epochs))
    scores = predict(network, parts.test)
    with bar("bootstrap") as step:
        result = run_audit(scores, valid=predict(network, parts.valid), seed=seed, progress=step)
    attribute = scores.attribute
    frame = pd.DataFrame({"id": scores.ids, "y": scores.y, "score": scores.score, attribute.name: attribute.names})
    write_text(folder / "scores.csv", frame.to_csv(index=False))
    write_text(folder / "audit.json", json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n")
    save_audit_figures(scores, result, folder, ("png", "svg", "html"))
    out.print(audit_view(result))
    written = Text(f"Written to {folder}/: scores.csv, audit.json, and the figures rates, gaps, thresholds (png, svg, html).")
    out.print(written, soft_wrap=True)
    out.print("The same audit from the file, as for scores of your own:")
    command = ["equipoise", "audit", str(folder / "scores.csv"), "--label", "y", "--score", "score", "--group", attribute.name]
    command += ["--reference", attribute.reference, "--id", "id", "--threshold", str(result.to_dict()["threshold"])]
    out.print(Text(f"  {shlex.join(command)}"), soft_wrap=True)
