"""Repairs in simulated worlds whose truth is known, and of published scores on patients that were held out: rows of experiments/worlds.

    python experiments/worlds/worlds.py scores --out rows.csv [--seeds 2000 2300] [--workers 2] [--arms default level-up ...] [--tag now]
    python experiments/worlds/worlds.py small --out rows.csv             # the same, every world with a true gap of 2 points
    python experiments/worlds/worlds.py verdicts --out rows.csv          # the same, judged on test sets: is harm true where it is found?
    python experiments/worlds/worlds.py networks --out rows.csv          # small networks: worlds whose network is trained here
    python experiments/worlds/worlds.py larrazabal --out rows.csv        # 13 findings, networks trained on one sex; EQUIPOISE_DATA
    python experiments/worlds/worlds.py chexnet --out rows.csv           # 14 findings, by sex and by view
    python experiments/worlds/worlds.py summary rows.csv ... [--write README.md]

Seeds from 1000 to 1999 were used to tune the default, others were not. `--tag` names the version: to compare with an older one, run the
script with its folder `src` on PYTHONPATH. Seeds whose rows are in `--out` are not run again, and none is started after `--seconds`. Arms
of other libraries need `fairlearn` and `oxonfair` (see experiments/peers/environment.sh). In a world, the scores of a group's negatives and
positives are normal, so sensitivity and false positive rate of any threshold are known; other rules are judged on 4,000 new rows per group
and label.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import norm

Decide = Callable[[Any], Any]  # from scores or a cohort to decisions
Judged = Callable[["Decide | None"], dict[str, float]]  # what the decisions do to patients; None: the original
Arms = tuple[str, ...]
Rows = list[dict[str, Any]]
TRUTH = 4000  # rows of each group and label
WITHIN = 0.5  # correlation of the scores of a patient's rows, given the label
SAME_LABEL = 0.7  # share of patients all of whose rows have one label
SMALL = 0.02  # the true gap of every world of `small`
LOSS, POINTS, BOUND = 0.02, 0.02, 0.1  # the limits that the summary counts
NAMES = {0: "g0", 1: "g1", 2: "g2", 3: "g3"}
MARKS = ("<!-- from the rows -->", "<!-- up to here -->")


def world(seed: int, fixed_gap: float | None = None) -> dict[str, Any]:
    """A world drawn at random: its size, groups, true gap at the threshold in use (unless it is given), prevalence, and so on."""
    rng = np.random.default_rng([seed, 77])
    while True:
        n, groups = int(rng.choice([300, 600, 1000, 2000, 5000])), int(rng.choice([2, 2, 3, 4]))
        gap = float(rng.choice([0.0, 0.02, 0.05, 0.1], p=[0.3, 0.2, 0.25, 0.25]))
        gap = gap if fixed_gap is None else fixed_gap
        prevalence = float(rng.choice([0.02, 0.05, 0.1, 0.2, 0.35, 0.5]))
        unequal = [[0.75, 0.25], [0.6, 0.25, 0.15], [0.5, 0.25, 0.15, 0.1]][groups - 2]
        shares = np.ones(groups) / groups if rng.random() < 0.5 else np.array(unequal)
        if n * prevalence * shares.min() >= 8:
            break
    rows_each, distance = int(rng.choice([1, 1, 3])), float(rng.choice([0.9, 1.4, 2.0]))  # AUROC 0.74, 0.84, 0.92
    cause, threshold = str(rng.choice(["shifted", "weaker"])), str(rng.choice(["best", "tuned", "high"]))
    features = bool(rng.random() < 0.3)
    cut = {"best": distance / 2, "tuned": distance / 2 + rng.normal() * 0.15, "high": distance - norm.ppf(0.35)}[threshold]
    base, deltas = norm.sf(cut - distance), np.zeros(groups)
    if gap:
        either = base + gap < 0.97 and base - gap > 0.03
        sign = rng.choice([-1, 1]) if either else -1 if base - gap > 0.03 else 1
        deltas[1:] = gap * sign * rng.uniform(0, 1, groups - 1) * (rng.random(groups - 1) < 0.5)
        deltas[rng.integers(1, groups)] = gap * sign
    positives = cut + norm.ppf(base + deltas)  # their means: the sensitivity of the group at the cut is base + delta
    negatives = positives - distance if cause == "shifted" else np.zeros(groups)
    about = {"seed": seed, "n": n, "groups": groups, "gap": gap, "prevalence": prevalence, "rows_each": rows_each, "cause": cause}
    return {
        **about,
        "threshold": threshold,
        "features": features,
        "shares": shares,
        "distance": distance,
        "cut": cut,
        "means": (negatives, positives),
    }


def rows_of(w: dict[str, Any], rng: np.random.Generator, each: int = 0) -> dict[str, Any]:
    """Rows of a world; with `each`, so many per group and label, all of different patients."""
    groups, n = w["groups"], w["n"]
    if each:
        g, y = np.repeat(np.arange(groups), 2 * each), np.tile(np.repeat([0, 1], each), groups)
        patient, noise = np.arange(len(g)), rng.normal(size=len(g))
    else:
        sizes = np.ones(n, int) if w["rows_each"] == 1 else np.minimum(rng.geometric(1 / w["rows_each"], n), 12)
        sizes = sizes[: np.searchsorted(np.cumsum(sizes), n) + 1]
        sizes[-1] -= sizes.sum() - n
        patient = np.repeat(np.arange(len(sizes)), sizes)
        g, label = (own[patient] for own in (rng.choice(groups, len(sizes), p=w["shares"]), rng.random(len(sizes)) < w["prevalence"]))
        same = (rng.random(len(sizes)) < SAME_LABEL)[patient]
        y = np.where(same, label, rng.random(n) < w["prevalence"]).astype(int)
        noise = rng.normal(size=len(sizes))[patient] * WITHIN**0.5 + rng.normal(size=n) * (1 - WITHIN) ** 0.5
    latent = np.where(y == 1, w["means"][1][g], w["means"][0][g]) + noise
    columns = np.stack([1.5 * g + rng.normal(size=len(g)), rng.normal(size=len(g))], 1)
    return {"g": g, "y": y, "patient": patient, "latent": latent, "columns": columns}


def score_of(w: dict[str, Any], latent: Any) -> Any:
    """The risk, if no group were shifted."""
    odds = np.log(w["prevalence"] / (1 - w["prevalence"]))
    return expit(w["distance"] * latent - w["distance"] ** 2 / 2 + odds)


def scores_of(w: dict[str, Any], rows: dict[str, Any]) -> Any:
    """The rows as scores."""
    import equipoise as eq

    frame = pd.DataFrame({"y": rows["y"], "score": score_of(w, rows["latent"]), "group": [NAMES[k] for k in rows["g"]]})
    frame["patient"] = [f"p{k}" for k in rows["patient"]]
    frame[["x0", "x1"]] = rows["columns"]
    roles: dict[str, Any] = {"patient": "patient"} if w["rows_each"] > 1 else {}
    roles |= {"features": ["x0", "x1"]} if w["features"] else {}
    return eq.Scores.from_frame(frame, label="y", score="score", group="group", reference="g0", **roles)


# Arms: what fits, from scores and the threshold in use (None: that of best balanced accuracy), and returns decisions with what was taken.


def ours(settings: dict[str, Any]) -> Callable[..., tuple[Decide, dict[str, Any]]]:
    def fitted(rows: Any, cut: float | None, model: Any = None) -> tuple[Decide, dict[str, Any]]:
        import equipoise as eq

        given = (rows,) if model is None else (model, rows)
        found = eq.debias(*given, threshold=cut, **settings)
        own = found.only
        before = own.trace.iloc[0]
        told = {"took": own.ran, "acted": own.chosen > 0, "outcome": str(own.outcome or ""), "needs_group": own.rule.needs_group}
        if "expected_gap" in own.trace:
            told |= {"expected": float(own.trace["expected_gap"].iloc[own.chosen]), "expected_before": float(before["expected_gap"])}
        if own.judgement is not None:
            told["printed"] = max(abs(gap.after.value) for gap in own.judgement.gaps)
            told["printed_loss"] = own.judgement.performance_before.value - own.judgement.performance_after.value
        return found.decide, told

    return fitted


def sensitivities(rows: Any, cut: float) -> tuple[list[Any], Any, Any]:
    """The sorted scores of each group's positives, with their sensitivities at a cut and the variances of these."""
    positives = [np.sort(rows.score[(rows.attribute.codes == k) & (rows.y == 1)])[::-1] for k in range(len(rows.attribute.levels))]
    rate, n = np.array([(own >= cut).mean() for own in positives]), np.array([len(own) for own in positives])
    smooth = (rate * n + 1) / (n + 2)
    return positives, rate, smooth * (1 - smooth) / n


def by_group(rows: Any, cut: float, wanted: Callable[[Any, Any], Any]) -> tuple[Decide, dict[str, Any]]:
    """Thresholds by group that move each sensitivity by the wanted change."""
    positives, rate, variance = sensitivities(rows, cut)
    cuts = np.full(len(rate), cut)
    for k, (own, change) in enumerate(zip(positives, wanted(rate, variance), strict=True)):
        if abs(change) > 0.5 / len(own):
            place = int(np.clip(round((rate[k] + change) * len(own)), 1, len(own) - 1))
            cuts[k] = (own[place - 1] + own[place]) / 2
    return lambda part: part.score >= cuts[part.attribute.codes], {"acted": bool((cuts != cut).any()), "needs_group": True}


def shrunk(rate: Any, variance: Any) -> Any:
    """The changes to the mean of all groups, of rates shrunk by James and Stein's estimator (its positive part)."""
    weight = 1 / variance
    mean = (weight * rate).sum() / weight.sum()
    share = min(1.0, max(len(rate) - 3, 1) / max((weight * (rate - mean) ** 2).sum(), 1e-9))
    return (1 - share) * (mean - rate)


def fairlearn(rows: Any, _cut: float) -> tuple[Decide, dict[str, Any]]:
    """Fairlearn's ThresholdOptimizer for equal sensitivity."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
    from libraries import fairlearn_thresholds

    return fairlearn_thresholds(rows, "true_positive_rate_parity")(), {"acted": True, "needs_group": True}


def oxonfair(rows: Any, cut: float) -> tuple[Decide, dict[str, Any]]:
    """OxonFair's levelling up: the best balanced accuracy with |eod| <= 0.02, where no group's threshold rises above the one in use."""
    from oxonfair import DataDict, FairPredictor
    from oxonfair.utils import group_metrics

    def data(part: Any) -> Any:
        moved = expit(logit(part.score.clip(1e-9, 1 - 1e-9)) - logit(cut))  # it levels up from a threshold of 0.5
        return DataDict(part.y, np.stack([1 - moved, moved], -1), part.attribute.codes)

    fair = FairPredictor(None, data(rows))
    fair.fit(group_metrics.balanced_accuracy.overall, group_metrics.equal_opportunity, 0.02, force_levelling_up=1)
    return lambda part: np.asarray(fair.predict(data(part)), dtype=np.float64), {"acted": True, "needs_group": True}


def on_scores(fit: Callable[[Any, float], tuple[Decide, dict[str, Any]]]) -> Callable[..., tuple[Decide, dict[str, Any]]]:
    """The arm of what is fitted to scores and the threshold in use, also for the scores of a network."""

    def fitted(rows: Any, cut: float | None, model: Any = None) -> tuple[Decide, dict[str, Any]]:
        from equipoise.models import predict

        scores = rows if model is None else predict(model, rows)
        decide, told = fit(scores, best_cut(scores) if cut is None else cut)
        return (decide if model is None else lambda part: decide(predict(model, part))), told

    return fitted


ARMS: dict[str, Callable[..., tuple[Decide, dict[str, Any]]]] = {
    "default": ours({}),
    "default, without the group": ours({"allow_group": False}),
    "single-threshold as fitted": ours({"method": "single-threshold", "selection": "paper"}),
    "group-thresholds as fitted": ours({"method": "group-thresholds", "selection": "paper"}),
    "reject-option as fitted": ours({"method": "reject-option", "selection": "paper"}),
    "equalised-odds as fitted": ours({"method": "equalised-odds", "selection": "paper"}),
    "bias-score as fitted": ours({"method": "bias-score", "selection": "paper"}),
    "bias-gda as fitted": ours({"method": "bias-gda", "selection": "paper"}),
    "pruning as fitted": ours({"method": "pruning", "selection": "paper"}),
    "constrained as fitted": ours({"method": "constrained", "selection": "paper"}),
    "adversarial-finetune as fitted": ours({"method": "adversarial-finetune", "selection": "paper"}),
    "level-up to the highest rate": on_scores(lambda rows, cut: by_group(rows, cut, lambda rate, _: rate.max() - rate)),
    "James-Stein": on_scores(lambda rows, cut: by_group(rows, cut, shrunk)),
    "Fairlearn": on_scores(fairlearn),
    "OxonFair, levelling up": on_scores(oxonfair),
}
STEPS = ("bias-gda as fitted", "pruning as fitted", "constrained as fitted", "adversarial-finetune as fitted")  # they change a network


def best_cut(rows: Any) -> float:
    """The threshold of best balanced accuracy."""
    import equipoise as eq

    return float(eq.debias(rows, method="standard", force=True, selection="paper").only.rule.value)


def rates_of(decisions: Any, y: Any, codes: Any, groups: int) -> Any:
    """(groups, 2): the share decided positive of each group's negatives and positives."""
    f = np.asarray(decisions, dtype=np.float64)
    return np.array([[f[(codes == k) & (y == label)].mean() for label in (0, 1)] for k in range(groups)])


def compared(before: Any, after: Any, shares: Any, prevalence: Any) -> dict[str, float]:
    """The true changes, from the rates of each group (groups, 2), its share of patients and its prevalence."""
    gap = [float(np.abs(rates[1:, 1] - rates[0, 1]).max()) for rates in (before, after)]
    positives, negatives = shares * prevalence, shares * (1 - prevalence)
    balanced = [float((r[:, 1] @ positives / positives.sum() + 1 - r[:, 0] @ negatives / negatives.sum()) / 2) for r in (before, after)]
    change = after - before
    selected = change[:, 1] * prevalence + change[:, 0] * (1 - prevalence)
    return {
        **{"gap_before": gap[0], "gap_after": gap[1], "performance_before": balanced[0], "loss": balanced[0] - balanced[1]},
        **{"fall": float(-change[:, 1].min()), "alarms": float(change[:, 0].max()), "flagged": float(selected.max())},
        "alarms_all": float(change[:, 0] @ negatives / negatives.sum()),
    }


def run_arms(rows: Any, cut: float | None, arms: Arms, judged: Judged, model: Any = None) -> Rows:
    """A row per arm; where a repair is refused, the original stays in use."""
    found = []
    for arm in arms:
        start, row = time.perf_counter(), {"arm": arm, "outcome": "", "took": "", "acted": False, "needs_group": False}
        try:
            decide, told = ARMS[arm](rows, cut, **({} if model is None else {"model": model}))
            row |= {**told, "seconds": time.perf_counter() - start, **judged(decide)}
        except Exception as error:  # too few patients in a cell, or another library's own limits
            row |= {"outcome": "refused", "took": type(error).__name__, "seconds": time.perf_counter() - start, **judged(None)}
        found.append(row)
    return found


def run_scores(seed: int, arms: Arms, part: str = "scores") -> Rows:
    """A world of scores; for `verdicts`, each arm is also judged on a test set as large as the repair set."""
    from equipoise import methods

    w, verdicts = world(seed, SMALL if part == "small" else None), part == "verdicts"
    rng = np.random.default_rng([seed, 5])
    rows = scores_of(w, rows_of(w, rng))
    truth = scores_of({**w, "rows_each": 1}, rows_of(w, rng, TRUTH))
    test = scores_of(w, rows_of(w, rng)) if verdicts else None
    cut = None if w["threshold"] == "best" else float(score_of(w, np.float64(w["cut"])))
    before = rates_of(truth.score >= (best_cut(rows) if cut is None else cut), truth.y, truth.attribute.codes, w["groups"])

    def judged(decide: Decide | None) -> dict[str, Any]:
        after = before if decide is None else rates_of(decide(truth), truth.y, truth.attribute.codes, w["groups"])
        found: dict[str, Any] = compared(before, after, w["shares"], np.full(w["groups"], w["prevalence"]))
        if decide is not None and verdicts:
            original = best_cut(rows) if cut is None else cut
            goal = methods.Goal("eod", allow_worse=True)
            told = methods.judge(test, test.score >= original, test, decide(test), goal, source="held-out")
            found |= {"verdict": str(told.outcome), "possible_harm": bool(told.possible_harms), "harms": len(told.harms)}
        return found

    able = tuple(arm for arm in arms if w["features"] or not arm.startswith("bias-score"))  # which needs inputs
    return [{"part": part, **_told(w), **row} for row in run_arms(rows, cut, able, judged)]


def _told(w: dict[str, Any]) -> dict[str, Any]:
    return {name: w[name] for name in ("seed", "n", "groups", "gap", "prevalence", "rows_each", "cause", "threshold")}


def run_networks(seed: int, arms: Arms) -> Rows:
    """A world of inputs, with a small network that is trained on 2,000 other patients; a third of the worlds have no gap."""
    import torch

    import equipoise as eq
    from equipoise.models import predict

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    w, rng = world(seed), np.random.default_rng([seed, 6])
    w["rows_each"] = 1

    def cohort(rows: dict[str, Any], name: str) -> Any:
        g, n = rows["g"], len(rows["g"])
        noise = np.random.default_rng([seed, len(name)]).normal(size=(n, 4))
        views = rows["latent"][:, None] + noise  # four noisy views of the latent score, and one input that differs between groups
        x = np.column_stack([views, g + np.random.default_rng([seed, 9, len(name)]).normal(size=n)]).astype(np.float32)
        return eq.Cohort.from_arrays(x, rows["y"], np.array([NAMES[k] for k in g]), reference="g0", name=name)

    sizes = {"train": 2000, "valid": 500, "repair": w["n"]}
    train, valid, repair = (cohort(rows_of({**w, "n": n}, rng), name) for name, n in sizes.items())
    truth = cohort(rows_of(w, rng, TRUTH), "truth")
    network = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1), torch.nn.Flatten(0))
    model = eq.train(train, valid, model=network, seed=seed, settings=eq.Training(epochs=40, patience=6))
    cut = best_cut(predict(model, repair))
    before = rates_of(predict(model, truth).score >= cut, truth.y, truth.attribute.codes, w["groups"])

    def judged(decide: Decide | None) -> dict[str, float]:
        after = before if decide is None else rates_of(decide(truth), truth.y, truth.attribute.codes, w["groups"])
        return compared(before, after, w["shares"], np.full(w["groups"], w["prevalence"]))

    return [{"part": "networks", **_told(w), **row} for row in run_arms(repair, None, arms, judged, model)]


def run_published(frame: pd.DataFrame, about: dict[str, Any], roles: dict[str, str], cut: float | None, split: int, arms: Arms) -> Rows:
    """Published scores: half of the patients are the repair set, the others the test set."""
    import equipoise as eq

    repair, test = eq.Scores.from_frame(frame, patient="patient", **roles).hold_out(0.5, seed=split)
    groups, codes = len(test.attribute.levels), test.attribute.codes
    cells = [min(((part.attribute.codes == k) & (part.y == 1)).sum() for k in range(groups)) for part in (repair, test)]
    if min(cells) < 10:
        return []
    use = best_cut(repair) if cut is None else cut
    before = rates_of(test.score >= use, test.y, codes, groups)
    shares = np.array([(codes == k).mean() for k in range(groups)])
    prevalence = np.array([test.y[codes == k].mean() for k in range(groups)])

    def judged(decide: Decide | None) -> dict[str, float]:
        return compared(before, before if decide is None else rates_of(decide(test), test.y, codes, groups), shares, prevalence)

    about |= {"seed": split, "n": len(repair), "groups": groups, "gap": np.nan, "prevalence": round(float(repair.y.mean()), 4)}
    about |= {"threshold": "best" if cut is None else f"{cut:.3g}"}
    able = tuple(arm for arm in arms if not arm.startswith("bias-score"))  # which needs inputs
    return [{**about, **row} for row in run_arms(repair, cut, able, judged)]


def published(part: str) -> Iterator[tuple[pd.DataFrame, dict[str, Any], dict[str, str], float | None]]:
    """Every finding of a data set, with its columns and the threshold in use."""
    root = Path(os.environ["EQUIPOISE_DATA"])
    if part == "larrazabal":
        frame = pd.read_csv(root / "larrazabal-nih-sex/fold_00.csv.gz", dtype={"patient": str})
        cuts = pd.read_csv(root / "larrazabal-nih-sex/thresholds.csv").query("fold == 0")
        cuts = cuts.set_index(["female_share", "finding"])["threshold"]
        for share in (0, 100):
            for finding in [name.removeprefix("score0_") for name in frame if name.startswith("score0_")]:
                roles = {"label": finding, "score": f"score{share}_{finding}", "group": "sex", "reference": "M"}
                yield frame, {"part": part, "cause": f"{finding}, {share} % women"}, roles, float(cuts[share, finding])
        return
    frame = pd.read_csv(root / "chexnet-nih/scores.csv.gz", dtype={"patient": str})
    for finding in [name.removeprefix("score_") for name in frame if name.startswith("score_")]:
        for group, reference in (("sex", "M"), ("view", "PA")):
            roles = {"label": finding, "score": f"score_{finding}", "group": group, "reference": reference}
            yield frame, {"part": part, "cause": f"{finding}, {group}"}, roles, None


def run_one(part: str, seed: int, arms: Arms) -> Rows:
    """The rows of one world, or of one split of a published data set."""
    if part in ("scores", "small", "verdicts"):
        return run_scores(seed, arms, part)
    if part == "networks":
        return run_networks(seed, arms)
    return [row for frame, about, roles, cut in published(part) for row in run_published(frame, about, roles, cut, seed, arms)]


def run_all(part: str, seeds: Sequence[int], arms: Arms, workers: int, tag: str, out: Path, seconds: float) -> None:
    """The rows of all seeds, added to the file as they come; failures are printed and counted."""
    start, failed, late = time.perf_counter(), 0, 0
    table = pd.read_csv(out) if out.exists() else pd.DataFrame()
    done = set(table.loc[table["tag"] == tag, "seed"]) if len(table) else set()
    out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run_one, part, seed, arms): seed for seed in seeds if seed not in done}
        for ended in as_completed(waiting):
            if time.perf_counter() - start > seconds:
                late += sum(other.cancel() for other in waiting)
            if ended.cancelled():
                continue
            try:
                rows = pd.DataFrame([{"tag": tag, **row} for row in ended.result()]).round(4)
            except Exception as error:  # one world that fails must not end the others
                failed += 1
                print(f"FAILED {waiting[ended]}: {type(error).__name__}: {error}", flush=True)
                continue
            table = pd.concat([table, rows], ignore_index=True)
            table.sort_values([name for name in ("tag", "seed", "cause") if name in table], kind="stable").to_csv(out, index=False)
    print(f"{part}: {len(table)} rows, {failed} seeds failed, {late} not started, {time.perf_counter() - start:.0f} s: {out}", flush=True)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """What each arm did, per part: how often it acted, and what happened to patients."""

    def told(some: pd.DataFrame) -> pd.Series:
        gap, null = some["gap_before"], some["gap"] == 0  # a design without a gap; published scores have no design
        real = some[~null]
        return pd.Series(
            {
                "runs": len(some),
                "acts, no gap": some.loc[null, "acted"].mean(),
                "acts, gap": real["acted"].mean(),
                "gap before": real["gap_before"].mean(),
                "gap after": real["gap_after"].mean(),
                "gap worse by 2 points": (some["gap_after"] > gap + POINTS).mean(),
                "mean loss": some["loss"].mean(),
                "loss beyond 0.02": (some["loss"] > LOSS).mean(),
                "sensitivity of a group falls by 2 points": (some["fall"] > POINTS).mean(),
                "false alarms of a group rise by 10 points": (some["alarms"] > BOUND).mean(),
                "largest rise of false alarms": some["alarms"].max(),
            }
        )

    columns = ["part", "tag", "arm"]
    return rows.groupby(columns, sort=False)[list(rows.columns.difference(columns))].apply(told).reset_index()


def written(rows: pd.DataFrame) -> str:
    """The summary in Markdown."""
    table = summary(rows)
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    shares = [name for name in table if name.startswith(("acts", "gap worse", "loss beyond", "sensitivity", "false alarms"))]
    for _, row in table.iterrows():
        cells = [
            ""
            if isinstance(row[name], float) and np.isnan(row[name])
            else f"{row[name]:.1%}"
            if name in shares
            else f"{row[name]:.0f}"
            if name == "runs"
            else f"{row[name]:.4f}"
            if isinstance(row[name], float)
            else str(row[name])
            for name in table
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["scores", "small", "verdicts", "networks", "larrazabal", "chexnet", "summary"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=None, help="first seed, and the one after the last")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tag", default="now")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no seed is started after so many")
    parser.add_argument("--write", type=Path, help="Markdown file whose marked block becomes the table")
    given = parser.parse_args()
    if given.part == "summary":
        text = written(pd.concat([pd.read_csv(file) for file in given.files]))
        if given.write is None:
            print(text)
            return
        page = given.write.read_text()
        start, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
        given.write.write_text(f"{page[:start]}\n{text}\n{page[end:]}")
        return
    usual = {"scores": (2000, 2300), "small": (4000, 4300), "verdicts": (2000, 2100), "networks": (3000, 3300)}
    seeds = range(*(given.seeds or usual.get(given.part, (0, 2))))
    arms = tuple(given.arms or (arm for arm in ARMS if given.part == "networks" or arm not in STEPS))
    run_all(given.part, seeds, arms, given.workers, given.tag, given.out or Path(f"{given.part}.csv"), given.seconds)


if __name__ == "__main__":
    main()
