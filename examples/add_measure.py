"""Add a measure without editing the package. A measure is an entry in a table: a signed sum of rates, group minus reference.

    python examples/add_measure.py

The rates are `selection` (of all), `tpr` (of the positives) and `fpr` (of the negatives). Say that for triage a missed patient is held
to weigh four times a false positive. The harm of a group is then 0.8 (1 - tpr) + 0.2 fpr. The gap in it is a signed sum, because the 1
drops out of the difference: -0.8 tpr + 0.2 fpr.
"""

import argparse

import equipoise as eq
from equipoise.measures import Measure, add_measure

add_measure(
    Measure(
        "harm_gap",
        meaning="difference in harm: misses weigh four times false positives",  # shown in tables and reports
        short="harm",
        question=("the harm of misses and false positives in the detection of ", ""),
        rates={"tpr": -0.8, "fpr": 0.2},
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Add a measure.")
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--epochs", type=int, default=20, help="of training and of fine-tuning")
    given = parser.parse_args()
    parts = eq.split(eq.load("loh", n=given.rows, alpha=2.0, seed=0), seed=0)
    model = eq.train(parts.train, parts.valid, seed=0, settings=eq.Training(epochs=given.epochs))

    # From here on it is a measure like any other: audited with intervals, a goal of every method, with its own gradient and sweep.
    before = eq.audit(model, parts.test)
    result = eq.debias(
        model, parts.valid, method="bias-gda", measure="harm_gap", min_performance=0.55, learning_rate=1e-4, epochs=given.epochs, seed=0
    )
    after = eq.audit(result, parts.test)
    print(result)
    for name in ("harm_gap", "eod", "fpr_gap", "balanced_accuracy"):
        print(f"{name}: {before[name]} before, {after[name]} after, test set")


if __name__ == "__main__":
    main()
