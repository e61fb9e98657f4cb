"""Augmentation, drawn from the generator of its step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

SHIFT = 4


def crop_flip(images: Tensor, generator: Generator) -> Tensor:
    """Each image moved by up to SHIFT pixels either way, black coming in from outside; every second one mirrored."""
    count, _, height, width = images.shape
    padded = F.pad(images, (SHIFT, SHIFT, SHIFT, SHIFT))
    top, left = torch.randint(2 * SHIFT + 1, (2, count), generator=generator).to(images.device)
    mirrored = torch.randint(2, (count,), generator=generator).to(images.device).bool()
    across = torch.arange(width, device=images.device).expand(count, width)
    columns = left[:, None] + torch.where(mirrored[:, None], width - 1 - across, across)
    rows = top[:, None] + torch.arange(height, device=images.device)
    picture = torch.arange(count, device=images.device)[:, None, None]
    # Indexing with tensors around a slice puts the channels last.
    return padded[picture, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
