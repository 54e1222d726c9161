"""The launches that are tried, and what the command says where it cannot run."""

import pytest
import torch

from mxbench.bench.tune import grid, main, owed_passes, passes, words
from mxbench.errors import UserError
from mxbench.kernels.fused_config import CONFIGS, Config
from mxbench.kernels.prepass_config import OWED, PASSES, OwedPass, Pass


def test_every_launch_is_tried_once_and_its_words_make_it_again():
    tried = list(grid())
    assert len(tried) == len(set(tried)) >= 30
    for config in [*tried, *CONFIGS.values()]:
        assert eval(words(config), {"Config": Config}) == config
    shapes = list(passes())
    assert len(shapes) == len(set(shapes))
    for shape in [*shapes, *PASSES.values()]:
        assert eval(words(shape), {"Pass": Pass}) == shape
    owed = list(owed_passes())
    assert len(owed) == len(set(owed))
    for shape in [*owed, *OWED.values()]:
        assert eval(words(shape), {"OwedPass": OwedPass}) == shape
    assert all(config.block_m % (16 * config.num_warps) == 0 for config in tried)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "mxatn"], "mxattn"),
        (["--impl", "native"], "native"),
        (["--shape", "1x2x3"], "1x2x3"),
        pytest.param([], "need a CUDA device", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has one")),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments, said):
    with pytest.raises(UserError, match=said):
        main(arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("more", [[], ["--passes"]], ids=str)
@pytest.mark.parametrize(("method", "impl"), [("mxattn", "fast"), ("nvfp4-sage", "conformance")])
def test_a_small_shape_is_tuned(capsys, method, impl, more):
    main(["--method", method, "--impl", impl, "--shape", "1x2x1000x64", "--reps", "1", "--seconds", "30", *more])
    out = capsys.readouterr().out
    assert "(in use)" in out
    assert "computes something else" not in out
