"""The epochs of training any module: on a CPU, on a GPU (bfloat16, recorded steps), or shared by several processes (see ranks)."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data import Cohort, generator
from equipoise.errors import BadInput
from equipoise.models import ranks
from equipoise.models.augment import Augmentation, moved
from equipoise.models.capture import Captured
from equipoise.models.feed import Feed, half, in_layout, workplace
from equipoise.models.recipe import OPTIMISERS, Training
from equipoise.models.score import evaluating, feed_outputs, single_output
from equipoise.models.single import too_large


class ModuleRun:
    """One training of a copy of a module: `epoch` goes once over the train part and tells the loss on the validation part."""

    def __init__(self, model: nn.Module, train: Cohort, valid: Cohort, seed: int, settings: Training, kind: str) -> None:
        self.settings, self.kind = settings, kind
        self.device = workplace(model, train.inputs)
        self.model = in_layout(copy.deepcopy(model).to(self.device), train.inputs)
        if ranks.size() > 1 and self.device.type == "cuda":
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        ranks.agree(self.model)
        self.mine = [p for p in self.model.parameters() if p.requires_grad]
        if not self.mine:
            raise BadInput("the network has no parameter that requires a gradient, so there is nothing to train")
        self.feed, self.valid = Feed(train.inputs, self.device), Feed(valid.inputs, self.device)
        self.y, self.y_valid = torch.from_numpy(train.y).float(), torch.from_numpy(valid.y).float()
        self.optimiser = OPTIMISERS[settings.optimiser](self.mine, lr=settings.learning_rate, fused=self.device.type == "cuda")
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimiser, patience=settings.plateau)
        self.stairs = torch.optim.lr_scheduler.StepLR(self.optimiser, settings.step)
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
        ranks.agree(self.model)  # batch statistics of a process are those of its own rows
        loss = self._validation_loss()
        if self.settings.schedule == "plateau":
            self.plateau.step(loss)
        else:
            self.stairs.step()
        return loss

    def _validation_loss(self) -> float:
        rows = torch.arange(len(self.valid))
        found = torch.zeros(len(rows), device=self.device)
        mine = ranks.share(rows)
        with evaluating(self.model):
            found[mine] = feed_outputs(self.model, self.valid, mine, fast=True).to(self.device)
        ranks.add_up([found])
        return float(self._losses(found.cpu(), self.y_valid).mean())

    def _step(self, index: Tensor) -> None:
        maps = self.augmentation.draw(len(index), self.draws) if self.augmentation else torch.zeros(len(index), 2, 3)
        mine = ranks.share(torch.arange(len(index)))
        tensors = [index[mine], self.y[index[mine]], maps[mine], torch.full((len(mine),), 1 / len(index))]
        on_device = [t.to(self.device, non_blocking=True) for t in tensors]
        if self._recorded is None:
            for p in self.mine:
                p.grad = torch.zeros_like(p)
            # Several processes may have to wait for one another inside a step, which no recording can do.
            record = self.feed.resident and ranks.size() == 1
            self._recorded = Captured(self._gradient, on_device if record else [torch.empty(0)], list(self.model.buffers()))
        self._recorded(*on_device)
        ranks.add_up_gradients(self.mine)
        self.optimiser.step()

    def _gradient(self, index: Tensor, y: Tensor, maps: Tensor, share: Tensor) -> None:
        """Leaves the gradient of the mean loss."""
        torch._foreach_zero_([p.grad for p in self.mine if p.grad is not None])
        if not len(index):
            return
        x = self.feed(index)
        if self.augmentation:
            x = moved(x, maps)
        with half(self.device):
            raw = single_output(self.model(x), len(index))
        (self._losses(raw.float(), y) * share).sum().backward()

    def _losses(self, raw: Tensor, y: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits if self.kind == "logit" else F.binary_cross_entropy
        return loss(raw, y, reduction="none")
