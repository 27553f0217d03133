"""`equipoise audit`: scores from anywhere, or a network and a data file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from equipoise.cli.console import JsonOption, bar, out
from equipoise.data.cohort import Cohort
from equipoise.data.files import check_writable, read_table, write_text
from equipoise.data.scores import Scores
from equipoise.errors import BadInput, pick, raise_all
from equipoise.report.terminal import audit_view


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
    with bar("bootstrap") as step:
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
