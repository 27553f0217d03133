"""Published tables of three chest X-ray networks, made again from their scores, with intervals by patient and adjusted claims.

    python experiments/published/tables.py                        # all, about three minutes
    python experiments/published/tables.py --networks chexnet     # one of chexnet, larrazabal, medicine

Every row has a published number (if there is one), ours on the same rows, and its 95 % interval that respects that patients have several
images. `gaps.csv` has the differences between groups that the papers report, with adjusted p-values.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import equipoise as eq

HERE, ROOT = Path(__file__).parent, Path(os.environ.get("EQUIPOISE_DATA", ""))
TEXT = {"patient": str, "image": str}
SEEDS, SHARES = (11, 37, 45, 62, 76), (0, 25, 50, 100)  # of Nature Medicine; percentages of images of women of Larrazabal et al.
BANDS, EDGES = ("0-20", "20-40", "40-60", "60-80", "80-"), (0, 20, 40, 60, 80, 200)
HARM = ("eod", "fpr_gap")
Row = dict[str, Any]


def audited(frame: pd.DataFrame, label: str, score: str, threshold: float, **groups: Any) -> Any:
    """The audit of one label at one threshold."""
    scores = eq.Scores.from_frame(frame, label=label, score=score, patient="patient", conflicts="row", **groups)
    found = eq.audit(scores, threshold=threshold, measures=("auroc", *HARM), thresholds=())
    return next(iter(found.labels.values()))


def estimate(about: Row, own: Any, measure: str, group: str = "") -> Row:
    """A row with the estimate of a measure, of all rows or of a group, and its interval."""
    if group:
        values = own.groups.loc[group, [measure, f"{measure}_low", f"{measure}_high"]]
        return {**about, "group": group, "measure": measure, "ours": values.iloc[0], "low": values.iloc[1], "high": values.iloc[2]}
    found = own[measure]
    return {**about, "group": "all", "measure": measure, "ours": found.value, "low": found.low, "high": found.high}


def gaps_of(about: Row, own: Any, measures: tuple[str, ...] = HARM) -> list[Row]:
    """The differences between groups, with their adjusted p-values."""
    gaps = own.gaps[own.gaps["measure"].isin(measures) & own.gaps["value"].notna()]
    columns = ["measure", "attribute", "group", "reference", "value", "low", "high", "p_value", "p_adjusted", "clear"]
    return [{**about, **row} for row in gaps[columns].to_dict("records")]


def chexnet() -> Iterator[tuple[list[Row], list[Row]]]:
    """AUROCs of the retrained network, which its author computed on all of its test images; half of its patients are here."""
    frame = pd.read_csv(ROOT / "chexnet-nih" / "scores.csv.gz", dtype=TEXT)
    for line in pd.read_csv(HERE / "chexnet_aucs.csv").itertuples():
        own = audited(frame, line.finding, f"score_{line.finding}", 0.5, group="sex", reference="M")
        about = {"network": "CheXNet, retrained", "table": "AUROC", "variant": "", "finding": line.finding}
        yield [{**estimate(about, own, "auroc"), "published": line.retrained}], []


def larrazabal() -> Iterator[tuple[list[Row], list[Row]]]:
    """AUROC by sex and composition of the training set, and the rates at the published thresholds; published are means over 20 folds."""
    folder = ROOT / "larrazabal-nih-sex"
    frame = pd.read_csv(folder / "fold_00.csv.gz", dtype=TEXT)
    cuts = pd.read_csv(folder / "thresholds.csv").query("fold == 0").set_index(["female_share", "finding"])["threshold"]
    for share in SHARES:
        path = folder / f"published_train{share}_female_images_correction.csv"
        table = pd.read_csv(path, index_col=0) if path.is_file() else None
        for finding in dict.fromkeys(cuts.index.get_level_values(1)):
            own = audited(frame, finding, f"score{share}_{finding}", cuts.get((share, finding), 0.5), group="sex", reference="M")
            about = {"network": "Larrazabal et al.", "table": "AUROC by sex", "variant": f"{share} % women", "finding": finding}
            known = {"M": 0.843, "F": 0.707} if (share, finding) == (0, "Pneumothorax") else {}
            rows = [{**estimate(about, own, "auroc", sex), "published": known.get(sex)} for sex in ("M", "F")]
            about = {**about, "table": "rates by sex"}
            if table is not None and finding in table.index:
                for sex, number in (("M", 1), ("F", 0)):
                    for rate in ("tpr", "fpr"):
                        published = table.loc[finding, f"Average Initial {rate.upper()}_{number}"]
                        rows.append({**estimate(about, own, rate, sex), "published": published})
            yield rows, gaps_of(about, own) if (share, finding) in cuts.index else []


def medicine() -> Iterator[tuple[list[Row], list[Row]]]:
    """AUROCs of five seeds, and the false positive rate of "no finding" (underdiagnosis) by sex, age and both."""
    folder = ROOT / "underdiagnosis-nih"
    frame = pd.read_csv(folder / "scores.csv.gz", dtype=TEXT)
    frame["band"] = pd.cut(frame["age"], EDGES, right=False, labels=BANDS).astype(str)
    cuts = pd.read_csv(folder / "thresholds.csv").set_index(["seed", "finding"])["threshold"]
    by_sex_and_age = {"group": ["sex", "band"], "reference": ["M", "40-60"]}
    for seed in SEEDS:
        about = {"network": "Nature Medicine", "table": "AUROC", "variant": f"seed {seed}"}
        for line in pd.read_csv(folder / f"published_{seed}_TestEval.csv").itertuples():
            own = audited(frame, line.label, f"score{seed}_{line.label}", cuts[seed, line.label], group="sex", reference="M")
            yield [{**estimate({**about, "finding": line.label}, own, "auroc"), "published": line.auc}], []
        own = audited(frame, "No Finding", f"score{seed}_No Finding", cuts[seed, "No Finding"], **by_sex_and_age)
        about = {**about, "table": "underdiagnosis", "finding": "No Finding"}
        sexes, ages = (pd.read_csv(folder / f"published_{seed}_FPRFNR_NF_{kind}.csv").iloc[0] for kind in ("sex", "age"))
        both = pd.read_csv(folder / f"published_{seed}_FPFN_AgeSex.csv").set_index("SexAge")
        known = {sex: sexes[f"FPR_{sex}"] for sex in ("M", "F")} | {band: ages[f"FPR_{band}"] for band in BANDS}
        known |= {f"{sex} & {band}": both.loc[band, f"FPR_{sex}"] for sex in ("M", "F") for band in BANDS if band in both.index}
        rows = [{**estimate(about, own, "fpr", group), "published": value} for group, value in known.items() if group in own.groups.index]
        yield rows, gaps_of(about, own, ("fpr_gap",))


NETWORKS = {"chexnet": chexnet, "larrazabal": larrazabal, "medicine": medicine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=HERE)
    given, rows, gaps = parser.parse_args(), list[Row](), list[Row]()
    given.out.mkdir(parents=True, exist_ok=True)
    for name in given.networks:
        for more, between in NETWORKS[name]():
            rows += more
            gaps += between
        print(name, len(rows), len(gaps), flush=True)
    columns = ["network", "table", "variant", "finding", "group", "measure", "published", "ours", "low", "high"]
    pd.DataFrame(rows)[columns].to_csv(given.out / "rows.csv", index=False, float_format="%.4f", lineterminator="\n")
    pd.DataFrame(gaps).to_csv(given.out / "gaps.csv", index=False, float_format="%.4f", lineterminator="\n")


if __name__ == "__main__":
    main()
