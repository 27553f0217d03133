"""Rows reach the network unchanged on any device; too little memory leads to smaller batches or an error with advice."""

import gc
import logging
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.data import Cohort, Images
from equipoise.errors import BadInput
from equipoise.models import Repairable, Training, compute_device, devices, outputs, repairable, score, train
from equipoise.models.devices import Feed
from support.facts import facts, says
from support.published import debias

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def pictures(n: int = 60, size: int = 12) -> Images:
    return Images(np.random.default_rng(0).integers(0, 256, (n, size, size), dtype=np.uint8))


def cohort_of(images: Images) -> Cohort:
    rng = np.random.default_rng(1)
    plain = Cohort.from_arrays(
        torch.zeros(len(images), 0), rng.integers(0, 2, len(images)), rng.choice(["F", "M"], len(images)), reference="M"
    )
    return Cohort(images, plain.y, plain.attributes)


class Greedy(nn.Module):
    """A network that runs out of memory above a given number of rows."""

    output = "logit"

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.seen = most, []
        self.layer = nn.Linear(144, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        found: torch.Tensor = self.layer(x.flatten(1))
        return found


def test_a_feed_returns_the_rows_of_its_inputs():
    images = pictures()
    index = torch.tensor([5, 3, 59])
    assert torch.equal(Feed(images, CPU)(index), images[index])
    table = torch.randn(10, 4)
    assert torch.equal(Feed(table, CPU)(torch.tensor([1, 1, 7])), table[[1, 1, 7]])


def mapped(folder: Path, n: int = 60) -> Images:
    np.save(folder / "pixels.npy", pictures(n).pixels)
    return Images(np.load(folder / "pixels.npy", mmap_mode="r"))


def test_feeds_of_a_subset_share_the_images_on_a_device_until_these_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "FEW_IMAGES", 10)
    images = mapped(tmp_path)
    part, wider = images.take(np.arange(20, 50)), images.take(np.arange(15, 50))
    devices._share(part, part.raw(torch.arange(len(part))))
    assert Feed(part, CPU).resident
    assert Feed(part.take(np.array([5, 1, 1])), CPU).resident
    assert not Feed(wider, CPU).resident
    assert not Feed(images, CPU).resident
    index = torch.tensor([29, 0, 3])
    assert torch.equal(Feed(part, CPU)(index), images[[49, 20, 23]])
    some = images.take(np.array([30, 21, 21, 49]))
    assert torch.equal(Feed(some, CPU)(torch.tensor([3, 2, 0])), images[[49, 21, 30]])
    place = id(images.pixels)
    assert place in devices._copies
    del images, part, wider, some
    assert place not in devices._copies


@needs_gpu
def test_feeds_on_a_gpu_share_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "FEW_IMAGES", 10)
    images, gpu = mapped(tmp_path), torch.device("cuda", torch.cuda.current_device())
    whole, part = Feed(images, gpu), Feed(images.take(np.arange(40, 20, -1)), gpu)
    assert part._resident is whole._resident
    torch.testing.assert_close(part(torch.tensor([0, 19])).cpu(), images[[40, 21]])  # normalised on the GPU, which rounds differently
    held = torch.cuda.memory_allocated(gpu)
    del images, whole, part
    assert torch.cuda.memory_allocated(gpu) < held


def test_writeable_images_are_never_shared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "FEW_IMAGES", 10)
    images = pictures()
    devices._share(images, images.raw(torch.arange(len(images))))
    assert not Feed(images, CPU).resident
    images.pixels[5] = 7
    assert torch.equal(Feed(images, CPU)(torch.tensor([5])), images[[5]])


def test_the_default_device_is_that_of_the_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EQUIPOISE_DEVICE", raising=False)
    assert compute_device(nn.Linear(3, 1), torch.zeros(5, 3)) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert compute_device(nn.Linear(3, 1), torch.zeros(5, 3)) == CPU  # a table is not worth the journey
    assert compute_device(nn.Conv2d(1, 1, 3), pictures()) == torch.device("cuda:1")
    monkeypatch.setenv("EQUIPOISE_DEVICE", "cpu")
    assert compute_device(nn.Conv2d(1, 1, 3), pictures()) == CPU


def test_scores_use_smaller_batches_if_memory_is_too_small(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(score, "_halvings", count())
    images, model = pictures(), Greedy(8)
    found = outputs(model, images)
    assert max(model.seen) == 60
    assert all(rows <= 8 for rows in model.seen[-8:])
    assert torch.allclose(found, model.layer(images[:].flatten(1)).reshape(-1), atol=1e-6)
    assert says(caplog.text, "memory", 60, 30)
    assert len(caplog.records) == 1  # 60 to 30, 15 and 7 rows: a warning once per process
    with pytest.raises(BadInput, match="row"):
        outputs(Greedy(0), images)
    assert len(caplog.records) == 1


def test_a_batch_that_was_too_large_is_not_tried_again(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "equipoise.models.score")
    replica = Repairable(Greedy(8), pictures())
    first, second = replica.evaluate(), replica.evaluate()
    assert (first == second).all()
    assert len(caplog.records) == 3  # 60 to 30, 15 and 7 rows


def test_scores_that_rounding_makes_equal_are_computed_in_full_precision(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    images, model = pictures(), nn.Sequential(nn.Flatten(), nn.Linear(144, 1)).eval()
    exact = repairable.feed_outputs

    def rounded(*given: Any, fast: bool, **more: Any) -> torch.Tensor:
        found = exact(*given, fast=fast, **more)
        return found.round() if fast else found

    monkeypatch.setattr(repairable, "feed_outputs", rounded)
    replica = Repairable(model, images)
    replica.reduced = True  # as on a GPU
    assert np.allclose(replica.evaluate(), torch.sigmoid(exact(model, replica.feed, torch.arange(len(images)))), atol=1e-6)
    few = Repairable(model, images)  # on a CPU nothing is rounded, and few scores are few
    assert len(np.unique(few.evaluate())) < 10


def test_training_and_fine_tuning_name_a_batch_that_would_fit():
    cohort = cohort_of(pictures())
    with pytest.raises(BadInput, match=facts("batch=10")):
        train(
            cohort.take(range(len(cohort) - 8)),
            cohort.take(range(len(cohort) - 8, len(cohort))),
            model=Greedy(8),
            settings=Training(epochs=1, batch=20),
        )
    with pytest.raises(BadInput, match=facts("batch=16", "a smaller image")):
        debias(Greedy(20), cohort, method="bias-gda", measure="spd", batch=32, epochs=1, stop_below=0.0)


def test_influence_uses_smaller_batches_if_memory_is_too_small():
    class Small(Greedy):
        def __init__(self, most: int) -> None:
            super().__init__(most)
            torch.manual_seed(0)
            self.conv, self.layer = nn.Conv2d(1, 2, 3), nn.Linear(200, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > self.most:
                raise torch.OutOfMemoryError("out of memory")
            found: torch.Tensor = self.layer(torch.relu(self.conv(x)).flatten(1))
            return found

    cohort = cohort_of(pictures())
    settings = {
        "method": "pruning",
        "measure": "eod",
        "units": 20,
        "layers": "conv",
        "max_steps": 3,
        "stop_below": 0.0,
        "min_performance": 0.0,
    }
    large, small = (debias(Small(most), cohort, **settings) for most in (100, 16))
    np.testing.assert_allclose(small.trace["gap"], large.trace["gap"], atol=1e-12)


class Held(torch.autograd.Function):
    """Passes a value on and keeps an object as long as the graph lives; out of memory in the backward pass of many rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: object) -> torch.Tensor:
        ctx.kept = kept
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if len(gradients[0]) > 16:
            raise torch.OutOfMemoryError("out of memory")
        return gradients[0], None


class Part:
    """Stands for the activations of one pass."""


def test_a_batch_that_was_too_large_in_the_backward_pass_is_freed():
    graphs: list[weakref.ref[Part]] = []

    class Deep(nn.Module):
        output = "logit"

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.layer = nn.Conv2d(1, 2, 3), nn.Linear(200, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            part = Part()
            graphs.append(weakref.ref(part))
            found: torch.Tensor = self.layer(torch.relu(Held.apply(self.conv(x), part)).flatten(1))
            return found

    settings = {"measure": "eod", "units": 1, "layers": "conv", "max_steps": 1, "stop_below": 0.0, "min_performance": 0.0}
    debias(Deep(), cohort_of(pictures()), method="pruning", **settings)
    gc.collect()
    assert len(graphs) > 4
    assert not [graph for graph in graphs if graph() is not None]
