"""`equipoise study`: list the studies, run one, show its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from equipoise import report, studies
from equipoise.cli.app import Command
from equipoise.cli.console import JsonOption, RootOption, bar, notes, out, say, say_places, to_json
from equipoise.data import MAX_PIXELS
from equipoise.disk import write_text
from equipoise.errors import BadInput

if TYPE_CHECKING:
    from equipoise.studies import Event, StudyFolder

study = typer.Typer(
    no_args_is_help=True,
    help="""Studies: data x splits x methods x measures, resumable, on one core or on a cluster.

    [bold]Example:[/bold] equipoise study run paper-tabular --splits 20 --out runs/""",
)


@study.command("list", cls=Command)
def study_list(as_json: JsonOption = False) -> None:
    """List the studies that come with Equipoise. A TOML file defines a study of your own.

    [bold]Example:[/bold] equipoise study list
    """
    plans = [studies.read_plan(name) for name in studies.PRESETS]
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


@study.command("run", cls=Command)
def study_run(
    study: Annotated[str, typer.Argument(help="The name of a study (see `equipoise study list`), or a TOML file.")],
    folder: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder for the results; a run of the same study in it is resumed.")
    ],
    *,
    splits: Annotated[int | None, typer.Option(help="Number of splits; more can be added later.", show_default="the study's")] = None,
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
    if no_pretrained and pretrained:
        raise BadInput("--no-pretrained and --pretrained cannot be combined; omit one")
    plan = studies.with_options(
        studies.narrow(studies.read_plan(study), splits=splits, data=data, methods=method, measures=measure),
        size=size,
        skip_broken=skip_broken or None,
        max_pixels=max_pixels,
        allow_outside=allow_outside or None,
        mimic_iv=None if mimic_iv is None else str(mimic_iv.absolute()),
    )
    plan = studies.with_initial_weights(plan, None if no_pretrained else pretrained or [])

    def show(event: Event) -> None:
        left = "" if event.left is None else f"about {report.duration(event.left)} left"
        step(event.share, 1.0, f"{event.done}/{event.total} tasks  {left}  {event.running[0] if event.running else ''}")

    try:
        with bar("") as step, notes():
            done = studies.run_study(plan, folder, runner=runner, workers=workers, address=address, root=root, device=device, progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. Finished tasks are in {folder}; the same command resumes from there.") from None
    rows = studies.read_rows(done)
    write_text(folder / "summary.csv", studies.summarise(rows).to_csv(index=False), follow=False)
    write_text(folder / "summary.txt", studies.study_text(plan, rows), follow=False)
    out.print(studies.study_view(plan, rows, out.width))
    _print_pooled(done)
    say(f"results: {folder} (rows/, summary.csv, summary.txt); show them again: equipoise study show {folder}")


@study.command("show", cls=Command)
def study_show(
    folder: Annotated[Path, typer.Argument(help="The folder given to `equipoise study run --out`.")],
    on: Annotated[str, typer.Option(help="Set to show: test or validation.")] = "test",
    baseline: Annotated[str, typer.Option(help="Method that the others are compared with in --json.")] = "standard",
    as_json: JsonOption = False,
    csv: Annotated[Path | None, typer.Option(help="Also write rows, table and paired comparison as CSV into this folder.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write the tables as LaTeX into this folder.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write the trajectories (SVG) into this folder.")] = None,
) -> None:
    """Show the tables of a study, finished or not: mean and sd, best in bold, next to p-value and published number.

    [bold]Example:[/bold] equipoise study show runs/ --latex tables/ --figures figures/
    """
    study = studies.open_study(folder)
    rows = studies.read_rows(study)
    if csv:
        studies.save_csv(study.plan, rows, csv, on)
    if latex:
        studies.save_latex(study.plan, rows, latex, on)
    if figures:
        studies.save_trajectories(study.plan, rows, studies.read_traces(study), figures)
    if as_json:
        print(to_json(studies.study_document(study, baseline, on)))
        return
    out.print(studies.study_view(study.plan, rows, out.width, on))
    _print_pooled(study)
    say_places({"csv": csv, "latex": latex, "figures": figures})


def _print_pooled(study: StudyFolder) -> None:
    """Prints the pooled results of a study by folds."""
    if study.plan.protocol == "folds":
        out.print(studies.pooled_view(study))
