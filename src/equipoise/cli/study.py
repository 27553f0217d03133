"""`equipoise study`: list the studies, run one, show its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from equipoise import report
from equipoise.cli.commands import App
from equipoise.cli.console import JsonOption, RootOption, err, notes, out, say, say_places, say_stopped, to_json
from equipoise.data import MAX_PIXELS
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.studies import Event, StudyFolder

study_app = App(
    no_args_is_help=True,
    help="""Studies: data x splits x methods x measures, resumable, on one core or on a cluster.

    [bold]Example:[/bold] equipoise study run paper-tabular --splits 20 --out runs/""",
)


@study_app.command("list")
def study_list(as_json: JsonOption = False) -> None:
    """List the studies that come with Equipoise. A TOML file defines a study of your own.

    [bold]Example:[/bold] equipoise study list
    """
    from equipoise.studies import PRESETS, read_plan

    plans = [read_plan(name) for name in PRESETS]
    if as_json:
        listed = [
            {key: getattr(plan, key) for key in ("name", "about", "splits", "measures")}
            | {"data": [entry.name for entry in plan.data], "methods": [arm.name for arm in plan.methods]}
            for plan in plans
        ]
        print(to_json(listed))
        return
    for plan in plans:
        out.print(Text.assemble((f"{plan.name}: ", "bold"), plan.about), soft_wrap=True)
        say(f"    data: {', '.join(entry.name for entry in plan.data)}", "dim")
        say(f"    methods: {', '.join(arm.name for arm in plan.methods)}", "dim")
        say(f"    {plan.splits} splits, {', '.join(plan.measures)}", "dim")


@study_app.command("run")
def study_run(
    study: Annotated[str, typer.Argument(help="The name of a study (see `equipoise study list`), or a TOML file.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results; a run of the same study in it is resumed.")],
    *,
    splits: Annotated[
        int | None,
        typer.Option(
            help="Number of splits; they cannot be added later.",
            show_default="the study's",
        ),
    ] = None,
    runner: Annotated[str, typer.Option(help="serial, processes or ray; on a CPU the results are bit-identical.")] = "processes",
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, or concurrent tasks on Ray.", show_default="the number of cores; for images, as many as fit the GPU"),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --runner ray: address of the cluster; auto for this machine.", show_default="a local cluster")
    ] = None,
    root: RootOption = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device for the networks: cpu, cuda or cuda:1.", show_default="tables: cpu; images: a GPU if there is one"),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Only this data set; repeat the option for more.", show_default="all but the optional ones")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; repeat the option for more.", show_default="all")] = None,
    measure: Annotated[list[str] | None, typer.Option(help="Only this measure; repeat the option for more.", show_default="all")] = None,
    size: Annotated[int | None, typer.Option(min=16, help="Images: pixels per side.", show_default="the study's")] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Images: skip unreadable ones; broken/ counts them.")] = False,
    max_pixels: Annotated[
        int | None, typer.Option(help="Images: refuse those with more pixels before decoding them.", show_default=f"{MAX_PIXELS:,}")
    ] = None,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Images: also read files outside their folder (.., absolute paths, links).")
    ] = False,
    mimic_iv: Annotated[
        Path | None, typer.Option(help="MIMIC-CXR: folder of the MIMIC-IV tables.", show_default="the folder of MIMIC-CXR")
    ] = None,
    pretrained: Annotated[
        list[str] | None,
        typer.Option(
            help="Images: initial weights of a network, as in resnet-18=resnet18.pth or efficientnet-lite0=imagenet; repeat it for more."
        ),
    ] = None,
    no_pretrained: Annotated[
        bool, typer.Option("--no-pretrained", help="Images: start from random weights instead of the study's pretrained ones.")
    ] = False,
) -> None:
    """Run a study; repeat the command to resume an interrupted one.

    [bold]Example:[/bold] equipoise study run paper-tabular --splits 20 --out runs/ --data adult --data compas --method bias-gda

    [bold]Chest X-rays:[/bold] equipoise study run nih --root data/ --out nih/ --data nih-effusion-resnet-18
    """
    from equipoise.data import write_text
    from equipoise.studies import (
        narrow,
        read_plan,
        read_rows,
        run_study,
        study_text,
        study_view,
        summarise,
        with_options,
        with_weights,
        without_weights,
    )

    if no_pretrained and pretrained:
        raise BadInput("--no-pretrained and --pretrained cannot be combined; omit one")
    plan = with_options(
        narrow(read_plan(study), splits=splits, data=data, methods=method, measures=measure),
        size=size,
        skip_broken=skip_broken or None,
        max_pixels=max_pixels,
        allow_outside=allow_outside or None,
        mimic_iv=None if mimic_iv is None else str(mimic_iv.absolute()),
    )
    plan = without_weights(plan) if no_pretrained else with_weights(plan, pretrained or [])
    try:
        with _bar() as progress:
            done = run_study(plan, folder, runner=runner, workers=workers, address=address, root=root, device=device, progress=progress)
    except KeyboardInterrupt:
        say_stopped(f"Stopped. Finished tasks are in {folder}; the same command resumes from there.")
        raise
    rows = read_rows(done)
    write_text(folder / "summary.csv", summarise(rows).to_csv(index=False), follow=False)
    write_text(folder / "summary.txt", study_text(plan, rows), follow=False)
    out.print(study_view(plan, rows, out.width))
    _print_pooled(done)
    say(f"results: {folder} (rows/, summary.csv, summary.txt); show them again: equipoise study show {folder}")


@study_app.command("show")
def study_show(
    folder: Annotated[Path, typer.Argument(help="The folder given to `equipoise study run --out`.")],
    on: Annotated[str, typer.Option(help="Set to show: test or validation.")] = "test",
    baseline: Annotated[str, typer.Option(help="Method that the others are compared with in --json.")] = "standard",
    as_json: JsonOption = False,
    csv: Annotated[Path | None, typer.Option(help="Also write rows, table and paired comparison as CSV into this folder.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write the tables as LaTeX into this folder.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write the trajectories (PNG and SVG) into this folder.")] = None,
) -> None:
    """Show the tables of a study, finished or not: mean and sd, best in bold, next to p-value and published number.

    [bold]Example:[/bold] equipoise study show runs/ --latex tables/ --figures figures/
    """
    from equipoise.studies import open_study, read_rows, read_traces, save_csv, save_latex, study_document, study_view

    study = open_study(folder)
    rows = read_rows(study)
    if csv:
        save_csv(study.plan, rows, csv, on)
    if latex:
        save_latex(study.plan, rows, latex, on)
    if figures:
        from equipoise.studies import save_trajectories

        save_trajectories(study.plan, rows, read_traces(study), figures)
    if as_json:
        print(to_json(study_document(study, baseline, on)))
        return
    out.print(study_view(study.plan, rows, out.width, on))
    _print_pooled(study)
    say_places({"csv": csv, "latex": latex, "figures": figures})


def _print_pooled(study: StudyFolder) -> None:
    """Prints the pooled results of a study by folds."""
    if study.plan.protocol == "folds":
        from equipoise.studies import pooled_view, read_pooled

        out.print(pooled_view(study.plan, read_pooled(study)))


@contextmanager
def _bar() -> Iterator[Callable[[Event], None]]:
    """A progress bar with the estimated remaining time on stderr, if that is a terminal. Warnings are always printed."""
    columns = (
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar, notes():
        task = bar.add_task("", total=1.0, tasks="", left="")

        def show(event: Event) -> None:
            left = "" if event.left is None else f"about {report.duration(event.left)} left"
            doing = event.running[0] if event.running else ""
            bar.update(task, completed=event.share, tasks=f"{event.done}/{event.total} tasks", left=left, description=doing)

        yield show
