"""What tests of the command line share: clips to score, and what an error looks like."""

from fractions import Fraction

import numpy as np

from mxbench.video import write_lossless, write_preview


def clip(path, frames=5, size=(32, 48), fps=8, seed=0, noise=0):
    rng = np.random.default_rng(seed)
    data = rng.integers(40, 210, (frames, *size, 3)) + np.random.default_rng(9).integers(
        -noise, noise + 1, (frames, *size, 3)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write = write_lossless if path.suffix == ".mkv" else write_preview
    write(path, data.clip(0, 255).astype(np.uint8), Fraction(fps))
    return path


def one_line(code, err, *said, expected=2):
    assert code == expected
    assert err.startswith("mxbench: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for words in said:
        assert words in err


def error(result):
    """Exit code and standard error of what ``mxbench_cli`` returned."""
    return result[0], result[2]
