"""Read the PNG files of `pdpgd export` back with Pillow, and ask the model about each, one at a time.

    pdpgd evaluate mnist-plain mnist-1000 --limit 100 --out runs/mine
    pdpgd export runs/mine --out pictures
    python scripts/check_exported.py pictures mnist-plain

It shares no code with the export: files, Pillow and the model are all it uses.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pdpgd.models.loading import load_model


def main(folder: str, name: str) -> int:
    model = load_model(name)
    rows = list(csv.DictReader((Path(folder) / "index.csv").open(encoding="utf-8", newline="")))
    survived = 0
    for row in rows:
        with Image.open(Path(folder) / row["file"]) as picture:
            pixels = np.asarray(picture, dtype=np.float32) / 255
        image = torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
        with torch.no_grad():
            answer = int(model(image[None]).argmax())
        survived += answer != int(row["label"]) and answer == int(row["prediction"])
    print(f"{survived} of {len(rows)} PNG files are still adversarial")
    return 0 if rows and survived == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
