"""What a linear probe reads of the group from each layer of one network on COMPAS, before and after a repair.

    python experiments/encoding/encoding.py --out experiments/encoding/compas.csv
    python experiments/encoding/encoding.py --out cell.csv --inputs yes                    # only the network that sees the group

Split 0; SPD by `constrained`, with balanced accuracy of at least 0.62; AUROCs of cross-fitted probes on the test set.
"""

import argparse
from pathlib import Path

import pandas as pd

import equipoise as eq
from equipoise.models import encoding

KEPT = ["auroc", "auroc_low", "auroc_high"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inputs", nargs="+", choices=("yes", "no"), default=["yes", "no"], help="the group among the inputs")
    given = parser.parse_args()
    frames = []
    for inputs in given.inputs:
        parts = eq.split(eq.load("compas", attribute_as_input=inputs == "yes"), seed=0)
        model = eq.train(parts.train, parts.valid, seed=0)
        found = eq.debias(model, parts.valid, method="constrained", measure="spd", min_performance=0.62, seed=0)
        print(eq.compare({"original": model, "repaired": found}, parts.test))
        for when, network in (("before", model), ("after", found.model)):
            layers = encoding(network, parts.test)
            frames.append(layers[["layer", "depth", *KEPT]].assign(attribute_in_inputs=inputs, when=when))
    rows = pd.concat(frames, ignore_index=True)[["attribute_in_inputs", "layer", "depth", "when", *KEPT]]
    rows.to_csv(given.out, index=False, float_format="%.3f")
    print(rows.to_string(index=False))


if __name__ == "__main__":
    main()
