"""Repair a ResNet-18 on simulated chest X-rays, and use it afterwards with nothing but torch.

    python examples/debias_resnet.py --out example-output

The defaults are tiny, so that it takes seconds and shows the steps, not a result. For a network that has learnt something:

    python examples/debias_resnet.py --out example-output --images 8000 --size 64 --epochs 8 --steps 10 --min-performance 0.7
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import equipoise as eq
from equipoise.models import Training, backbone
from equipoise.studies import phantom


def main() -> None:
    parser = argparse.ArgumentParser(description="Repair a ResNet-18 on simulated chest X-rays.")
    parser.add_argument("--out", type=Path, default=Path("example-output"), help="folder for the weights")
    parser.add_argument("--images", type=int, default=240)
    parser.add_argument("--size", type=int, default=32, help="pixels per side")
    parser.add_argument("--epochs", type=int, default=2, help="of training")
    parser.add_argument("--steps", type=int, default=2, help="epochs of bias-gda, and steps of pruning")
    parser.add_argument("--min-performance", type=float, default=0.55, help="the least balanced accuracy to keep")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    # Centre 1 trains on 75 % men. Centre 2, with as many women as men, has the validation and test sets.
    train = phantom(given.images // 2, size=given.size, share=0.75, seed=0, name="train")
    valid = phantom(given.images // 4, size=given.size, seed=1, name="valid")
    test = phantom(given.images // 4, size=given.size, seed=2, name="test")
    torch.manual_seed(0)  # of the network's first weights
    model = eq.train(
        train, valid, model=backbone("resnet-18"), seed=0, settings=Training.as_in_paper(train.inputs.shape).changed(epochs=given.epochs)
    )

    # The minimum performance says what may be lost. Without one, performance may fall by 0.02. Steps are taken and chosen as published,
    # which is quick. The defaults take longer: `schedule="adaptive"` finds its own learning rate, in more epochs, and
    # `selection="honest"` chooses by rows that no fit has seen, at three times the work.
    goal = {"measure": "eod", "min_performance": given.min_performance, "selection": "paper", "seed": 0}
    original = eq.debias(model, valid, method="standard", **goal)
    tuned = eq.debias(model, valid, method="bias-gda", schedule="paper", batch=32, epochs=given.steps, **goal)
    pruned = eq.debias(model, valid, method="pruning", layers="conv1", units=1_500, max_steps=given.steps, **goal)
    for result in (original, tuned, pruned):
        found = eq.audit(result, test)  # the test set was not used to choose anything
        print(f"{result}\n  test set: eod {found['eod']}, balanced accuracy {found['balanced_accuracy']}")

    # Fine-tuning keeps the keys and shapes, so the weights go where the old ones went. The rule is part of the result.
    save_file(tuned.model.state_dict(), given.out / "repaired.safetensors")
    served = backbone("resnet-18").eval()  # your own serving code here
    served.load_state_dict(load_file(given.out / "repaired.safetensors"), strict=True)
    with torch.no_grad():
        score = torch.sigmoid(served(test.inputs[:5])).squeeze(1)
    print(f"decide positive if {tuned.rule.describe()}")
    print("scores of five patients:", [round(s, 3) for s in score.tolist()])


if __name__ == "__main__":
    main()
