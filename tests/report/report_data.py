"""A small run, made by hand, that the tests of the report read."""

import numpy as np

from mxbench.report.columns import columns_for
from mxbench.report.data import MethodRow, Observation, TableData

ROWS = (
    MethodRow("fp16", "FP16", role="reference", bits="16"),
    MethodRow("fp16@math", "FP16, math kernel", role="noise_floor", bits="16"),
    MethodRow("mxfp4", "MXFP4 (OCP)", bits="4.25"),
    MethodRow("nvfp4", "NVFP4", bits="4.5"),
    MethodRow("nvfp4-sage", "NVFP4 + SageAttention", bits="4.5"),
    MethodRow("mxattn", "MXAttention", bits="4.25"),
)
METRICS = ("subject_consistency", "imaging_quality", "aesthetic_quality", "cosine", "ssim", "psnr", "vmaf")
# Near the published rows of Wan2.2; the order is that of METRICS, None where a row is its own reference.
_LEVELS = {
    "fp16": (0.956, 0.7085, 0.604, None, None, None, None),
    "fp16@math": (0.956, 0.7080, 0.604, 0.9998, 0.998, 61.0, 99.1),
    "mxfp4": (0.951, 0.641, 0.620, 0.9290, 0.508, 15.6, 31.0),
    "nvfp4": (0.958, 0.697, 0.615, 0.9280, 0.528, 15.5, 33.0),
    "nvfp4-sage": (0.956, 0.698, 0.612, 0.9510, 0.618, 17.7, 40.0),
    "mxattn": (0.954, 0.705, 0.623, 0.9536, 0.632, 17.9, 41.0),
}
LEVELS = {key: dict(zip(METRICS, levels, strict=True)) for key, levels in _LEVELS.items()}


def small_run(prompts=6, seeds=2, rows=ROWS, metrics=METRICS, spread=0.02, columns=None, **more):
    """Scores around the published means: one prompt is harder than another for every method."""
    rng = np.random.default_rng(7)
    observations = []
    for p in range(prompts):
        hard = rng.normal(0, spread)
        for row in rows:
            for metric in metrics:
                level = LEVELS.get(row.key, LEVELS["mxfp4"]).get(metric)
                if level is None:
                    continue
                for seed in range(seeds):
                    value = level * (1 + hard / 4 + rng.normal(0, spread / 5))
                    observations.append(Observation(row.key, f"prompt-{p}", seed, metric, float(value)))
    given = {
        "title": "Attention in 4 bits",
        "model": "wan2.2",
        "weights": "random weights (seed 0)",
        "environment": {"Device": "cpu", "dtype": "float32", "torch": "2.13.0", "Frames": "81"},
        "reference": "fp16, sdpa, cpu float32",
        "rows": rows,
        "metrics": columns_for(metrics) if columns is None else columns,
        "observations": tuple(observations),
        "n_prompts": prompts,
    }
    return TableData(**{**given, **more})
