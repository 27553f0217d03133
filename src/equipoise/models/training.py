"""Training as in the paper: binary cross-entropy and early stopping on validation loss.

For tables: Adam, ReduceLROnPlateau, mini-batches of 64. For chest X-rays: AdamW, StepLR, mini-batches of 32, at most 20 epochs,
augmentation. Departures from the published code: the best weights are restored from a copy (the published code keeps a reference, so it
restores the last ones), and the validation loss is evaluated after every epoch (published: every tenth, with a patience of eleven
evaluations). `Training(restore="last", patience=110)` trains as published. The default network trains as a `FlatMLP`.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Cohort, check_apart, check_cohort, child_seed, generator
from equipoise.errors import BadInput, raise_all
from equipoise.models import ranks
from equipoise.models.devices import Captured, Feed, compute_device, in_layout, mixed_precision, requested_device, within_memory
from equipoise.models.mlp import OPTIMISERS, FlatAdam, FlatMLP, copy_tensors, initial_mlp
from equipoise.models.score import as_scores, feed_outputs, modules_of, output_kind, outputs, single_output
from equipoise.specification import Specification, one_of

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Training(Specification):
    """The settings of training. `patience` counts epochs without a better validation loss."""

    epochs: int = Field(default=1000, ge=0)  # 0 epochs return the initial network
    batch: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    patience: int = Field(default=30, ge=1)
    plateau: int = Field(default=10, ge=1)  # epochs without improvement after which the learning rate falls to a tenth
    optimiser: Annotated[str, one_of("optimiser of training", OPTIMISERS)] = "adam"  # or adamw
    schedule: Annotated[str, one_of("schedule of training", ("plateau", "step"))] = "plateau"  # or step: a tenth every `step` epochs
    step: int = Field(default=7, ge=1)
    augment: bool = False  # for images: centre crop, flip, translation and rotation at random
    # The weights with the lowest validation loss; or last: those of the last epoch.
    restore: Annotated[str, one_of("weights to restore after training", ("best", "last"))] = "best"

    @classmethod
    def as_in_paper(cls, shape: Sequence[int]) -> "Training":
        """The paper's settings for inputs of a shape (rows, ...): those of its chest X-rays for images, those of its tables otherwise."""
        if len(shape) != 4:
            return cls()
        return cls(epochs=20, batch=32, learning_rate=1e-4, patience=5, optimiser="adamw", schedule="step", augment=True)


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


def transformed_images(x: Tensor, maps: Tensor) -> Tensor:
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
    progress: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """The trained network, in eval mode. Its attribute `threshold` has the best balanced accuracy on the validation set.

    train, valid: the training set, and the set for early stopping and the threshold; without patients in common.
    seed: of weights, shuffling and dropout: the same seed gives the same weights.
    model: a module to train a copy of; by default the paper's MLP, for tables.
    settings: by default the paper's, those of its chest X-rays for images and those of its tables otherwise.
    progress: called with the epoch and its validation loss.
    """
    check_cohort("eq.train", train)
    if valid is None:
        raise BadInput("eq.train takes a training and a validation set: parts = eq.split(cohort); eq.train(parts.train, parts.valid)")
    check_cohort("eq.train", valid)
    problems = []
    for part, name in ((train, "training"), (valid, "validation")):
        if len(np.unique(part.y)) < 2:
            problems.append(f"the {name} set {part.name!r} has one label in all {len(part):,} rows; expected positives and negatives")
    if train.inputs.shape[1:] != valid.inputs.shape[1:]:
        problems.append(f"inputs differ in shape: {tuple(train.inputs.shape[1:])} in train, {tuple(valid.inputs.shape[1:])} in validation")
    if train.inputs.dtype != torch.float32:
        problems.append(f"inputs must be float32; those of the training set are {train.inputs.dtype}")
    raise_all(problems)
    check_apart(training=train, validation=valid)
    if train.several:
        raise BadInput(
            f"{train.name!r} has several {train.kind} ({', '.join(train.labels)}), and train trains one output. Train such a network "
            f"with your own code; a single label: train(parts.train.labelled({train.labels[0]!r}), ...)"
        )
    if settings is None:
        settings = Training.as_in_paper(train.inputs.shape)
    if model is None and len(train.inputs.shape) != 2:
        raise BadInput(
            f"the default network takes tables; {train.name!r} holds inputs of shape {tuple(train.inputs.shape[1:])}. "
            "Give a network of your own: train(..., model=net)"
        )
    run: _MLPRun | ModuleRun
    if model is None:
        run = _MLPRun(train, valid, seed, settings)
    else:
        network = copy.deepcopy(model)
        run = ModuleRun(network, train, valid, seed, settings, output_kind(network, train.inputs))
    best, best_loss, since_best = copy_tensors(run.state(), []), float("inf"), 0
    with torch.random.fork_rng():  # a module's dropout draws from torch's own generator
        torch.manual_seed(child_seed(seed, f"dropout {ranks.rank()}" if ranks.rank() else "dropout"))
        for epoch in range(settings.epochs):
            loss = run.epoch()
            since_best = 0 if loss < best_loss else since_best + 1
            if loss < best_loss:
                best, best_loss = copy_tensors(run.state(), best), loss
            if progress:
                progress(epoch, loss)
            if since_best >= settings.patience:  # epochs without a better validation loss
                break
    if settings.restore == "best":
        copy_tensors(best, run.state())
    network = run.trained()
    network.__dict__["threshold"] = best_cut(as_scores(outputs(network, valid.inputs), run.kind).numpy(), valid.y)
    return network


class _MLPRun:
    """One training of the paper's network, with the weights that the seed gives."""

    kind = "logit"

    def __init__(self, train: Cohort, valid: Cohort, seed: int, settings: Training) -> None:
        self.settings = settings
        self.flat = FlatMLP(initial_mlp(train.inputs.shape[1], seed), requested_device())
        self.x, self.x_valid = (part.inputs[:].to(self.flat.device) for part in (train, valid))
        self.y, self.y_valid = (torch.from_numpy(part.y).float().to(self.flat.device) for part in (train, valid))
        self.recorder = self.flat.recorder()
        self.shuffle, self.dropout = generator(seed, "shuffle"), generator(seed, "dropout")
        self.optimiser = FlatAdam(self.flat, settings.learning_rate)
        self.plateau, self.since_plateau = np.float32(np.inf), 0
        self.state, self.trained = self.flat.state, self.flat.trained

    def epoch(self) -> float:
        """The validation loss after one more epoch."""
        for index in torch.from_numpy(self.shuffle.permutation(len(self.y))).split(self.settings.batch):
            if len(index) > 1:  # batch norm has no variance of one row
                self.recorder(self._gradient, index, self.flat.masks(len(index), self.dropout))
                self.optimiser.step()
        # The only value per epoch that the GPU is waited for.
        loss = float(F.binary_cross_entropy_with_logits(self.flat.evaluate(self.x_valid), self.y_valid, reduction="none").mean())
        clearly_better = np.float32(loss) < self.plateau * np.float32(1 - 1e-4)
        self.plateau, self.since_plateau = (np.float32(loss), 0) if clearly_better else (self.plateau, self.since_plateau + 1)
        if self.since_plateau > self.settings.plateau:
            self.optimiser.set_rate(float(np.float32(self.optimiser.rate) * np.float32(0.1)))
            self.since_plateau = 0
        return loss

    def _gradient(self, index: Tensor, masks: Tensor | None = None) -> None:
        batch, label, share = self.x.index_select(0, index), self.y[index], 1 / len(index)
        # The derivative of the mean cross-entropy with respect to the logits is (score - label) / rows.
        self.flat.fill_gradient(batch, lambda logits: (torch.sigmoid(logits) - label) * share, masks=masks, training=True)


def best_cut(score: "np.typing.NDArray[np.float64]", y: "np.typing.NDArray[np.int64]") -> float:
    """The threshold with the best balanced accuracy."""
    from sklearn.metrics import roc_curve

    fpr, tpr, thresholds = roc_curve(y, score, drop_intermediate=False)
    return float(thresholds[1:][(tpr - fpr)[1:].argmax()])


class ModuleRun:
    """One training of a copy of a module: on a CPU, on a GPU (bfloat16, recorded steps), or in several processes (see ranks)."""

    def __init__(self, model: nn.Module, train: Cohort, valid: Cohort, seed: int, settings: Training, kind: str) -> None:
        self.settings, self.kind, self.original = settings, kind, model
        self.device = compute_device(model, train.inputs)
        self.model = with_shared_batch_norms(in_layout(copy.deepcopy(model).to(self.device), train.inputs))
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

    def state(self) -> list[Tensor]:
        """Everything that training changes."""
        return list(self.model.state_dict().values())

    def trained(self) -> nn.Module:
        """The original module with the present state, in eval mode: on its own device, with batch norms that no processes share."""
        self.original.load_state_dict(self.model.state_dict())
        self.original.zero_grad(set_to_none=True)
        return self.original.eval()

    def epoch(self) -> float:
        """The validation loss after one more epoch."""
        self.model.train()
        for index in torch.from_numpy(self.shuffle.permutation(len(self.y))).split(self.settings.batch):
            if len(index) == 1:
                continue  # batch norm has no variance of one row
            with within_memory(len(index)):
                self._step(index)
        ranks.agree(self.model)  # layers other than batch norms may keep statistics of each process's own rows
        raw = torch.zeros(len(self.valid), device=self.device)
        shard = ranks.share(torch.arange(len(self.valid)))
        raw[shard] = feed_outputs(self.model, self.valid, shard, fast=True).to(self.device)
        ranks.add_up([raw])
        loss = float(self._losses(raw.cpu(), self.y_valid).mean())
        if self.settings.schedule == "plateau":
            self.plateau.step(loss)
        else:
            self.step_schedule.step()
        return loss

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
            x = transformed_images(x, maps)
        with mixed_precision(self.device):
            raw = single_output(self.model(x), len(index))
        (self._losses(raw.float(), y) * share).sum().backward()

    def _losses(self, raw: Tensor, y: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits if self.kind == "logit" else F.binary_cross_entropy
        return loss(raw, y, reduction="none")


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose statistics in training mode are those of the rows of all processes (see ranks), as one process computes them."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions: that of the layer it replaces has been checked by its network."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        from torch.distributed.nn.functional import all_reduce  # not part of every build of torch

        own = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        rows = torch.tensor([input.numel() / input.shape[1]], dtype=torch.float64, device=input.device)
        variance, mean = torch.var_mean(input, own, correction=0)
        mean, variance = mean.double(), variance.double()
        # Each process has a part of the loss that depends on these sums, so their gradients are summed over the processes too.
        sums: Tensor = all_reduce(torch.cat([rows, rows * mean, rows * (variance + mean.square())]))
        count, (mean, square) = sums[0], (sums[1:] / sums[0]).chunk(2)
        variance = (square - mean.square()).clamp(min=0)
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance.detach() * count.detach() / (count.detach() - 1).clamp(min=1)
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        scale = (variance + self.eps).rsqrt().to(input.dtype)
        result: Tensor = (input - mean.to(input.dtype).view(shape)) * scale.view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result


def with_shared_batch_norms(model: nn.Module) -> nn.Module:
    """The same network, with shared batch norms if there are several processes. Its state dict has the same names.

    Raises `BadInput` for other layers with batch statistics, which would be those of each process's own rows.
    """
    if ranks.size() == 1:
        return model
    kinds = set(map(type, modules_of(model, nn.modules.batchnorm._BatchNorm).values()))
    if other := sorted(kind.__name__ for kind in kinds - {*BATCH_NORMS}):
        raise BadInput(
            f"the network has layers of batch statistics of its own kind ({', '.join(other)}), which cannot be shared by processes. "
            "Train it in one process, without torchrun, or use BatchNorm1d, BatchNorm2d or BatchNorm3d of torch."
        )
    if next((p.is_cuda for p in model.parameters()), False):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for module in model.modules():
        if type(module) in BATCH_NORMS:
            module.__class__ = SharedBatchNorm
    return model
