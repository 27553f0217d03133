"""Convolution, bias and ReLU in one call: the same outputs, and the network is restored. The call of cuDNN itself needs a GPU."""

import pytest
import torch
from torch import Tensor, nn

from equipoise.models.score import fused


class Counted:
    """Computes on a CPU what cuDNN's call computes, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, *rest: object) -> Tensor:
        self.calls += 1
        return torch.relu(torch.conv2d(x, weight, bias, *rest))  # type: ignore[call-overload, no-any-return]


def network() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3, dilation=2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1))
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), inner, head).eval()


def test_outputs_are_equal_and_the_network_is_restored() -> None:
    model, x = network(), torch.randn(5, 1, 24, 24)
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    with torch.no_grad():
        expected = model(x)
        count = Counted()
        with fused(model, count, torch.float32):
            assert torch.equal(model(x), expected)
        assert count.calls == 2  # the last convolution has no ReLU after it
        assert torch.equal(model(x), expected)
    assert count.calls == 2
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == {name: set(own) for name, own in before.items()}


def test_the_network_is_restored_after_an_error() -> None:
    model = network()
    with pytest.raises(RuntimeError), fused(model, Counted(), torch.float32):
        model(torch.randn(1, 3, 24, 24))
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("change", ["hook", "pre-hook", "no bias", "reflect", "same", "subclass"])
def test_layers_that_are_not_fused(change: str) -> None:
    class Masked(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0.5

    layer = {
        "hook": lambda: nn.Conv2d(1, 2, 3),
        "pre-hook": lambda: nn.Conv2d(1, 2, 3),
        "no bias": lambda: nn.Conv2d(1, 2, 3, bias=False),
        "reflect": lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"),
        "same": lambda: nn.Conv2d(1, 2, 3, padding="same"),
        "subclass": lambda: Masked(1, 2, 3),
    }[change]()
    seen: list[int] = []
    if change == "hook":
        layer.register_forward_hook(lambda *_: seen.append(1))
    if change == "pre-hook":
        layer.register_forward_pre_hook(lambda *_: seen.append(1))
    model, x, count = nn.Sequential(layer, nn.ReLU()).eval(), torch.randn(2, 1, 8, 8), Counted()
    with torch.no_grad(), fused(model, count, torch.float32):
        model(x)
    assert count.calls == 0
    assert len(seen) == ("hook" in change)


def test_a_layer_called_directly_is_not_fused() -> None:
    """A network may call the layers of a chain one by one, for example to read the output of a convolution."""
    model, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad(), fused(model, Counted(), torch.float32):
        assert (model[0](x) < 0).any()
