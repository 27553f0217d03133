"""Batch norm over the rows of all processes (see ranks): mean and variance of the whole batch, as one process computes them."""

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.function import FunctionCtx

from equipoise.errors import BadInput
from equipoise.models import ranks

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Sum(torch.autograd.Function):
    """The sum over the processes. Each has a part of the loss that depends on the sum, so the gradient is a sum over them too."""

    @staticmethod
    def forward(_ctx: FunctionCtx, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm whose statistics in training mode are those of the rows of all processes."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions: that of the layer it replaces has been checked by its network."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        own = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        rows = torch.tensor([input.numel() / input.shape[1]], dtype=torch.float64, device=input.device)
        variance, mean = torch.var_mean(input, own, correction=0)
        mean, variance = mean.double(), variance.double()
        sums: Tensor = _Sum.apply(  # type: ignore[no-untyped-call]
            torch.cat([rows, rows * mean, rows * (variance + mean.square())])
        )
        count, (mean, square) = sums[0], (sums[1:] / sums[0]).chunk(2)
        variance = (square - mean.square()).clamp(min=0)
        self._follow(mean.detach(), variance.detach(), count.detach())
        scale = (variance + self.eps).rsqrt().to(input.dtype)
        result: Tensor = (input - mean.to(input.dtype).view(shape)) * scale.view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result

    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Updates the running statistics."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def synchronised(model: nn.Module) -> nn.Module:
    """The same network, with shared batch norms if there are several processes. Its state dict has the same names.

    Raises `BadInput` for other layers with batch statistics, which would be those of each process's own rows.
    """
    if ranks.size() == 1:
        return model
    other = sorted({type(m).__name__ for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and type(m) not in KINDS})
    if other:
        raise BadInput(
            f"the network has layers of batch statistics of its own kind ({', '.join(other)}), which cannot be shared by processes. "
            "Train it in one process, without torchrun, or use BatchNorm1d, BatchNorm2d or BatchNorm3d of torch."
        )
    if next((p.is_cuda for p in model.parameters()), False):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for module in model.modules():
        if type(module) in KINDS:
            module.__class__ = SharedBatchNorm
    return model
