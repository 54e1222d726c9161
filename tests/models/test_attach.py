"""The seam into diffusers, on the built-in model's real Wan classes."""

import copy
import pickle

import pytest
import torch

import mxbench
from mxbench.attention.methods import METHODS
from mxbench.errors import UserError
from mxbench.models.attach import attach
from mxbench.policy import Rule, Schedule, Selector, Use, as_schedule


def call(nano, tiny, seed=0, **changes):
    arguments = nano.arguments(tiny) | {"output_type": "latent"} | changes
    return nano.pipe("a red circle", generator=torch.Generator("cpu").manual_seed(seed), **arguments).frames


def plain(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_the_identity_kernel_changes_no_bit(nano, tiny):
    stock = call(nano, tiny)
    with attach(nano.pipe, plain):
        seamed = call(nano, tiny)
    assert torch.equal(stock, seamed)
    with attach(nano.pipe, "fp16"):
        assert torch.equal(stock, call(nano, tiny))
    nano.self_test()


def test_every_call_is_counted_with_its_layer_step_branch_and_expert(nano, tiny):
    sites = []

    class Spy(Schedule):
        def at(self, site, n_experts):
            sites.append(site)
            return super().at(site, n_experts)

    with attach(nano.pipe, Spy("fp16", (Rule(Use("fp16", METHODS["fp16"].spec)),))) as seam:
        call(nano, tiny)
    timesteps = nano.pipe.scheduler.timesteps
    experts = [0 if t >= 875 else 1 for t in timesteps]
    assert set(experts) == {0, 1}
    wanted = [
        (expert, layer, "self", step, branch)
        for step, expert in enumerate(experts)
        for branch in (0, 1)
        for layer in range(8)
    ]
    assert [(s.expert, s.layer, s.kind, s.step, s.branch) for s in sites] == wanted
    assert seam.calls == dict.fromkeys(wanted, 1)
    assert {(s.n_layers, s.n_steps, s.grid) for s in sites} == {(8, 3, (2, 4, 4))}
    # A second run in the same block starts at step 0 again.
    with attach(nano.pipe, "fp16") as seam:
        call(nano, tiny)
        call(nano, tiny)
    assert set(seam.calls.values()) == {2}


def test_without_guidance_there_is_one_branch(nano, tiny):
    with attach(nano.pipe, "fp16") as seam:
        call(nano, tiny, guidance_scale=1.0, guidance_scale_2=1.0)
    assert {branch for *_, branch in seam.calls} == {0}


def test_cross_attention_stays_stock_unless_asked_for(nano, tiny):
    seen = []

    def spy(q, k, v):
        seen.append((q.shape[-2], k.shape[-2]))
        return plain(q, k, v)

    with attach(nano.pipe, spy):
        call(nano, tiny)
    assert set(seen) == {(32, 32)}
    seen.clear()
    with attach(nano.pipe, Schedule("cross", (Rule(Use("spy", None, spy), kind="cross"),))):
        call(nano, tiny)
    assert set(seen) == {(32, 16)}


def test_a_method_changes_the_render_and_only_inside_the_block(nano, tiny):
    stock = call(nano, tiny)
    with mxbench.attach(nano.pipe, "mxfp4") as seam:
        quantised = call(nano, tiny)
    assert not torch.equal(stock, quantised)
    assert seam.nonfinite == 0
    assert torch.equal(stock, call(nano, tiny))
    for transformer in (nano.pipe.transformer, nano.pipe.transformer_2):
        assert not transformer._forward_hooks
        assert not transformer._forward_pre_hooks
        assert all(block.attn1.processor._attention_backend is None for block in transformer.blocks)


def test_a_hybrid_policy_computes_what_its_rules_name(nano, tiny):
    """High precision everywhere but in one layer of one step: less far from FP16 than quantising everything."""
    stock = call(nano, tiny)
    mx, fp16 = Use("mxfp4", METHODS["mxfp4"].spec), Use("fp16", METHODS["fp16"].spec)
    one = Rule(mx, layers=Selector.parse(3, "layers"), steps=Selector.parse(-1, "steps"))
    with attach(nano.pipe, Schedule("hybrid", (one, Rule(fp16)))):
        little = call(nano, tiny)
    with attach(nano.pipe, "mxfp4"):
        much = call(nano, tiny)
    assert 0 < (little - stock).norm() < 0.5 * (much - stock).norm()


def test_methods_with_state_run_over_the_experts(nano, tiny):
    first = None
    for _ in range(2):  # no state leaks from one run into the next
        with attach(nano.pipe, "vc8") as seam:
            out = call(nano, tiny)
        assert torch.isfinite(out).all()
        assert first is None or torch.equal(first, out)
        first = out
    assert {key[0] for key in seam._state.groupings} <= {0, 1}


def test_what_fast_cannot_hold_is_counted_by_the_seam_and_the_render(nano, tiny, monkeypatch):
    seen = []

    def attend(q, k, v, spec, *, impl, site, state, tally):
        seen.append(impl)
        tally.widened += site.layer == 3
        return plain(q, k, v)

    monkeypatch.setattr("mxbench.models.attach.attend", attend)
    with attach(nano.pipe, "mxattn", impl="fast") as seam:
        call(nano, tiny)
    assert seam.widened == 3 * 2  # steps and branches
    render = nano.render("x", 0, tiny, as_schedule("mxattn"), "fast")
    assert (render.calls, render.nonfinite_calls, render.widened_calls) == (3 * 2 * 8, 0, 3 * 2)
    assert set(seen) == {"fast"}


def test_non_finite_operands_are_counted(nano, tiny):
    broken = copy.deepcopy(nano)
    broken.pipe.transformer.blocks[4].attn1.to_v.bias.data[0] = float("nan")
    with attach(broken.pipe, "mxfp4") as seam:
        call(broken, tiny)
    assert seam.nonfinite > 0


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("attn_mask", torch.ones(1, 1, 1, 32, dtype=torch.bool), "a mask"),
        ("is_causal", True, "causal"),
        ("dropout_p", 0.1, "dropout"),
        ("scale", 0.5, "the scale 0.5"),
        ("enable_gqa", True, "grouped queries"),
        ("_parallel_config", object(), "context parallelism"),
    ],
)
def test_an_argument_that_is_not_handled_raises(nano, tiny, option, value, said, monkeypatch):
    from mxbench.models import backend

    serve = backend._handler

    def asks(q, k, v, options):
        return handler(q, k, v, options | {option: value})

    with pytest.raises(UserError, match=said), attach(nano.pipe, "mxfp4"):
        handler = serve[0]
        backend.connect(asks)
        call(nano, tiny)
    backend.connect(None)


def test_misuse_is_named(nano, tiny):
    with pytest.raises(UserError, match="no seam for str"):
        attach("not a pipeline", "mxfp4")
    with pytest.raises(UserError, match="intercepted nothing"), attach(nano.pipe, "mxfp4"):
        pass
    with attach(nano.pipe, "mxfp4"):
        with pytest.raises(UserError, match="attached already"):
            attach(nano.pipe, "mxfp4").__enter__()
        call(nano, tiny)
    with pytest.raises(UserError, match="returned"), attach(nano.pipe, lambda q, k, v: v[..., :1]):
        call(nano, tiny)
    with pytest.raises(UserError, match="attention_kwargs"), attach(nano.pipe, "mxfp4"):
        call(nano, tiny, attention_kwargs={"scale": 1.0})
    with pytest.raises(UserError, match="impl 'sdpa' cannot run"), attach(nano.pipe, "mxfp4", impl="sdpa"):
        call(nano, tiny)
    assert nano.pipe.transformer.blocks[0].attn1.processor._attention_backend is None
    call(nano, tiny)


def test_a_cache_is_refused(nano, tiny):
    from diffusers import PyramidAttentionBroadcastConfig

    config = PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2, current_timestep_callback=lambda: 500
    )
    nano.pipe.transformer.enable_cache(config)
    try:
        with pytest.raises(UserError, match="cache"):
            attach(nano.pipe, "mxfp4").__enter__()
    finally:
        nano.pipe.transformer.disable_cache()


def test_a_processor_that_bypasses_the_dispatcher_is_refused(nano):
    class Own:
        def __call__(self, *args, **kwargs):
            raise AssertionError

    attention = nano.pipe.transformer.blocks[2].attn1
    kept = attention.processor
    attention.processor = Own()
    try:
        with pytest.raises(UserError, match="Own bypasses"):
            attach(nano.pipe, "mxfp4").__enter__()
    finally:
        attention.processor = kept
    assert nano.pipe.transformer.blocks[0].attn1.processor._attention_backend is None


def test_the_backend_is_a_member_like_the_others():
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    from mxbench.models.backend import BACKEND

    assert AttentionBackendName("mxbench") is BACKEND
    assert pickle.loads(pickle.dumps(BACKEND)) is BACKEND
    assert _AttentionBackendRegistry._is_context_parallel_available(BACKEND)
    assert _AttentionBackendRegistry.get_active_backend()[0] is not BACKEND
