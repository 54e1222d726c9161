"""Frame strips: a few frames of every method's render of one prompt, one row a method, as a PNG."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mxbench.errors import UserError
from mxbench.runs.store import Store

__all__ = ["strip", "write_strips"]

_LABEL = 14  # pixels of the line above each row


def strip(rows: list[tuple[str, np.ndarray]], frames: int = 5, scale: int = 1) -> np.ndarray:
    """One picture of several clips.

    Args:
        rows: label and uint8 ``[F,H,W,3]`` of each clip.
        frames: how many of each, evenly spaced from the first to the last.
        scale: whole-number enlargement, without smoothing.

    Returns:
        uint8 ``[height, width, 3]``.
    """
    import cv2

    parts = []
    for label, clip in rows:
        chosen = np.linspace(0, len(clip) - 1, min(frames, len(clip))).round().astype(int)
        row = np.concatenate(list(clip[chosen]), axis=1).repeat(scale, 0).repeat(scale, 1)
        line = np.full((_LABEL, row.shape[1], 3), 255, np.uint8)
        cv2.putText(line, label, (2, _LABEL - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.38, (0, 0, 0), 1, cv2.LINE_AA)
        parts += [line, row]
    return np.concatenate(parts, axis=0)


def write_strips(store: Store, name: str, *, scale: int = 1) -> list[Path]:
    """Write ``strips/<prompt id>-s<seed>.png`` for each prompt and seed of a plan.

    Raises:
        UserError: no such plan.
    """
    import cv2

    plan = store.plans().get(name)
    if plan is None:
        raise UserError(f"{store.root} has no plan {name!r}", "run the recipe again")
    written = []
    for prompt in plan["prompts"]:
        for seed in plan["seeds"]:
            rows = []
            for row in plan["rows"]:
                cell = row["cells"][prompt["id"]][str(seed)]
                status = store.status(cell)
                if status is not None and status.state == "done":
                    rows.append((row["label"], store.clip(cell).frames))
            if rows:
                path = store.root / "strips" / f"{prompt['id']}-s{seed}.png"
                _, data = cv2.imencode(".png", strip(rows, scale=scale)[..., ::-1])
                written.append(store.write_bytes(str(path.relative_to(store.root)), data.tobytes()))
    return written
