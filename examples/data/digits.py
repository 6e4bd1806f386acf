#!/usr/bin/env python3
"""Writes small images of digits, drawn with strokes of random place, size, slant and brightness, as files of the MNIST
database: 2,000 to train on and 400 to evaluate on. The files beside this script were written by it.

    python3 examples/data/digits.py examples/data/digits
"""

import gzip
import random
import struct
import sys
from pathlib import Path

SIZE, SEED = 28, 7
# Points of the strokes of each digit, in a square from 0 to 1, y downwards.
STROKES = [
    [[(0.5, 0), (0.1, 0.2), (0, 0.5), (0.1, 0.8), (0.5, 1), (0.9, 0.8), (1, 0.5), (0.9, 0.2), (0.5, 0)]],
    [[(0.2, 0.2), (0.5, 0), (0.5, 1)]],
    [[(0, 0.2), (0.4, 0), (0.9, 0.1), (0.9, 0.4), (0, 1), (1, 1)]],
    [[(0, 0), (0.9, 0), (0.4, 0.4), (0.9, 0.6), (0.8, 0.95), (0, 1)]],
    [[(0.7, 1), (0.7, 0), (0, 0.7), (1, 0.7)]],
    [[(1, 0), (0.1, 0), (0, 0.5), (0.7, 0.4), (1, 0.7), (0.7, 1), (0, 1)]],
    [[(0.9, 0), (0.3, 0.2), (0, 0.7), (0.3, 1), (0.8, 0.95), (1, 0.7), (0.6, 0.5), (0.05, 0.7)]],
    [[(0, 0), (1, 0), (0.4, 1)], [(0.3, 0.5), (0.9, 0.5)]],
    [[(0.5, 0.45), (0.1, 0.2), (0.5, 0), (0.9, 0.2), (0.5, 0.45), (0, 0.8), (0.5, 1), (1, 0.8), (0.5, 0.45)]],
    [[(0.95, 0.3), (0.4, 0.5), (0, 0.25), (0.4, 0), (0.95, 0.3), (0.7, 1)]],
]


def distance(x: float, y: float, a: tuple[float, float], b: tuple[float, float]) -> float:
    """Returns the distance of a point from a line between two points."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = dx * dx + dy * dy
    t = 0.0 if length == 0 else max(0.0, min(1.0, ((x - a[0]) * dx + (y - a[1]) * dy) / length))
    return ((x - a[0] - t * dx) ** 2 + (y - a[1] - t * dy) ** 2) ** 0.5


def draw(digit: int, random_: random.Random) -> bytes:
    width, height = random_.uniform(7, 13), random_.uniform(13, 19)
    left, top = random_.uniform(3, 25 - width), random_.uniform(3, 25 - height)
    slant, thickness, light = random_.uniform(-3, 3), random_.uniform(0.9, 1.7), random_.choice((160, 200, 240, 255))

    def place(x: float, y: float) -> tuple[float, float]:
        jitter = random_.uniform(-0.6, 0.6), random_.uniform(-0.6, 0.6)
        return left + x * width + slant * (0.5 - y) + jitter[0], top + y * height + jitter[1]

    lines = []
    for stroke in STROKES[digit]:
        points = [place(x, y) for x, y in stroke]
        lines += list(zip(points, points[1:]))
    pixels = bytearray()
    for y in range(SIZE):
        for x in range(SIZE):
            near = min(distance(x + 0.5, y + 0.5, a, b) for a, b in lines)
            # Four levels of brightness compress well.
            pixels.append(round(4 * max(0.0, min(1.0, thickness + 0.5 - near))) * light // 4)
    return bytes(pixels)


def write(folder: Path, prefix: str, count: int, random_: random.Random) -> None:
    labels = bytes(random_.randrange(10) for _ in range(count))
    images = b"".join(draw(label, random_) for label in labels)
    for name, header, content in (
        ("images-idx3", struct.pack(">4B3I", 0, 0, 8, 3, count, SIZE, SIZE), images),
        ("labels-idx1", struct.pack(">4BI", 0, 0, 8, 1, count), labels),
    ):
        path = folder / f"{prefix}-{name}-ubyte.gz"
        path.write_bytes(gzip.compress(header + content, 9, mtime=0))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    random_ = random.Random(SEED)
    write(folder, "train", 2000, random_)
    write(folder, "t10k", 400, random_)


if __name__ == "__main__":
    main()
