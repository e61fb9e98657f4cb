"""Small models with known answers. Each takes its random weights from a generator, none touches global state."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from support.rounding import eps_of, sum_error


class Affine(nn.Module):
    """z = W x + b on flattened inputs."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight, self.bias)

    def labels(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self(x).argmax(1)

    def rounding(self, x: Tensor) -> Tensor:
        """(features + 2) eps (|W| |x| + |b|), in float64: the most that two computations of the logits may differ."""
        terms = F.linear(x.flatten(1).double().abs(), self.weight.double().abs(), self.bias.double().abs())
        return sum_error(terms, self.weight.shape[1] + 2, like=x)


def random_affine(
    generator: Generator, *, features: int, classes: int = 10, spread: float = 1.0, dtype: torch.dtype = torch.float32
) -> Affine:
    """Normal weights, all distinct; at the centre of [0, 1]^d the logits are normal with deviation `spread`."""
    weight = torch.randn(classes, features, generator=generator, dtype=dtype)
    offset = spread * torch.randn(classes, generator=generator, dtype=dtype)
    return Affine(weight, offset - weight.sum(1) / 2)


def ramp_affine(features: int, dtype: torch.dtype = torch.float32) -> Affine:
    """Two classes; z_0 - z_1 = w (x - 1/2) with weights 1, 1.01, 1.02, ...: known by hand, and distinct."""
    weight = 1.0 + 0.01 * torch.arange(features, dtype=dtype)
    return Affine(
        torch.stack([weight, torch.zeros_like(weight)]), torch.stack([-weight.sum() / 2, weight.new_zeros(())])
    )


class TinyConv(nn.Module):
    """(batch, 3, 6, 6) -> 5 classes; smooth, so that no two logits tie."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.second = nn.Conv2d(6, 6, 3)
        self.last = nn.Linear(24, 5)
        with torch.no_grad():
            for layer, gain in ((self.first, 1.0), (self.second, 1.0), (self.last, 4.0)):
                fan_in = layer.weight[0].numel()
                layer.weight.copy_(gain * fan_in**-0.5 * torch.randn(layer.weight.shape, generator=generator))
                layer.bias.zero_()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(F.silu(self.first(4 * x - 2))))
        return self.last(hidden.flatten(1))

    def rounding(self, x: Tensor, stored: torch.dtype | None = None) -> Tensor:
        """What two computations of the logits may differ by, in float64: eight deviations of independent roundings.

        Through three layers the worst case is a thousand times what happens, so errors are added in squares here. A
        layer of n inputs a sum adds sqrt(n + 2) eps |W| |h| (Higham & Mary 2019, A new approach to probabilistic
        rounding error analysis) and takes the error e of h to sqrt(W^2 e^2). The slope of silu is at most 1.1, that of
        tanh at most 1; each is itself good to 4 ulp, as the vector libraries promise it. A layer whose output is
        `stored` in fewer bits, as under autocast, may round it either way: an ulp of that dtype.
        """
        eps = eps_of(x)
        last_bit = 0.0 if stored is None else torch.finfo(stored).eps

        def through(layer: nn.Conv2d | nn.Linear, value: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            weight, bias = layer.weight.double(), layer.bias.double()
            apply = F.linear if isinstance(layer, nn.Linear) else F.conv2d
            terms = apply(value.abs(), weight.abs(), bias.abs())
            value = apply(value, weight, bias)
            own = (weight[0].numel() + 2) * (eps * terms).square() + (last_bit * value).square()
            return value, apply(variance, weight.square()) + own

        def bend(
            curve: Callable[[Tensor], Tensor], slope: float, value: Tensor, variance: Tensor
        ) -> tuple[Tensor, Tensor]:
            value = curve(value)
            return value, slope**2 * variance + ((4 * eps + last_bit) * value).square()

        value = 4 * x.double() - 2
        variance = (eps * (4 * x.double().abs() + value.abs())).square()
        value, variance = bend(F.silu, 1.1, *through(self.first, value, variance))
        value, variance = bend(torch.tanh, 1.0, *through(self.second, value, variance))
        return 8 * through(self.last, value.flatten(1), variance.flatten(1))[1].sqrt()


class NoisyInputs(nn.Module):
    """A model behind Gaussian noise from the global generator, as randomized defenses have it."""

    def __init__(self, model: nn.Module, deviation: float) -> None:
        super().__init__()
        self.model, self.deviation = model, deviation
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x + self.deviation * torch.randn_like(x))
        return logits


class Stubborn(nn.Module):
    """Class 0 wins by at least 8 everywhere, yet the gradient is not zero."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.classes = classes
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.tanh(x.flatten(1).sum(1))
        return torch.stack([10 + slope, *[-slope] * (self.classes - 1)], dim=1)


class Cliff(nn.Module):
    """Class 1 needs a feature above `threshold`; below it the logits are constant and their gradient is exactly 0."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        height = 100 * F.relu(x.flatten(1) - self.threshold).sum(1)
        return torch.stack([torch.full_like(height, 2.0), height], dim=1)


class Seesaw(nn.Module):
    """Class 1 while the features are above 1/2 on average, class 0 from 1/2 on, where both logits are 10."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        height = (x.flatten(1) - 0.5).sum(1)
        return torch.stack([10 - height, torch.full_like(height, 10.0)], dim=1)


class RootAtHalf(nn.Module):
    """z_1 has sqrt((x_0 - 1/2)^2), whose slope at x_0 = 1/2 is inf * 0 = NaN, and a plain slope in the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        root = (x[:, 0] - 0.5).square().sqrt()
        return torch.stack([torch.full_like(root, 2.0), root + 4 * (x[:, 1:] - 0.5).sum(1)], dim=1)


class Counting(nn.Module):
    """Calls a model and records the number of rows of each forward and backward pass."""

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.forwards: list[int] = []
        self.backwards: list[int] = []
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.forwards.append(len(x))
        output = self.model(x)
        if output.requires_grad:
            output.register_hook(lambda gradient: self.backwards.append(len(gradient)))
        return output


class WithLogits(nn.Module):
    """Returns a record with `.logits`, as the models of Hugging Face do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(x), hidden=None)


def tiny_conv_problem(samples: int) -> tuple[TinyConv, tuple[Tensor, Tensor]]:
    """Return a small net, and images that it classifies correctly."""
    generator = torch.Generator().manual_seed(1)
    model = TinyConv(generator)
    images = torch.rand(samples, 3, 6, 6, generator=generator)
    return model, (images, model(images).argmax(1))
