"""Training as in the paper: binary cross-entropy and early stopping on validation loss.

For tables: Adam, ReduceLROnPlateau, mini-batches of 64. For chest X-rays (`IMAGES`): AdamW, StepLR, mini-batches of 32, at most 20 epochs,
augmentation. Departures from the published code: the best weights are restored from a copy (the published code keeps a reference, so it
restores the last ones), and the validation loss is evaluated after every epoch (published: every tenth, with a patience of eleven
evaluations). `Training(restore="last", patience=110)` trains as published. The default network trains as a stack of one (see stack).
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Cohort, check_apart, check_cohort, child_seed, generator
from equipoise.errors import BadInput, pick, raise_all
from equipoise.models import ranks
from equipoise.models.devices import Captured, Feed, compute_device, device_of, in_layout, mixed_precision, requested_device, to_device
from equipoise.models.optimisers import OPTIMISERS, StackedAdam
from equipoise.models.score import as_scores, evaluating, feed_outputs, output_kind, outputs, sigmoid, single_output
from equipoise.models.shared_norms import synchronised
from equipoise.models.single import too_large
from equipoise.models.stack import MLP, Recorder, Snapshot, Stack

Progress = Callable[[int, float], None]  # epoch, validation loss


@dataclass(frozen=True)
class Training:
    """The settings of training. `patience` counts epochs without a better validation loss."""

    epochs: int = 1000
    batch: int = 64
    learning_rate: float = 1e-3
    patience: int = 30
    plateau: int = 10  # epochs without improvement after which the learning rate falls to a tenth
    optimiser: str = "adam"  # or adamw
    schedule: str = "plateau"  # or step: a tenth of the learning rate every `step` epochs
    step: int = 7
    augment: bool = False  # for images: centre crop, flip, translation and rotation at random
    restore: str = "best"  # the weights with the lowest validation loss; or last: those of the last epoch

    def __post_init__(self) -> None:
        pick("optimiser of training", self.optimiser, OPTIMISERS)
        pick("schedule of training", self.schedule, ("plateau", "step"))
        pick("weights to restore after training", self.restore, ("best", "last"))
        smallest = {"epochs": 0, "batch": 1, "patience": 1, "plateau": 1, "step": 1}  # 0 epochs return the initial network
        problems = [
            f"{name} of training must be at least {least}; got {getattr(self, name)}"
            for name, least in smallest.items()
            if getattr(self, name) < least
        ]
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            problems.append(f"learning_rate must be a positive number; got {self.learning_rate}")
        raise_all(problems)


IMAGES = Training(epochs=20, batch=32, learning_rate=1e-4, patience=5, optimiser="adamw", schedule="step", augment=True)


@dataclass(frozen=True)
class Augmentation:
    """The ranges of random changes to images: one affine map per row, drawn on the CPU and applied on the device.

    The paper names the kinds of changes but not their sizes.
    """

    crop: float = 0.875  # the smallest share of height and width that remains, around the centre
    flip: float = 0.5  # the probability of a mirror image
    shift: float = 0.05  # share of height and width, in either direction
    turn: float = 10.0  # degrees, in either direction

    def draw(self, rows: int, rng: np.random.Generator) -> Tensor:
        """One random affine map per row (rows, 2, 3)."""
        angle = np.deg2rad(rng.uniform(-self.turn, self.turn, rows))
        scale = rng.uniform(self.crop, 1.0, rows)
        mirror = np.where(rng.random(rows) < self.flip, -1.0, 1.0)
        shift = rng.uniform(-2 * self.shift, 2 * self.shift, (rows, 2))  # the grid goes from -1 to 1
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        maps = np.stack([np.stack([cos * mirror, -sin, shift[:, 0]], 1), np.stack([sin * mirror, cos, shift[:, 1]], 1)], 1)
        return torch.from_numpy(maps.astype(np.float32))


def moved(x: Tensor, maps: Tensor) -> Tensor:
    """Images (b, c, h, w) after their affine maps (b, 2, 3); pixels from outside get the image's darkest value."""
    lowest = x.amin((1, 2, 3), keepdim=True)
    grid = F.affine_grid(maps, list(x.shape), align_corners=False)
    return F.grid_sample(x - lowest, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + lowest


def train(
    train: Cohort,
    valid: Cohort | None = None,
    *,
    seed: int = 0,
    model: nn.Module | None = None,
    settings: Training | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """The trained network, in eval mode: the paper's MLP, or a copy of the given module. The same seed gives the same weights.

    Without settings, images are trained as the paper's chest X-rays, everything else as its tables. The network's attribute `threshold` is
    the threshold with the best balanced accuracy on the validation set.
    """
    check_cohort("eq.train", train)
    if valid is None:
        raise BadInput("eq.train takes a training and a validation set: parts = eq.split(cohort); eq.train(parts.train, parts.valid)")
    check_cohort("eq.train", valid)
    _check(train, valid)
    check_apart(training=train, validation=valid)
    if train.labels:
        raise BadInput(
            f"{train.name!r} has several {train.kind} ({', '.join(train.labels)}), and train trains one output. Train such a network "
            f"with your own code; a single label: train(parts.train.labelled({train.labels[0]!r}), ...)"
        )
    if settings is None:
        settings = IMAGES if len(train.inputs.shape) == 4 else Training()
    if model is None:
        if len(train.inputs.shape) != 2:
            raise BadInput(
                f"the default network takes tables; {train.name!r} holds inputs of shape {tuple(train.inputs.shape[1:])}. "
                "Give a network of your own: train(..., model=net)"
            )
        return train_stack([(train, valid, seed)], settings=settings, progress=progress)[0]
    return _train_module(copy.deepcopy(model), train, valid, seed, settings, progress)


def train_stack(
    parts: Sequence[tuple[Cohort, Cohort, int]], *, settings: Training = Training(), progress: Progress | None = None
) -> list[MLP]:
    """The paper's network trained on each (train, valid, seed), all as one stack; each stops early on its own."""
    for train_part, valid_part, _ in parts:
        _check(train_part, valid_part)
    shapes = {(t.inputs.shape, v.inputs.shape) for t, v, _ in parts}
    if len(shapes) > 1:
        raise BadInput(f"the splits of one stack must have equal sizes; got {sorted(map(str, shapes))}")
    seeds = [seed for _, _, seed in parts]
    stack = Stack([initial_mlp(t.inputs.shape[1], seed) for t, _, seed in parts], device=requested_device())
    x = torch.stack([t.inputs for t, _, _ in parts])
    y = torch.from_numpy(np.stack([t.y for t, _, _ in parts])).float()
    x_valid = torch.stack([v.inputs for _, v, _ in parts])
    y_valid = torch.from_numpy(np.stack([v.y for _, v, _ in parts])).float()
    models = _StackedRun(stack, x, y, x_valid, y_valid, seeds, settings).run(progress)
    for model, (_, v, _) in zip(models, parts, strict=True):
        model.threshold = best_cut(sigmoid(outputs(model, v.inputs)).numpy(), v.y)
    return models


def initial_mlp(inputs: int, seed: int) -> MLP:
    """A new MLP whose weights depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, "weights"))
        return MLP(inputs)


class _StackedRun:
    """Training of one stack: replicates leave it when they stop, so that the others continue faster."""

    def __init__(
        self, stack: Stack, x: Tensor, y: Tensor, x_valid: Tensor, y_valid: Tensor, seeds: Sequence[int], settings: Training
    ) -> None:
        self.stack, self.settings = stack, settings
        self.x, self.y, self.x_valid, self.y_valid = (t.to(stack.device) for t in (x, y, x_valid, y_valid))
        self.recorder = Recorder(stack)
        self.shuffles = [generator(seed, "shuffle") for seed in seeds]
        self.dropouts = [generator(seed, "dropout") for seed in seeds]
        self.names = list(range(stack.size))  # the original position of each replicate that is still in the stack
        self.optimiser = StackedAdam(stack, settings.learning_rate)
        self.best = Snapshot.of(stack)
        self.best_loss = torch.full((stack.size,), float("inf"))
        self.since_best = torch.zeros(stack.size, dtype=torch.long)
        self.plateau_best = self.best_loss.clone()
        self.since_plateau = self.since_best.clone()
        self.finished: dict[int, MLP] = {}

    def run(self, progress: Progress | None) -> list[MLP]:
        replicates = len(self.names)
        for epoch in range(self.settings.epochs):
            self._epoch()
            loss = F.binary_cross_entropy_with_logits(self.stack.evaluate(self.x_valid), self.y_valid, reduction="none").mean(1)
            self._update_best(loss.cpu())  # the only value per epoch that the GPU is waited for
            if progress:
                progress(epoch, float(self.best_loss.mean()))
            stopped = self.since_best >= self.settings.patience
            if stopped.any():
                self._remove(stopped)
                if not self.names:
                    break
        if self.names:
            self._remove(torch.ones(len(self.names), dtype=torch.bool))
        return [self.finished[k] for k in range(replicates)]

    def _epoch(self) -> None:
        rows = self.x.shape[1]
        order = torch.from_numpy(np.stack([g.permutation(rows) for g in self.shuffles]))
        flat = to_device(order + torch.arange(self.stack.size)[:, None] * rows, self.stack.device)
        for index in flat.split(self.settings.batch, dim=1):
            if index.shape[1] == 1:
                continue  # batch norm has no variance of one row
            self.recorder(self._gradient, index, self.stack.masks(index.shape[1], self.dropouts))
            self.optimiser.step()

    def _gradient(self, index: Tensor, masks: Tensor | None = None) -> None:
        batch = self.x.view(-1, self.x.shape[2]).index_select(0, index.reshape(-1)).view(*index.shape, -1)
        label, share = self.y.view(-1)[index], 1 / index.shape[1]
        # The derivative of the mean cross-entropy with respect to the logits is (score - label) / rows.
        self.stack.fill_gradient(batch, lambda logits: (torch.sigmoid(logits) - label) * share, masks=masks, training=True)

    def _update_best(self, loss: Tensor) -> None:
        """Copies the replicates that improved, and lowers the learning rate of those on a plateau."""
        better = loss < self.best_loss
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.since_best = torch.where(better, 0, self.since_best + 1)
        self.best.update(self.stack, better.nonzero()[:, 0])
        clearly_better = loss < self.plateau_best * (1 - 1e-4)
        self.plateau_best = torch.where(clearly_better, loss, self.plateau_best)
        self.since_plateau = torch.where(clearly_better, 0, self.since_plateau + 1)
        on_plateau = self.since_plateau > self.settings.plateau
        if on_plateau.any():
            self.optimiser.set_rate(torch.where(on_plateau, self.optimiser.rate * 0.1, self.optimiser.rate))
            self.since_plateau = torch.where(on_plateau, 0, self.since_plateau)

    def _remove(self, stopped: Tensor) -> None:
        """Removes replicates from the stack, with their best or their present weights."""
        current = Snapshot.of(self.stack)
        if self.settings.restore == "best":
            self.stack.load(self.best, torch.arange(self.stack.size))
        models = self.stack.unstack()
        for k in stopped.nonzero()[:, 0].tolist():
            self.finished[self.names[k]] = models[k]
        self.stack.load(current, torch.arange(self.stack.size))
        keep = (~stopped).nonzero()[:, 0]
        kept = keep.tolist()
        self.names = [self.names[k] for k in kept]
        if not kept:
            return
        kept_numbers = ~stopped.to(self.stack.device)[self.stack.owner]
        old, rate = self.optimiser, self.optimiser.rate[keep]
        present = self.stack.unstack()
        on_device = keep.to(self.stack.device)
        self.best = Snapshot(
            self.best.theta[kept_numbers], [m[on_device] for m in self.best.means], [v[on_device] for v in self.best.variances]
        )
        self.stack = Stack([present[k] for k in kept], self.stack.theta.dtype, self.stack.device)
        self.recorder = Recorder(self.stack)
        self.optimiser = StackedAdam(self.stack, rate)
        self.optimiser.mean, self.optimiser.square, self.optimiser.steps = old.mean[kept_numbers], old.square[kept_numbers], old.steps
        self.x, self.y, self.x_valid, self.y_valid = (t[on_device] for t in (self.x, self.y, self.x_valid, self.y_valid))
        self.shuffles, self.dropouts = [self.shuffles[k] for k in kept], [self.dropouts[k] for k in kept]
        self.best_loss, self.since_best = self.best_loss[keep], self.since_best[keep]
        self.plateau_best, self.since_plateau = self.plateau_best[keep], self.since_plateau[keep]


def _train_module(model: nn.Module, train: Cohort, valid: Cohort, seed: int, settings: Training, progress: Progress | None) -> nn.Module:
    """The same training for any module. Its dropout draws from torch's generator, seeded for this run and restored afterwards."""
    original_device = device_of(model)
    kind = output_kind(model, train.inputs)
    run = ModuleRun(model, train, valid, seed, settings, kind)
    best_loss, best_state, since_best = float("inf"), copy.deepcopy(model.state_dict()), 0
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(seed, f"dropout {ranks.rank()}" if ranks.rank() else "dropout"))
        for epoch in range(settings.epochs):
            loss = run.epoch()
            if progress:
                progress(epoch, loss)
            if loss < best_loss:
                best_loss, best_state, since_best = loss, copy.deepcopy(run.model.state_dict()), 0
            else:
                since_best += 1
            if since_best >= settings.patience:
                break
    if settings.restore != "best":
        best_state = run.model.state_dict()
    if ranks.size() == 1:
        model = run.model.to(original_device)
    model.load_state_dict(best_state)  # several processes: into the copy whose batch norms are not shared
    if run.device.type == "cuda":
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.zero_grad(set_to_none=True)
    model.eval()
    model.__dict__["threshold"] = best_cut(as_scores(outputs(model, valid.inputs), kind).numpy(), valid.y)
    return model


def best_cut(score: "np.typing.NDArray[np.float64]", y: "np.typing.NDArray[np.int64]") -> float:
    """The threshold with the best balanced accuracy."""
    from sklearn.metrics import roc_curve

    fpr, tpr, thresholds = roc_curve(y, score, drop_intermediate=False)
    return float(thresholds[1:][(tpr - fpr)[1:].argmax()])


def _check(train: Cohort, valid: Cohort) -> None:
    problems = []
    for part, name in ((train, "training"), (valid, "validation")):
        if len(np.unique(part.y)) < 2:
            problems.append(f"the {name} set {part.name!r} has one label in all {len(part):,} rows; expected positives and negatives")
    if train.inputs.shape[1:] != valid.inputs.shape[1:]:
        problems.append(f"inputs differ in shape: {tuple(train.inputs.shape[1:])} in train, {tuple(valid.inputs.shape[1:])} in validation")
    if train.inputs.dtype != torch.float32:
        problems.append(f"inputs must be float32; those of the training set are {train.inputs.dtype}")
    raise_all(problems)


class ModuleRun:
    """One training of a copy of a module: on a CPU, on a GPU (bfloat16, recorded steps), or in several processes (see ranks)."""

    def __init__(self, model: nn.Module, train: Cohort, valid: Cohort, seed: int, settings: Training, kind: str) -> None:
        self.settings, self.kind = settings, kind
        self.device = compute_device(model, train.inputs)
        self.model = in_layout(copy.deepcopy(model).to(self.device), train.inputs)
        self.model = synchronised(self.model)
        ranks.agree(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise BadInput("the network has no parameter that requires a gradient, so there is nothing to train")
        self.feed, self.valid = Feed(train.inputs, self.device), Feed(valid.inputs, self.device)
        self.y, self.y_valid = torch.from_numpy(train.y).float(), torch.from_numpy(valid.y).float()
        self.optimiser = OPTIMISERS[settings.optimiser](self.parameters, lr=settings.learning_rate, fused=self.device.type == "cuda")
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimiser, patience=settings.plateau)
        self.step_schedule = torch.optim.lr_scheduler.StepLR(self.optimiser, settings.step)
        self.shuffle, self.draws = generator(seed, "shuffle"), generator(seed, "augment")
        self.augmentation = Augmentation() if settings.augment and len(train.inputs.shape) == 4 else None
        self._recorded: Captured | None = None

    def epoch(self) -> float:
        """The validation loss after one more epoch."""
        self.model.train()
        for index in torch.from_numpy(self.shuffle.permutation(len(self.y))).split(self.settings.batch):
            if len(index) == 1:
                continue  # batch norm has no variance of one row
            try:
                self._step(index)
            except torch.OutOfMemoryError as error:
                raise too_large(len(index)) from error
        ranks.agree(self.model)  # layers other than batch norms may keep statistics of each process's own rows
        loss = self._validation_loss()
        if self.settings.schedule == "plateau":
            self.plateau.step(loss)
        else:
            self.step_schedule.step()
        return loss

    def _validation_loss(self) -> float:
        raw = torch.zeros(len(self.valid), device=self.device)
        shard = ranks.share(torch.arange(len(self.valid)))
        with evaluating(self.model):
            raw[shard] = feed_outputs(self.model, self.valid, shard, fast=True).to(self.device)
        ranks.add_up([raw])
        return float(self._losses(raw.cpu(), self.y_valid).mean())

    def _step(self, index: Tensor) -> None:
        maps = self.augmentation.draw(len(index), self.draws) if self.augmentation else torch.zeros(len(index), 2, 3)
        shard, share = ranks.share(torch.arange(len(index))), 1 / len(index)
        if len(index) < ranks.size():  # all rows in each process: one without rows would be missed in the statistics of batch norms
            shard, share = torch.arange(len(index)), share / ranks.size()
        tensors = [index[shard], self.y[index[shard]], maps[shard], torch.full((len(shard),), share)]
        on_device = [t.to(self.device, non_blocking=True) for t in tensors]
        if self._recorded is None:
            for p in self.parameters:
                p.grad = torch.zeros_like(p)
            # Several processes may have to wait for each other within a step, which cannot be recorded.
            record = self.feed.resident and ranks.size() == 1
            self._recorded = Captured(self._gradient, on_device if record else [torch.empty(0)], list(self.model.buffers()))
        self._recorded(*on_device)
        ranks.add_up_gradients(self.parameters)
        self.optimiser.step()

    def _gradient(self, index: Tensor, y: Tensor, maps: Tensor, share: Tensor) -> None:
        """Sets the gradient of the mean loss."""
        torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])
        if not len(index):
            return
        x = self.feed(index)
        if self.augmentation:
            x = moved(x, maps)
        with mixed_precision(self.device):
            raw = single_output(self.model(x), len(index))
        (self._losses(raw.float(), y) * share).sum().backward()

    def _losses(self, raw: Tensor, y: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits if self.kind == "logit" else F.binary_cross_entropy
        return loss(raw, y, reduction="none")
