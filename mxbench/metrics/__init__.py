"""How a video is judged: METRICS is the table, ``score`` runs some of it on a clip.

A new metric is one function and one entry here. Importing this loads NumPy at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mxbench.errors import unknown_name
from mxbench.metrics import fidelity, structure, temporal, vbench, vmaf
from mxbench.metrics.base import Metric, Score, always, unscored
from mxbench.metrics.health import sickness
from mxbench.metrics.pair import align, check_pair
from mxbench.video import Clip

__all__ = ["METRICS", "Metric", "Score", "align", "check_pair", "metric", "score", "sickness"]

_VBENCH = "VBench (Huang et al. 2024)"

# fmt: off
METRICS: dict[str, Metric] = {m.name: m for m in (
    Metric("cosine", 1, "Cosine", 4, True, True,
           "Cosine of flattened raw RGB, not centred, mean over frames; the papers' tables imply this definition.",
           fidelity.cosine, always),
    Metric("ssim", 1, "SSIM", 4, True, True,
           "Wang et al. 2004 as scikit-image computes it by default on RGB: uniform 7×7 window, mean over frames.",
           structure.ssim, always),
    Metric("ssim_gaussian", 1, "SSIM (Gaussian)", 4, True, True,
           "Wang et al. 2004 with their Gaussian window, sigma 1.5, no sample covariance, RGB, mean over frames.",
           structure.ssim_gaussian, always),
    Metric("psnr", 1, "PSNR", 2, True, True,
           "PSNR in dB per frame, then the mean over frames, each capped at 100 dB, as in the MXAttention paper.",
           fidelity.psnr, always),
    Metric("psnr_clip", 1, "PSNR (clip)", 2, True, True,
           "PSNR in dB from the MSE of the whole clip, capped at 100 dB, as in the VC-Attention paper.",
           fidelity.psnr_clip, always),
    Metric("vmaf", 1, "VMAF", 2, True, True,
           "VMAF (Li et al. 2016), model vmaf_v0.6.1 on BT.709 limited-range yuv420p, mean over frames.",
           vmaf.vmaf, vmaf.missing),
    Metric("temporal_flickering", 1, "Flicker (unfiltered)", 4, True, False,
           f"(255 - MAE of successive frames) / 255 after {_VBENCH}, without its filter for static clips.",
           temporal.temporal_flickering, always),
    Metric("subject_consistency", 1, "Subject", 4, True, False,
           f"Cosine of DINO features between frames, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "subject_consistency"), worker=True),
    Metric("background_consistency", 1, "Background", 4, True, False,
           f"Cosine of CLIP features between frames, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "background_consistency"), worker=True),
    Metric("imaging_quality", 1, "Imaging", 4, True, False,
           f"MUSIQ score of frames, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "imaging_quality"), worker=True),
    Metric("aesthetic_quality", 1, "Aesthetic", 4, True, False,
           f"LAION aesthetic predictor on frames, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "aesthetic_quality"), worker=True),
    Metric("motion_smoothness", 1, "Motion", 4, True, False,
           f"Error of frames interpolated by AMT, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "motion_smoothness"), worker=True),
    Metric("dynamic_degree", 1, "Dynamic", 4, None, False,
           f"Whether RAFT sees large optical flow, {_VBENCH}.", vbench.not_here,
           partial(vbench.missing, "dynamic_degree"), worker=True),
)}
# fmt: on


def metric(name: str) -> Metric:
    """The entry of METRICS.

    Raises:
        UserError: no such metric; offers the nearest names.
    """
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS, hint="mxbench list metrics")
    return METRICS[name]


def score(names: Iterable[str], clip: Clip, reference: Clip | None = None) -> dict[str, Score]:
    """Judge a decoded clip by some metrics.

    What a machine cannot compute, or what has no reference, is an unscored result, never an error or a number.
    Beyond the clips themselves the memory is a few frames for each core.

    Args:
        names: keys of METRICS.
        clip: the clip to judge.
        reference: what it is compared with, by custom the FP16 render; None if there is none.

    Returns:
        A score for each name, in the order asked for.

    Raises:
        UserError: an unknown name; or a metric needs the reference and the pair does not match.
    """
    chosen = [metric(name) for name in names]
    if reference is not None and any(m.needs_reference for m in chosen):
        check_pair(clip, reference)
    with fidelity.shared_sums():
        return {m.name: _score(m, clip, reference) for m in chosen}


def _score(m: Metric, clip: Clip, reference: Clip | None) -> Score:
    if m.needs_reference and reference is None:
        return unscored("there is no reference clip")
    if reason := m.missing():
        return unscored(reason)
    return m.function(clip, reference)
