"""Networks trained on one group only, and what repairs leave of their gaps: rows of experiments/one-group.

    python experiments/one-group/one_group.py fit --root data --out runs/one-group [--seconds 540] [--workers 14]
    python experiments/one-group/one_group.py rows --root data --out runs/one-group --rows experiments/one-group/rows.csv

A network (EfficientNet-Lite0 from ImageNet weights) is trained on the images of one sex or of one view and repaired with images of both,
of other patients. It is judged on a quarter of the patients, whom neither has seen; over the four folds every patient is judged once, and
the decisions of all folds are audited together. `fit` stores decisions, a file for each network; it resumes. `rows` needs no GPU.
"""

import argparse
import gc
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

CAUSES = {  # the images that the network is trained on, and the attribute whose gap is asked for
    "men": ("sex", "M", "F"),
    "women": ("sex", "F", "M"),
    "PA": ("view", "PA", "AP"),
    "AP": ("view", "AP", "PA"),
}
FINDINGS = {"any finding": "any", "effusion": "Effusion"}
BLOCKS = ("cxr-nih", "cxr-nih-009")
ARMS: dict[str, dict[str, Any]] = {  # settings of eq.debias
    "group-thresholds": {"method": "group-thresholds"},
    "level-up": {"method": "level-up"},
    "pruning": {"method": "pruning", "layers": "conv_stem", "max_steps": 40, "budget": 25.0, "selection": "paper"},
    "bias-gda": {"method": "bias-gda", "budget": 25.0, "selection": "paper"},
    "constrained": {"method": "constrained", "budget": 25.0, "selection": "paper"},
    "bias-score": {"method": "bias-score"},
    "default": {"method": "auto", "budget": 20.0},
}
TRAINED, EARLY, REPAIR = 0.48, 0.12, 0.4  # shares of the patients outside the fold
NORM = (127 / 255, 128 / 255)


def table(root: Path) -> pd.DataFrame:
    """All images of both blocks, in the order of the stored decisions."""
    blocks = [pd.read_csv(root / block / "metadata.csv", dtype=str).assign(block=block) for block in BLOCKS]
    return pd.concat(blocks, ignore_index=True)


def labels(frame: pd.DataFrame, finding: str) -> Any:
    """1 where the finding is present."""
    if FINDINGS[finding] == "any":
        return (frame.finding != "No Finding").astype(int).to_numpy()
    return frame.finding.str.split("|").map(lambda found: FINDINGS[finding] in found).astype(int).to_numpy()


def parts_of(frame: pd.DataFrame, fold: int, folds: int) -> dict[str, Any]:
    """Rows of training, early stopping, repair and test: patients, dealt at random into folds that are the same for all networks."""
    patients = np.unique(frame.patient)
    order = np.random.default_rng(2026).permutation(len(patients))
    of = dict(zip(patients[order], np.arange(len(patients)) % folds, strict=True))
    rest = np.array([name for name in patients[order] if of[name] != fold])
    rest = rest[np.random.default_rng([2026, fold]).permutation(len(rest))]
    cuts = np.cumsum([round(share * len(rest)) for share in (TRAINED, EARLY)])
    named = dict(zip(("train", "early", "repair"), np.split(rest, cuts), strict=True))
    named["test"] = np.array([name for name in patients if of[name] == fold])
    return {part: np.flatnonzero(frame.patient.isin(names)) for part, names in named.items()}


def pixels(root: Path, frame: pd.DataFrame, size: int, target: Path) -> None:
    """Decodes all images once, into one array of bytes."""
    from PIL import Image

    images = np.empty((len(frame), size, size), np.uint8)
    for row, (name, block) in enumerate(zip(frame.image, frame.block, strict=True)):
        with Image.open(root / block / "images" / name) as image:
            images[row] = np.asarray(image.convert("L").resize((size, size), Image.Resampling.BILINEAR))
    np.save(target, images)


def fit(task: tuple[str, str, int], root: Path, out: Path, folds: int, epochs: int) -> str:
    """Trains a network, repairs it by each arm, and stores its decisions on the test patients."""
    import torch

    import equipoise as eq
    from equipoise.models import Training
    from equipoise.studies.networks import Network

    torch.set_num_threads(1)
    start = time.perf_counter()
    cause, finding, fold = task
    attribute, seen, _ = CAUSES[cause]
    frame, images = table(root), np.load(out / "pixels.npy", mmap_mode="r")
    y, parts = labels(frame, finding), parts_of(frame, fold, folds)

    def cohort(part: str, name: str, only: str = "") -> Any:
        rows = parts[part] if not only else parts[part][(frame[attribute].to_numpy() == only)[parts[part]]]
        x = torch.from_numpy((images[rows][:, None].astype(np.float32) / 255 - NORM[0]) / NORM[1])
        own = frame.iloc[rows]
        # Training needs no group, but a cohort has one: the image's view or sex, or else a coin.
        groups = np.where(np.arange(len(rows)) % 2, "a", seen) if only else own[attribute].to_numpy()
        described = {"patients": own.patient.to_numpy(), "attribute": attribute, "name": name}
        return eq.Cohort.from_arrays(x, y[rows], groups, reference=seen, **described)

    network = Network("efficientnet-lite0", "imagenet")
    trained, early = cohort("train", "training", seen), cohort("early", "early stopping", seen)
    settings = Training.as_in_paper(tuple(trained.inputs.shape)).model_copy(update={"epochs": epochs})
    model = eq.train(trained, early, seed=fold, model=network.build(tuple(trained.inputs.shape), fold), settings=settings)
    repair, test = cohort("repair", "repair"), cohort("test", "test")
    before = eq.debias(model, repair, method="standard")
    kept = {"rows": parts["test"], "original": before.decide(test), "seconds": np.array(time.perf_counter() - start)}
    told = [f"trained in {time.perf_counter() - start:.0f} s"]
    for arm, settings_of in ARMS.items():
        begun, own = time.perf_counter(), dict(settings_of)
        if own.pop("selection", None):
            own["goal"] = eq.Goal(measure="eod", selection="paper")
        try:
            found = eq.debias(model, repair, seed=fold, **own)
        except Exception as error:  # an arm that fails does not end the study
            told.append(f"{arm}: {str(error)[:150]}")
            continue
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                told.append(f"{arm} {time.perf_counter() - begun:.0f} s, then {torch.cuda.memory_allocated() / 2**30:.1f} GiB")
        kept[arm] = found.decide(test)
        kept[f"{arm}, acted"] = np.array(found.only.chosen > 0)
        kept[f"{arm}, took"] = np.array(found.only.ran)
        kept[f"{arm}, seconds"] = np.array(time.perf_counter() - begun)
        np.savez_compressed(out / f"{cause}-{FINDINGS[finding]}-{fold}.npz", **kept)
    return f"{cause}, {finding}, fold {fold}: {time.perf_counter() - start:.0f} s {'; '.join(told)}"


def audited(root: Path, out: Path, folds: int) -> pd.DataFrame:
    """One row per cause, finding and arm: the gap of all folds' decisions together, and its paired change."""
    import equipoise as eq

    frame, rows = table(root), []
    for cause, (attribute, seen, _) in CAUSES.items():
        for finding in FINDINGS:
            files = sorted(out.glob(f"{cause}-{FINDINGS[finding]}-*.npz"))
            stored = [dict(np.load(file)) for file in files]
            if len(stored) < folds:
                continue  # its patients are not all judged
            index = np.concatenate([one["rows"] for one in stored])
            own = frame.iloc[index].assign(y=labels(frame, finding)[index])
            arms = ["original", *(arm for arm in ARMS if all(arm in one for one in stored))]
            for arm in arms:
                own["decided"] = np.concatenate([one[arm] for one in stored])
                own["before"] = np.concatenate([one["original"] for one in stored])
                roles = {"label": "y", "group": attribute, "reference": seen, "patient": "patient"}
                now = eq.Scores.from_frame(own, score="decided", **roles)
                told: dict[str, Any] = {"cause": cause, "finding": finding, "arm": arm, "folds": len(stored), "images": len(own)}
                told |= {"patients": own.patient.nunique(), **measured(own, attribute, seen)}
                gap = eq.audit(now, threshold=0.5)["eod"]
                told |= {"gap": gap.value, "low": gap.low, "high": gap.high}
                if arm != "original":
                    told |= {"acted": float(np.mean([one[f"{arm}, acted"] for one in stored]))}
                    told |= {"took": " ".join(sorted({str(one[f"{arm}, took"]) for one in stored}))}
                    told |= {"seconds": float(np.median([one[f"{arm}, seconds"] for one in stored]))}
                    told |= change(own, attribute, seen)
                rows.append(told)
    return pd.DataFrame(rows)


def measured(own: pd.DataFrame, attribute: str, seen: str) -> dict[str, float]:
    """Sensitivity and false positive rate of both groups, and balanced accuracy."""
    found: dict[str, float] = {}
    for name, rows in (("seen", own[own[attribute] == seen]), ("unseen", own[own[attribute] != seen])):
        found |= {f"{rate}_{name}": float(rows.decided[rows.y == label].mean()) for rate, label in (("tpr", 1), ("fpr", 0))}
        found[f"positives_{name}"] = int(rows.y.sum())
    found["ba"] = float((own.decided[own.y == 1].mean() + 1 - own.decided[own.y == 0].mean()) / 2)
    return found


def change(own: pd.DataFrame, attribute: str, seen: str) -> dict[str, float]:
    """The paired change of |gap| and of balanced accuracy with intervals from 2,000 resamples of patients."""
    codes, patients = pd.factorize(own.patient)
    group, y = (own[attribute] != seen).to_numpy().astype(int), own.y.to_numpy()
    sums = np.zeros((len(patients), 2, 2, 3))  # patient, group, label: rows, decisions before, after
    for column, values in enumerate((np.ones(len(own)), own.before.to_numpy(), own.decided.to_numpy())):
        np.add.at(sums[..., column], (codes, group, y), values)
    rng, flat = np.random.default_rng(0), sums.reshape(len(patients), -1)
    draws = np.stack([rng.multinomial(len(patients), np.full(len(patients), 1 / len(patients))) for _ in range(2000)])
    table = (np.vstack([np.ones(len(patients)), draws]) @ flat).reshape(-1, 2, 2, 3)
    rates = table[..., 1:] / table[..., :1]  # group, label, before and after
    gaps = np.abs(rates[:, 1, 1] - rates[:, 0, 1])
    pooled = table.sum(1)
    accuracy = (pooled[:, 1, 1:] / pooled[:, 1, :1] + 1 - pooled[:, 0, 1:] / pooled[:, 0, :1]) / 2
    found = {}
    for name, values in (("gap_change", gaps[:, 1] - gaps[:, 0]), ("ba_change", accuracy[:, 1] - accuracy[:, 0])):
        low, high = np.quantile(values[1:], (0.025, 0.975))
        found |= {name: values[0], f"{name}_low": low, f"{name}_high": high}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fit", "rows"))
    parser.add_argument("--root", required=True, type=Path, help="folder that holds cxr-nih and cxr-nih-009")
    parser.add_argument("--out", required=True, type=Path, help="folder of the stored decisions")
    parser.add_argument("--rows", type=Path, help="CSV to write")
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=int, default=128, help="pixels per side")
    parser.add_argument("--seconds", type=float, default=1e6, help="start no network after so many")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--causes", default=",".join(CAUSES))
    parser.add_argument("--only", type=int, help="a single fold")
    given = parser.parse_args()
    if given.what == "rows":
        found = audited(given.root, given.out, given.folds)
        found.to_csv(given.rows, index=False, float_format="%.5g")
        print(found.to_string())
        return
    start = time.perf_counter()
    given.out.mkdir(parents=True, exist_ok=True)
    if not (given.out / "pixels.npy").exists():
        pixels(given.root, table(given.root), given.size, given.out / "pixels.npy")
        print(f"decoded in {time.perf_counter() - start:.0f} s", flush=True)
    chosen = range(given.folds) if given.only is None else [given.only]
    tasks = [(cause, finding, fold) for finding in FINDINGS for fold in chosen for cause in given.causes.split(",")]
    tasks = [task for task in tasks if not (given.out / f"{task[0]}-{FINDINGS[task[1]]}-{task[2]}.npz").exists()]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(fit, task, given.root, given.out, given.folds, given.epochs) for task in tasks}
        for done in as_completed(waiting):
            print(f"{time.perf_counter() - start:.0f} s: {done.result()}", flush=True)
            if time.perf_counter() - start > given.seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break


if __name__ == "__main__":
    main()
