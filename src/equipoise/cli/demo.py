"""`equipoise demo`: audits, repairs and verifies a classifier from another centre with the commands that a hospital would type."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.console import bar, say

BUDGET = "2"  # minutes instead of the default 10, so that the demo is short on any machine


def demo_command(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the data, the network and the repaired network.")
    ] = Path("demo-output"),
    rows: Annotated[int, typer.Option(help="Number of simulated X-rays at centre 2; centre 1 has three fifths as many.")] = 8_000,
    epochs: Annotated[int, typer.Option(help="Epochs of training at centre 1.")] = 6,
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of an earlier demo.")] = False,
) -> None:
    """Train a classifier on simulated chest X-rays at centre 1, audit and repair it at centre 2, verify it on held-out patients.

    Nothing is downloaded. Each command is printed before it runs, and the folder then holds what a hospital would have.

    [bold]Example:[/bold] equipoise demo --out demo-output
    """
    from equipoise.case import check_folder
    from equipoise.studies import CENTRES, check_demo, train_at_centre_1, write_hospital

    start, (first, second) = time.perf_counter(), CENTRES
    trained_on = check_demo(rows, epochs, seed)
    check_folder(folder, overwrite, replaced=False)
    say("\n1. Centre 1 trains a classifier for a widened mediastinum", "bold")
    say(
        f"{trained_on:,} simulated chest X-rays, {first.men:.0%} of them of men. {first.sick_men:.0%} of the men and "
        f"{first.sick_women:.0%} of the women have the finding there, so the network learns to expect it in men."
    )
    with bar("training", epochs) as step:
        network = train_at_centre_1(trained_on, epochs=epochs, seed=seed, progress=lambda epoch, _: step(epoch + 1, epochs))
    say("\n2. Centre 2 audits it on its own patients", "bold")
    say(
        f"{rows:,} X-rays of other patients with another exposure. {second.sick_women:.0%} of the women and {second.sick_men:.0%} of "
        "the men have the finding here. The threshold is the best one at centre 1."
    )
    with bar("drawing X-rays") as step:
        hospital = write_hospital(folder, network, rows, seed=seed)
        step(100, 100)
    threshold, images, model = f"{network.threshold:.3f}", ["--images", str(hospital.xrays)], ["--model", f"{hospital.code}:build"]
    roles = ["--label", hospital.label, "--group", hospital.group, "--reference", hospital.reference, "--patient", hospital.patient]
    local = [str(hospital.local), *images, "--set", f"images.size={hospital.size}", *roles, *model, "--weights", str(hospital.weights)]
    _run(ctx, ["audit", *local, "--threshold", threshold])
    say("\n3. Centre 2 repairs it on three fifths of its patients and verifies it on the others", "bold")
    say("No method is named: the default tries several within a budget of minutes, and chooses by patients that no fit has seen.")
    say("'original' is the network at the threshold of best balanced accuracy on the repair set, since none in use is named here.")
    common = ["--set", f"repair.budget={BUDGET}", "--set", "repair.test_fraction=0.4", "--set", f"repair.seed={seed}"]
    options = [*([] if onnx else ["--set", "report.onnx=false"]), "--set", "report.thumbnails=true"]
    options += ["--set", "report.title=Widened mediastinum (simulated)"]
    again = ["--overwrite"] if overwrite else []
    _run(ctx, ["debias", *local, "--measure", "eod", *common, *options, "--out", str(folder / "repaired"), *again])
    say("\n4. New patients without a known diagnosis are decided; their sex is used only if the chosen method needs it", "bold")
    new = ["apply", str(folder / "repaired"), str(hospital.new), *images, *model, "--out", str(folder / "decisions.csv")]
    _run(ctx, new)
    scores = ["audit", str(hospital.scores), "--score", "score", *roles, "--threshold", threshold]
    spd = ["debias", *local, "--method", "bias-gda", "--measure", "spd", "--out", str(folder / "repaired-spd")]
    say("\nNext steps", "bold")
    say(
        f"All data are simulated and say nothing about women, men or any clinical classifier. {folder} holds what you "
        "would bring: images, a table, scores, a network's code and weights. Try next:"
    )
    for command in (scores, [*spd, "--dry-run"], spd, new):
        say(f"  equipoise {shlex.join(command)}")
    say(f"\nDone in {time.perf_counter() - start:.0f} s. Report: {folder / 'repaired' / 'report.html'}", "bold")


def _run(ctx: typer.Context, arguments: list[str]) -> None:
    """Prints a command as it would be typed, and runs it."""
    say(f"\n$ equipoise {shlex.join(arguments)}", "cyan")
    code: Any = ctx.find_root().command.main(arguments, prog_name="equipoise", standalone_mode=False, obj=arguments)
    if code:
        raise typer.Exit(int(code))
