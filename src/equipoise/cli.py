"""The command line. It reads arguments, calls the library and prints; bad input is one message and exit code 2."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from equipoise import __version__
from equipoise.cli_study import study_app
from equipoise.data import catalogue
from equipoise.data.cohort import Cohort
from equipoise.data.files import check_writable, read_table, write_text
from equipoise.data.scores import Scores
from equipoise.data.splits import split
from equipoise.errors import BadInput, EquipoiseError, pick, raise_all
from equipoise.report.terminal import audit_view, printable

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Audit a trained classifier for group bias and repair it after training.

    [bold]Example:[/bold] equipoise demo, then equipoise audit scores.csv --label y --score p --group sex""",
)
data_app = typer.Typer(
    no_args_is_help=True,
    help="""The data sets of the paper: list them, check their files, fetch them from the publisher.

    [bold]Example:[/bold] equipoise data list""",
)
app.add_typer(data_app, name="data")
app.add_typer(study_app, name="study")
out, err = Console(), Console(stderr=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
RootOption = Annotated[
    Path | None, typer.Option(help="Folder with one folder a data set.", show_default="EQUIPOISE_DATA, then the user's cache")
]


def main() -> None:
    """The entry point of the `equipoise` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command and gives its exit code: 0 on success, 2 on bad input; typer adds 130 for an interruption."""
    try:
        app(arguments, prog_name="equipoise", standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    except EquipoiseError as error:
        _complain(str(error))
        return 2
    except OSError as error:
        _complain(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
        return 2
    return 0


def _complain(message: str) -> None:
    err.print(Text.assemble(("error: ", "bold red"), printable(message)), soft_wrap=True)


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
        list[str] | None, typer.Option(help="The reference (privileged) group; one for each --group.", show_default="the largest group")
    ] = None,
    patient: Annotated[str | None, typer.Option(help="Column with patient ids; patients are resampled for the intervals.")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Column with row ids, checked to be unique.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label value that counts as positive, if labels are not 0 and 1.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Positive from this score on.", show_default="0.5")] = None,
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
        list[str] | None,
        typer.Option(help="With --model: an input column; repeat it, in order.", show_default="all columns not named otherwise"),
    ] = None,
    model_output: Annotated[
        str | None, typer.Option(help="With --model: what the network gives, logit or probability.", show_default="found out")
    ] = None,
    draws: Annotated[int, typer.Option(help="Bootstrap draws for the intervals.")] = 1000,
    level: Annotated[float, typer.Option(help="Level of the intervals, between 0 and 1.")] = 0.95,
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
    from equipoise.models.score import OUTPUTS, predict

    names: dict[str, Any] = {
        "label": label,
        "group": group,
        "reference": reference or None,
        "patient": patient,
        "id": id,
        "positive": positive,
    }
    problems = _role_problems(score, model, {"--weights": weights, "--feature": feature, "--model-output": model_output})
    problems += _number_problems(threshold, draws, level, seed, minimum)
    raise_all(problems)
    output = pick("--model-output", model_output or "auto", OUTPUTS)
    for place in (save, figures and figures / "rates.png"):
        if place:
            check_writable(place)
    if model is None:
        read: Callable[[Path], Scores] = lambda path: Scores.from_frame(read_table(path), score=str(score), name=path.name, **names)  # noqa: E731
    else:
        from equipoise.models.checkpoint import load_model

        network = load_model(model, weights)
        read = lambda path: predict(network, _numeric_cohort(path, feature, names), output=output)  # noqa: E731
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
        out.print(audit_view(result))
        for name, place in (("result", save), ("figures", figures)):
            if place:
                out.print(Text(f"{name}: {place}"), soft_wrap=True)


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

    check_writable(folder / "scores.csv")
    cohort = catalogue.load("loh", n=rows, alpha=alpha, seed=seed)
    parts = split(cohort, seed=seed)
    why = "the label depends on the group" if alpha else "the label does not depend on the group"
    out.print(f"Simulated {rows:,} people in two groups (Loh et al., alpha = {alpha:g}); {why}.", soft_wrap=True)
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
    written = Text(f"Written to {folder}/: scores.csv, audit.json, and the figures rates, gaps, thresholds (png, svg, html).")
    out.print(written, soft_wrap=True)
    out.print("The same audit from the file, as for scores of your own:")
    command = ["equipoise", "audit", str(folder / "scores.csv"), "--label", "y", "--score", "score", "--group", attribute.name]
    command += ["--reference", attribute.reference, "--id", "id", "--threshold", str(result.to_dict()["threshold"])]
    out.print(Text(f"  {shlex.join(command)}"), soft_wrap=True)


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """The data sets that `equipoise.load` knows.

    [bold]Example:[/bold] equipoise data list
    """
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
    name: Annotated[list[str] | None, typer.Argument(help="Data sets.", show_default="all with files")] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Are the files there, and are they the right ones? Exit code 2 if not.

    [bold]Example:[/bold] equipoise data check adult --root data
    """
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
            out.print(Text(f"{n}: {s.file}: {s.status}" + (f" ({s.path})" if s.path else "")), soft_wrap=True)
        for n in names:
            if not catalogue.CATALOGUE[n].files:
                out.print(f"{n}: simulated, needs no files")
    wrong = list(dict.fromkeys(n for n, s in states if s.status != "ok"))
    if wrong:
        command = ["equipoise", "data", "fetch", *wrong, *(["--root", str(root)] if root else [])]
        raise BadInput(f"files of {', '.join(wrong)} are missing or wrong. To get them: {shlex.join(command)}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[list[str], typer.Argument(help="Data sets.")],
    root: Annotated[Path | None, typer.Option(help="Folder to put one folder a data set into.", show_default="the user's cache")] = None,
) -> None:
    """Download a data set from its publisher and check it.

    [bold]Example:[/bold] equipoise data fetch adult bank
    """
    for n in name:
        pick("data set", n, catalogue.CATALOGUE)
    for n in name:
        with _bar(f"fetching {n}") as step:
            folder = catalogue.fetch(n, root, progress=lambda _, done, total, step=step: step(done, total or done))  # type: ignore[misc]
        out.print(Text(f"{n}: {folder}"), soft_wrap=True)


def _role_problems(score: str | None, model: str | None, with_model: dict[str, object]) -> list[str]:
    problems = []
    if (score is None) == (model is None):
        problems.append("give the scores' column with --score, or a network with --model (and --weights), one of the two")
    if model is None:
        problems += [f"{option} goes with --model, and there is none. Leave it out." for option, value in with_model.items() if value]
    return problems


def _number_problems(threshold: float | None, draws: int, level: float, seed: int, minimum: int) -> list[str]:
    checks = {
        f"--threshold must be a number from 0 to 1; got {threshold}": threshold is None or 0 <= threshold <= 1,
        f"--draws must be at least 2; got {draws}": draws >= 2,
        f"--level must lie between 0 and 1, as 0.95 does; got {level}": 0 < level < 1,
        f"--seed must be at least 0; got {seed}": seed >= 0,
        f"--minimum must be at least 1; got {minimum}": minimum >= 1,
    }
    return [problem for problem, fine in checks.items() if not fine]


def _numeric_cohort(path: Path, features: list[str] | None, names: dict[str, Any]) -> Cohort:
    """A data file as the user's network takes it: numbers as they are, nothing scaled or encoded."""
    frame = read_table(path)
    taken = {names["label"], names["patient"], names["id"], *names["group"]}
    chosen = features or [c for c in frame.columns if c not in taken]
    problems = [problem for c in chosen if c in frame.columns for problem in _input_problems(frame[c])]
    try:
        cohort = Cohort.from_frame(frame, features=chosen, scale=False, name=path.name, **names)
    except BadInput as error:
        raise BadInput(*error.problems, *problems, source=path.name) from None
    raise_all(problems, path.name)
    return cohort


def _input_problems(column: Any) -> Iterator[str]:
    """What a network cannot take; nothing is filled in for it, because only its owner knows how that was done in training."""
    if column.dtype.kind not in "biuf":
        yield f"input column {column.name!r} holds no numbers. Encode it as the network expects, or list the inputs with --feature."
    elif bad := int((~np.isfinite(column.to_numpy(dtype=float, na_value=np.nan))).sum()):
        yield f"input column {column.name!r}: {bad:,} of {len(column):,} rows are empty or infinite. Fill them in as in training."


@contextmanager
def _bar(what: str, total: int = 100) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, silent where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


if __name__ == "__main__":
    main()
