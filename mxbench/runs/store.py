"""``Store``: a results folder. A folder per cell, renamed into place when it is complete; scores beside the frames.

::

    cells/<id>/     cell.json  frames.mkv  latents.safetensors  preview.mp4  provenance.json  scores/  status.json
    plans/          the recipes that were run here, expanded
    errors/<id>.json    why a cell has no result yet (tried again by the next run)
    previews/       the same previews, by prompt and method
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxbench.errors import UserError
from mxbench.metrics import Score
from mxbench.runs.cell import Cell
from mxbench.runs.files import Scratch, as_json, full_disk_named, locked, read_json, replace_folder
from mxbench.video import Clip, read_lossless, write_lossless, write_preview

if TYPE_CHECKING:
    from mxbench.models.base import Render

__all__ = ["Status", "Store"]

_COUNTS = ("nonfinite_calls", "widened_calls")  # of a render, in a status


@dataclass(frozen=True, slots=True)
class Status:
    """How a cell ended.

    Attributes:
        state: ``done``, or ``failed`` where the render itself is the finding (black frames, NaN).
        reason: why it failed; empty when done.
        nonfinite_calls: attention calls that were handed a NaN or an infinity.
        widened_calls: attention calls of ``fast`` that ``conformance`` computed.
    """

    state: str
    reason: str = ""
    nonfinite_calls: int = 0
    widened_calls: int = 0


class Store:
    """A results folder.

    Args:
        root: the folder; made with ``create``.
        create: make it if it is missing. Otherwise it must be a results folder already.

    Raises:
        UserError: it is no folder, cannot be read or written, or (without ``create``) holds no results.
    """

    def __init__(self, root: str | Path, *, create: bool = False) -> None:
        self.root = Path(root)
        self._own_scratch: Scratch | None = None
        try:
            if create:
                self._create()
            elif not self.root.is_dir():
                raise UserError(f"there is no results folder {self.root}", "pass the --out of a run, or run one first")
            list(self.root.iterdir())
        except (PermissionError, FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            reason = "it is a file" if self.root.is_file() else (error.strerror or "it cannot be used").lower()
            raise UserError(f"{self.root} cannot hold results: {reason}", "pass another folder with --out") from None
        if not create and not (self.root / "plans").is_dir():
            raise UserError(
                f"{self.root} holds no results of mxbench", f"render some first, with `mxbench run --out {self.root}`"
            )

    def _create(self) -> None:
        with full_disk_named(self.root):
            for name in ("cells", "plans", "errors"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            _ = self._scratch  # a folder that cannot be written to is found out now

    @property
    def _scratch(self) -> Scratch:
        if self._own_scratch is None:
            self._own_scratch = Scratch(self.root)
        return self._own_scratch

    # Cells

    def _cell(self, cell_id: str) -> Path:
        return self.root / "cells" / cell_id

    def status(self, cell_id: str) -> Status | None:
        """How the cell ended; None where it has not (a damaged folder counts as none)."""
        data = read_json(self._cell(cell_id) / "status.json")
        if not isinstance(data, dict) or data.get("state") not in ("done", "failed"):
            return None
        if data["state"] == "done" and not (self._cell(cell_id) / "frames.mkv").is_file():
            return None
        counts = (data.get(name, 0) for name in _COUNTS)
        return Status(data["state"], data.get("reason", ""), *counts)

    def damaged(self, cell_id: str) -> bool:
        """Whether there is a folder of the cell whose status cannot be read or whose frames are gone."""
        return self._cell(cell_id).is_dir() and self.status(cell_id) is None

    @contextlib.contextmanager
    def claim(self, cell_id: str, *, wait: bool) -> Iterator[bool]:
        """Hold a cell against other runs in the same folder; yields whether it is held."""
        with locked(self.root / ".locks" / cell_id, wait=wait) as held:
            yield held

    def put(self, cell: Cell, render: Render, provenance: Mapping[str, Any], sick: str | None) -> None:
        """Keep a render: frames, final latents, preview, description; its status last.

        Args:
            cell: what was rendered. The caller holds its claim.
            render: the clip.
            provenance: dates, times and durations.
            sick: what is wrong with the clip; it is kept all the same, as a failed cell.

        Raises:
            DiskFull: no room; nothing of the cell is left behind.
        """
        from safetensors.numpy import save_file

        def fill(folder: Path) -> None:
            write_lossless(folder / "frames.mkv", render.frames, render.fps)
            write_preview(folder / "preview.mp4", render.frames, render.fps)
            save_file({"latents": render.latents}, folder / "latents.safetensors")
            digest = hashlib.sha256((folder / "frames.mkv").read_bytes()).hexdigest()
            self._describe(folder, cell, provenance)
            status = {"state": "failed" if sick else "done", "reason": sick or "", "frames_sha256": digest}
            _write_json(folder / "status.json", status | {name: getattr(render, name) for name in _COUNTS})

        self._put(cell, fill)

    def put_failed(self, cell: Cell, reason: str, provenance: Mapping[str, Any]) -> None:
        """Keep the finding that a cell renders nothing usable."""

        def fill(folder: Path) -> None:
            self._describe(folder, cell, provenance)
            _write_json(folder / "status.json", {"state": "failed", "reason": reason})

        self._put(cell, fill)

    def _describe(self, folder: Path, cell: Cell, provenance: Mapping[str, Any]) -> None:
        _write_json(folder / "cell.json", cell.describe())
        _write_json(folder / "provenance.json", dict(provenance))

    def _put(self, cell: Cell, fill: Any) -> None:
        target = self._cell(cell.id)
        fresh = self._scratch.fresh()
        try:
            with full_disk_named(target):
                fresh.mkdir()
                fill(fresh)
            replace_folder(fresh, target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        (self.root / "errors" / f"{cell.id}.json").unlink(missing_ok=True)

    def describe(self, cell_id: str) -> dict[str, Any] | None:
        """The canonical description of a stored cell."""
        data = read_json(self._cell(cell_id) / "cell.json")
        return data if isinstance(data, dict) else None

    def cell_ids(self) -> list[str]:
        """Ids of all stored cells."""
        return sorted(p.name for p in (self.root / "cells").glob("*") if re.fullmatch(r"[0-9a-f]{16}", p.name))

    def clip(self, cell_id: str) -> Clip:
        """The frames of a cell, exactly as rendered."""
        return read_lossless(self._cell(cell_id) / "frames.mkv")

    def frames_file(self, cell_id: str) -> Path:
        """The file that holds them, for programs that read it themselves."""
        return self._cell(cell_id) / "frames.mkv"

    # Errors: not results, and tried again

    def put_error(self, cell_id: str, reason: str, trace: str) -> None:
        """Note why a cell has no result yet."""
        self._scratch.write_json(self.root / "errors" / f"{cell_id}.json", {"reason": reason, "trace": trace})

    def error(self, cell_id: str) -> str | None:
        """Why the cell has no result yet, if that is known."""
        data = read_json(self.root / "errors" / f"{cell_id}.json")
        return str(data["reason"]) if isinstance(data, dict) and "reason" in data else None

    # Scores

    def _score(self, cell_id: str, metric: str, version: int, reference_id: str | None) -> Path:
        name = f"{metric}.v{version}" + (f".{reference_id}" if reference_id else "")
        return self._cell(cell_id) / "scores" / f"{name}.json"

    def put_score(self, cell_id: str, metric: str, version: int, reference_id: str | None, score: Score) -> None:
        """Keep a score; keyed by the metric's version and the reference it was taken against."""
        self._scratch.write_json(self._score(cell_id, metric, version, reference_id), score.to_json())

    def score(self, cell_id: str, metric: str, version: int, reference_id: str | None) -> Score | None:
        """A kept score, or None."""
        data = read_json(self._score(cell_id, metric, version, reference_id))
        try:
            return Score.from_json(data) if isinstance(data, dict) else None
        except (KeyError, TypeError, ValueError):
            return None  # not ours, or torn: scored again

    def put_setup(self, name: str, setup: Mapping[str, Any]) -> None:
        """Keep what scores of VBench depend on, under the name that their details give it."""
        path = self.root / "vbench.json"
        with locked(self.root / ".locks" / "vbench"):
            self._scratch.write_json(path, {**self.setups(), name: dict(setup)})

    def setups(self) -> dict[str, dict[str, Any]]:
        """All of them, by name."""
        known = read_json(self.root / "vbench.json")
        return known if isinstance(known, dict) else {}

    # Plans and what people read

    def put_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Keep what a recipe expanded to, for `mxbench report`."""
        self._scratch.write_json(self.root / "plans" / f"{name}.json", dict(plan))

    def plans(self) -> dict[str, dict[str, Any]]:
        """All plans, by name."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.root / "plans").glob("*.json")):
            plan = read_json(path)
            if not isinstance(plan, dict):
                raise UserError(
                    f"{path} is damaged; the cells are not",
                    "run the recipe again with the same --out, which writes it anew and renders nothing",
                )
            found[path.stem] = plan
        return found

    def publish_preview(self, cell_id: str, folder: str, name: str) -> None:
        """Show a cell's preview under a name that a person can find."""
        source, target = self._cell(cell_id) / "preview.mp4", self.root / "previews" / folder / f"{name}.mp4"
        if target.is_file() or not source.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._scratch.fresh(".mp4")
        try:
            with full_disk_named(target):
                try:
                    os.link(source, fresh)
                except OSError:  # a file system without links
                    shutil.copyfile(source, fresh)
                fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> Path:
        """Write a report file into the folder; returns its path."""
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Likewise, for pictures."""
        self._scratch.write(self.root / name, data)
        return self.root / name

    def append_provenance(self, entry: Mapping[str, Any]) -> None:
        """Add a run to ``provenance.json``: the one file with dates, times and durations."""
        path = self.root / "provenance.json"
        with locked(self.root / ".locks" / "provenance"):
            known = read_json(path)
            runs = known["runs"] if isinstance(known, dict) and isinstance(known.get("runs"), list) else []
            self._scratch.write_json(path, {"runs": [*runs, dict(entry)]})


def _write_json(path: Path, data: Any) -> None:
    """A file of a folder that has no name yet: plain, since the folder is moved as a whole."""
    path.write_text(as_json(data), encoding="utf-8", newline="")
