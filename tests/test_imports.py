"""The rooms of the house: imports go down only, and nothing heavy is imported before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mxbench

ROOT = Path(mxbench.__file__).parent

# What each room may import, besides itself. errors < formats < attention < kernels < dispatch < policy < models < runs
# < analysis, report < bench < cli; errors < video, vbench < metrics; errors < stats.
BELOW = {
    "errors": set(),
    "formats": {"errors"},
    "attention": {"errors", "formats"},
    "kernels": {"errors", "formats", "attention"},
    "dispatch": {"errors", "formats", "attention", "kernels"},
    "policy": {"errors", "formats", "attention", "kernels", "dispatch"},
    "video": {"errors"},
    "vbench": {"errors"},
    "metrics": {"errors", "video", "vbench"},
    "stats": {"errors"},
    "models": {"errors", "formats", "attention", "kernels", "dispatch", "policy", "video"},
}
BELOW["runs"] = set(BELOW) | {"stats"}
BELOW["analysis"] = BELOW["report"] = set(BELOW)
BELOW["bench"] = set(BELOW)
BELOW["cli"] = set(BELOW)


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module] if node.module != "mxbench" else [f"mxbench.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mxbench" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert set(imported(path)) <= BELOW[room] | {room}


def test_no_file_is_called_utils_and_none_is_too_long():
    for path in modules():
        assert "util" not in path.stem
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import mxbench", {"torch", "numpy", "click"}),
        ("import mxbench.cli.main", {"torch", "numpy", "rich", "yaml", "pydantic"}),
        ("import mxbench.cli.bench", {"torch", "numpy", "rich", "matplotlib"}),
        ("import mxbench.metrics", {"torch", "scipy", "skimage", "cv2", "av"}),
        ("import mxbench.attention.reference", {"diffusers", "transformers", "triton", "av"}),
    ],
)
def test_nothing_heavy_comes_along(statement, forbidden):
    code = f"import sys; {statement}; print(*sorted(set(sys.modules) & {forbidden!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_public_api_is_what_it_says():
    assert mxbench.METHODS["mxattn"].spec.row_sum == "quantised"
    assert all(getattr(mxbench, name) is not None for name in mxbench.__all__)
    with pytest.raises(AttributeError):
        _ = mxbench.nothing
