"""The command line. It reads arguments, calls the library and prints; bad input is one message and exit code 2."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from equipoise import __version__
from equipoise.data import catalogue
from equipoise.data.cohort import Cohort
from equipoise.data.files import read_table, write_text
from equipoise.data.scores import Scores
from equipoise.data.splits import split
from equipoise.errors import BadInput, EquipoiseError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Audit a trained classifier for group bias and repair it after training.",
)
data_app = typer.Typer(
    no_args_is_help=True, help="The data sets of the paper: list them, check their files, fetch them from the publisher."
)
app.add_typer(data_app, name="data")
out, err = Console(), Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder with one folder a data set [default: EQUIPOISE_DATA, then the user's cache].")
]


def main() -> None:
    """The entry point of the `equipoise` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command and gives its exit code: 0 on success, 2 on bad input, 130 when interrupted."""
    try:
        app(arguments, prog_name="equipoise", standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    except EquipoiseError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        return 2
    except OSError as error:
        err.print(Text.assemble(("error: ", "bold red"), f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")), soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        err.print("interrupted")
        return 130
    return 0


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        out.print(__version__)
        raise typer.Exit


@app.command()
def audit(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file, one row a sample.")],
    label: Annotated[str, typer.Option(help="Column with the true label, 0 or 1.")],
    group: Annotated[list[str], typer.Option(help="Column with the protected attribute; repeat it for several and their intersections.")],
    score: Annotated[str | None, typer.Option(help="Column with the classifier's score in [0, 1].")] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="The reference (privileged) group; one for each --group. [default: the largest group]")
    ] = None,
    patient: Annotated[str | None, typer.Option(help="Column with patient ids; patients are resampled for the intervals.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Column with row ids, checked to be unique.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label value that counts as positive, if labels are not 0 and 1.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Positive from this score on. [default: 0.5]")] = None,
    valid: Annotated[
        Path | None, typer.Option(help="File like FILE with validation rows, on which to choose the threshold by best balanced accuracy.")
    ] = None,
    measure: Annotated[
        list[str] | None, typer.Option(help="Only these measures (spd, eod, aod, fpr_gap, ...); an empty cell is then an error.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead of --score: the network, as file.py:factory or package.module:factory. The factory's code is run."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="With --model: its weights (.safetensors, or a torch file with a state dict).")
    ] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="With --model: input columns in order. [default: all numeric columns not named otherwise]")
    ] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap draws for the intervals.")] = 1000,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    minimum: Annotated[int, typer.Option(help="Cells with fewer patients say 'insufficient data'.")] = 5,
    save: Annotated[Path | None, typer.Option("--out", help="Also write the result as JSON to this file.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write figures (PNG and SVG) into this folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Rates by group and gaps between groups, with error bars, for scores from anywhere or for a network.

    [bold]Example:[/bold] equipoise audit scores.csv --label y --score p --group sex --reference M --patient patient_id
    """
    from equipoise.measures.audit import audit as run_audit
    from equipoise.models.score import predict

    names: dict[str, Any] = {
        "label": label,
        "group": group,
        "reference": reference or None,
        "patient": patient,
        "id": id,
        "positive": positive,
    }
    if (score is None) == (model is None):
        raise BadInput("give the scores' column with --score, or a network with --model (and --weights), one of the two")
    if model is None:
        read: Callable[[Path], Scores] = lambda path: Scores.from_frame(read_table(path), score=str(score), name=path.name, **names)  # noqa: E731
    else:
        from equipoise.models.checkpoint import load_model

        network = load_model(model, weights)
        read = lambda path: predict(network, _numeric_cohort(path, feature, names))  # noqa: E731
    scores = read(file)
    with _bar("bootstrap") as step:
        result = run_audit(
            scores,
            threshold=threshold,
            valid=read(valid) if valid else None,
            measures=measure or None,
            draws=draws,
            level=level,
            seed=seed,
            minimum=minimum,
            progress=step,
        )
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False)
    if save:
        write_text(save, text + "\n")
    if figures:
        from equipoise.report.figures import save_audit_figures

        save_audit_figures(scores, result, figures)
    if as_json:
        print(text)
    else:
        from equipoise.report.terminal import audit_view

        out.print(audit_view(result))
        for name, place in (("result", save), ("figures", figures)):
            if place:
                out.print(Text(f"{name}: {place}"))


@app.command()
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
    from equipoise.report.terminal import audit_view

    cohort = catalogue.load("loh", n=rows, alpha=alpha, seed=seed)
    parts = split(cohort, seed=seed)
    out.print(f"Simulated {rows:,} people in two groups (Loh et al., alpha = {alpha:g}); the label depends on the group.")
    settings = Training()
    with _bar("training", settings.epochs) as step:
        network = train(parts.train, parts.valid, seed=seed, settings=settings, progress=lambda epoch, _: step(epoch + 1, settings.epochs))
    scores = predict(network, parts.test)
    with _bar("bootstrap") as step:
        result = run_audit(scores, valid=predict(network, parts.valid), seed=seed, progress=step)
    attribute = scores.attribute
    frame = pd.DataFrame({"id": scores.ids, "y": scores.y, "score": scores.score, attribute.name: attribute.names})
    write_text(folder / "scores.csv", frame.to_csv(index=False))
    write_text(folder / "audit.json", json.dumps(result.to_dict(), indent=2, allow_nan=False) + "\n")
    save_audit_figures(scores, result, folder, ("png", "svg", "html"))
    out.print(audit_view(result))
    out.print(Text(f"Written to {folder}/: scores.csv, audit.json, and the figures rates, gaps, thresholds (png, svg, html)."))
    out.print("The same audit from the file, as for scores of your own:")
    columns = f"--label y --score score --group {attribute.name} --reference '{attribute.reference}' --id id"
    out.print(Text(f"  equipoise audit {folder}/scores.csv {columns} --threshold {result.to_dict()['threshold']:.6f}"), soft_wrap=True)


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """The data sets that `equipoise.load` knows. [bold]Example:[/bold] equipoise data list"""
    recipes = catalogue.CATALOGUE.values()
    if as_json:
        keys = ("name", "description", "attribute", "rows", "features", "citation", "licence")
        print(json.dumps([{k: getattr(r, k) for k in keys} | {"options": list(r.options)} for r in recipes], indent=2))
        return
    for r in recipes:
        out.print(
            Text.assemble((f"{r.name:8}", "bold"), f"{r.rows:>7,} rows x {r.features:>3}  by {r.attribute}: {r.description}"),
            soft_wrap=True,
        )
        out.print(Text(f"        {r.citation}. Licence: {r.licence}.", style="dim"), soft_wrap=True)


@data_app.command("check")
def data_check(
    name: Annotated[list[str] | None, typer.Argument(help="Data sets. [default: all with files]")] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Are the files there, and are they the right ones? [bold]Example:[/bold] equipoise data check adult --root data"""
    names = name or [r.name for r in catalogue.CATALOGUE.values() if r.files]
    states = [(n, state) for n in names for state in catalogue.check(n, root)]
    if as_json:
        print(
            json.dumps(
                [{"data": n, "file": s.file, "path": str(s.path) if s.path else None, "status": s.status} for n, s in states], indent=2
            )
        )
    else:
        for n, s in states:
            out.print(Text(f"{n}: {s.file}: {s.status}" + (f" ({s.path})" if s.path else "")))
    if any(s.status != "ok" for _, s in states):
        raise typer.Exit(2)


@data_app.command("fetch")
def data_fetch(name: Annotated[list[str], typer.Argument(help="Data sets.")], root: RootOption = None) -> None:
    """Download a data set from its publisher and check it. [bold]Example:[/bold] equipoise data fetch adult bank"""
    for n in name:
        with _bar(f"fetching {n}") as step:
            folder = catalogue.fetch(n, root, progress=lambda _, done, total, step=step: step(done, total or done))  # type: ignore[misc]
        out.print(Text(f"{n}: {folder}"))


def _numeric_cohort(path: Path, features: list[str] | None, names: dict[str, Any]) -> Cohort:
    """A data file as the user's network takes it: numbers as they are, nothing scaled or encoded."""
    frame = read_table(path)
    taken = {names["label"], names["patient"], names["id"], *names["group"]}
    chosen = features or [c for c in frame.columns if c not in taken]
    text = [c for c in chosen if c in frame.columns and frame[c].dtype.kind not in "biuf"]
    if text:
        raise BadInput(
            f"{path.name}: the columns {', '.join(map(repr, text))} are not numbers; "
            "encode them as the network expects, or list the inputs with --feature"
        )
    return Cohort.from_frame(frame, features=chosen, scale=False, name=path.name, **names)


@contextmanager
def _bar(what: str, total: int = 100) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, silent where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


if __name__ == "__main__":
    main()
