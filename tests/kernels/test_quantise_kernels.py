"""Device functions on register tiles against ``mxbench.formats``: equal to the bit, on values beside every boundary."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from mxbench.attention.exponential import expcast_codes_, expcast_values_  # noqa: E402
from mxbench.attention.probability import quantise_tile_  # noqa: E402
from mxbench.formats.block import quantise  # noqa: E402
from mxbench.formats.element import E4M3, INT8, round_to  # noqa: E402
from mxbench.formats.quantizer import Quantizer  # noqa: E402
from mxbench.formats.scale import boundary, mx_exponent, power_of_two  # noqa: E402
from mxbench.kernels import packed_jit, prepass_quantise_jit  # noqa: E402
from mxbench.kernels import quantise_jit as jit  # noqa: E402

RULES = ("ocp", "tfs", "oas", "uos", "4", "6.25", "7.999", "8")
BLOCKS = [
    *[Quantizer("mxfp4", scale_rule=rule) for rule in RULES],
    *[Quantizer("nvfp4", prescale=s, divide_by=d) for s in (1.0, 2688.0, 5000.0) for d in ("stored", "exact")],
]
UNITS = [
    Quantizer("e4m3", "unit", prescale=256.0),
    Quantizer("e4m3", "unit", prescale=448.0),
    Quantizer("int8", "unit", prescale=127.0),
    Quantizer("int8", "unit", prescale=127.0, rounding="half_away"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS = 128, 256


@triton.jit
def tile_kernel(
    x_ptr,
    out_ptr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FORMAT: tl.constexpr,
    MX_ADD: tl.constexpr,
    SATURATE: tl.constexpr,
    EXACT: tl.constexpr,
    HALF_AWAY: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    p = jit.quantise_p_tile(tl.load(x_ptr + at), FORMAT, MX_ADD, SATURATE, EXACT, HALF_AWAY)
    tl.store(out_ptr + at, p)


@triton.jit
def function_kernel(x_ptr, out_ptr, NAME: tl.constexpr, MX_ADD: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    if NAME == "scale":
        x = jit.mx_scale_bits(jit.abs_bits(x), MX_ADD).to(tl.float32, bitcast=True)
    elif NAME == "exponent":
        x = jit.power_of_two(jit.mx_exponent(jit.abs_bits(x), MX_ADD))
    elif NAME == "inverse":
        x = jit.inverse_power(jit.mx_scale_bits(jit.abs_bits(x), MX_ADD))
    elif NAME == "e4m3":
        x = jit.round_e4m3(x)
    elif NAME == "int8":
        x = jit.round_int8(x, False)
    elif NAME == "half_away":
        x = jit.round_int8(x, True)
    elif NAME == "expcast":
        x = jit.expcast_values(x)
    elif NAME == "codes":
        x = jit.expcast_codes(x).to(tl.float32)
    elif NAME == "e4m3_byte":
        x = jit.e4m3_byte(x).to(tl.float32)
    else:
        tl.static_assert(NAME == "e5m2_byte")
        x = jit.e5m2_byte(x).to(tl.float32)
    tl.store(out_ptr + at, x)


@triton.jit
def divide_kernel(x_ptr, by_ptr, out_ptr, ONCE: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, jit.divided_by_shared(tl.load(x_ptr + at), tl.load(by_ptr + at), ONCE))


@triton.jit
def moved_kernel(x_ptr, by_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, prepass_quantise_jit.divided(tl.load(x_ptr + at), tl.load(by_ptr + at)))


@triton.jit
def sixth_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, packed_jit._sixth(tl.load(x_ptr + at)))


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """NumPy, which stands in for the device, warns where floating point overflows as it should."""
    with np.errstate(all="ignore"):
        yield


def apply(name: str, x: torch.Tensor, rule: str = "ocp") -> torch.Tensor:
    """A device function on a vector of any length."""
    size = 1 << 14
    padded = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % size)).to(DEVICE)
    out = torch.full_like(padded, -77.0)
    function_kernel[(padded.numel() // size,)](padded, out, NAME=name, MX_ADD=jit.mx_addend(rule), SIZE=size)
    return out[: x.numel()].cpu()


def tiles(p: torch.Tensor, quantizer: Quantizer) -> torch.Tensor:
    """``quantise_p_tile`` on rows of ``COLUMNS``, padded with ones."""
    rows = p.reshape(-1, COLUMNS)
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % ROWS), value=1.0).to(DEVICE).contiguous()
    out = torch.full_like(padded, -77.0)
    fields: dict[str, Any] = jit.tile_fields(quantizer)
    tile_kernel[(len(padded) // ROWS,)](padded, out, ROWS=ROWS, COLUMNS=COLUMNS, **fields)
    return out[: len(rows)].reshape(p.shape)


def nudged(x: torch.Tensor, ulps: int) -> torch.Tensor:
    return (x.view(torch.int32) + ulps).view(torch.float32)


def beside(x: torch.Tensor, ulps: int = 2) -> torch.Tensor:
    """Positive values and their neighbours."""
    return torch.cat([nudged(x, i) for i in range(-ulps, ulps + 1)]).clamp(min=0.0)


def every_exponent(mantissas: list[float], low: int = -149, high: int = 127) -> torch.Tensor:
    exact = torch.tensor(mantissas, dtype=torch.float64)[:, None] * 2.0 ** torch.arange(low, high + 1).double()
    x = exact.float().flatten()
    return x[x.isfinite()]


def adversarial(block: int, low: int, high: int, seed: int = 0) -> torch.Tensor:
    """Blocks whose maximum stands beside a boundary of some rule, and whose elements stand beside ties of E2M1."""
    g = torch.Generator().manual_seed(seed)
    thetas = [float(boundary(rule) / 4) for rule in RULES if boundary(rule) is not None]  # type: ignore[operator]
    amax = beside(every_exponent([1.0, 1.125, 1.9999999, *thetas], low, high))
    amax = amax[amax.isfinite()]
    ties = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.75, 2.5, 3.5, 4.0, 5.0, 6.0, 7.0])
    pick = ties[torch.randint(0, len(ties), (len(amax), block), generator=g)]
    # The scale is the power of two two below the maximum's, or its neighbour; NVFP4's is a sixth of the maximum.
    power = torch.exp2(amax.log2().floor() + torch.randint(-3, 0, amax.shape, generator=g))
    sixth = round_to((amax / 6).clamp(max=448.0), E4M3)
    unit = torch.where(torch.rand(len(amax), generator=g) < 0.5, power, sixth)[:, None]
    x = pick * unit
    x = torch.where(x > 0, nudged_at_random(x, g), x)
    x = torch.minimum(x, amax[:, None])
    x[torch.arange(len(amax)), torch.randint(0, block, amax.shape, generator=g)] = amax
    return x


def nudged_at_random(x: torch.Tensor, g: torch.Generator) -> torch.Tensor:
    return (x.view(torch.int32) + torch.randint(-1, 2, x.shape, generator=g, dtype=torch.int32)).view(torch.float32)


def rows_of(blocks: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(blocks.flatten(), (0, -blocks.numel() % COLUMNS)).view(-1, COLUMNS)


@pytest.mark.parametrize("rule", RULES)
def test_the_scale_of_every_maximum(rule: str) -> None:
    q = boundary(rule)
    theta = [] if q is None else [float(q / 4)]
    x = torch.cat([beside(every_exponent([1.0, 1.5, *theta])), torch.zeros(1), beside(torch.rand(50_000) * 8)])
    x = x[x.isfinite()]
    e = mx_exponent(x, rule)
    assert torch.equal(apply("scale", x, rule), power_of_two(e))
    assert torch.equal(apply("exponent", x, rule), power_of_two(e))
    assert torch.equal(apply("inverse", x, rule), power_of_two(-e))


@pytest.mark.parametrize("quantizer", BLOCKS, ids=str)
def test_block_formats_of_p(quantizer: Quantizer) -> None:
    blocks = adversarial(quantizer.form.block or 0, -149, 60)
    if quantizer.format == "nvfp4":
        blocks = torch.cat([blocks, beside_exact_ties()])
        blocks = blocks[blocks.amax(-1) <= quantizer.prescale]  # what P can be
    p = rows_of(blocks)
    expected = quantise_tile_(p.clone(), quantizer, torch.empty_like(p))
    assert torch.equal(tiles(p, quantizer).cpu(), expected)
    assert torch.equal(expected, quantise(p, quantizer).dequantise())


def beside_exact_ties() -> torch.Tensor:
    """Blocks of NVFP4 with elements beside the ties of a scale of many bits."""
    g = torch.Generator().manual_seed(1)
    amax = torch.exp2(20 * torch.rand(4000, 1, generator=g) - 10)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])[torch.randint(0, 7, (4000, 16), generator=g)]
    x = torch.minimum(nudged_at_random(amax / 6 * ties, g), amax)
    return torch.cat([amax, x[:, 1:]], dim=-1)


@pytest.mark.parametrize("quantizer", UNITS, ids=str)
def test_formats_without_a_scale(quantizer: Quantizer) -> None:
    halves = torch.arange(0.5, 130, 0.5)
    fine = torch.arange(1, 460 * 16) / 16
    x = torch.cat([beside(halves), beside(fine), beside(every_exponent([1.0, 1.0625, 1.1875], -20, 8)), torch.zeros(3)])
    p = rows_of(x)
    expected = round_to(p, quantizer.form.element, quantizer.rounding)
    assert torch.equal(tiles(p, quantizer).cpu(), expected)


@pytest.mark.parametrize("quantizer", BLOCKS, ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_nan_spoils_its_block_and_no_other(quantizer: Quantizer, sign: float) -> None:
    p = torch.rand(4, COLUMNS, generator=torch.Generator().manual_seed(0)) * quantizer.prescale
    clean = tiles(p, quantizer).cpu()
    p[1, 70] = torch.tensor(float("nan")).copysign(torch.tensor(sign))
    got = tiles(p, quantizer).cpu()
    size = quantizer.form.block or 0
    sick = torch.zeros_like(p, dtype=torch.bool)
    sick[1, 70 // size * size :][:size] = True
    assert got[1, 70].isnan()
    assert torch.equal(got[~sick], clean[~sick])


def test_without_a_quantiser_p_stays() -> None:
    p = torch.rand(2, COLUMNS)
    out, source = torch.empty(ROWS, COLUMNS, device=DEVICE), torch.ones(ROWS, COLUMNS, device=DEVICE)
    source[:2] = p.to(DEVICE)
    tile_kernel[(1,)](source, out, ROWS=ROWS, COLUMNS=COLUMNS, **jit.tile_fields(None))
    assert torch.equal(out, source)


def test_rounding_of_either_sign() -> None:
    x = torch.cat([beside(torch.arange(1, 1024) / 4), beside(every_exponent([1.0, 1.0625, 1.9375], -30, 100))])
    x = torch.cat([x, -x, torch.tensor([float("inf"), -float("inf"), 0.0, -0.0])])
    for name, element, rounding in (("e4m3", E4M3, "rne"), ("int8", INT8, "rne"), ("half_away", INT8, "half_away")):
        assert torch.equal(apply(name, x), round_to(x, element, rounding)), name  # type: ignore[arg-type]
    assert apply("e4m3", torch.tensor([float("nan")])).isnan().all()


def test_bytes_of_the_8_bit_formats() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    e4m3 = codes.view(torch.float8_e4m3fn).float()
    finite = e4m3.isfinite()
    assert torch.equal(apply("e4m3_byte", e4m3)[finite].to(torch.int8), codes[finite].view(torch.int8))
    e5m2 = codes.view(torch.float8_e5m2).float()
    finite = e5m2.isfinite()
    got = apply("e5m2_byte", e5m2).to(torch.int8)
    assert torch.equal(got[finite], codes[finite].view(torch.int8))
    assert got.view(torch.float8_e5m2).float()[e5m2.isnan()].isnan().all()


def test_expcast() -> None:
    u = -torch.cat([torch.arange(0, 16.5, 2.0**-10), torch.rand(20_000) * 16, torch.tensor([40.0, 1e30, float("inf")])])
    halfway = (torch.arange(1, 121) - 0.5 - 119.65) / 8
    u = torch.cat([u, *[torch.nextafter(halfway, torch.tensor(s)) for s in (-99.0, 0.0)], halfway]).clamp(max=0.0)
    # The sum is rounded once. The interpreter rounds the product too, which is exact.
    assert torch.equal(apply("codes", u), expcast_codes_(u.clone()))
    assert torch.equal(apply("expcast", u), expcast_values_(u.clone()))


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that a GPU divides, with the fused multiply-add that the interpreter lacks: computed in float64.

    A float64 holds the product exactly and the residual too. The quotient itself may be rounded twice, at worst at one
    in 2^29.
    """
    if torch.cuda.is_available():
        pytest.skip("patches the interpreter")
    from triton.runtime import interpreter

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        wide = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return interpreter.TensorHandle(wide.astype(np.float32), z.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fma", fma)
    for module in (jit, packed_jit):
        monkeypatch.setattr(module, "INTERPRETED", tl.constexpr(False))


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_shared_reciprocal_divides_as_ieee_asks() -> None:
    size = 1 << 16
    g = torch.Generator().manual_seed(0)
    by = torch.exp2(19 * torch.rand(size, generator=g) - 10)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])[torch.randint(0, 8, (size,), generator=g)]
    for once in (False, True):
        divisor = round_to(by, E4M3) if once else by
        for x in (nudged_at_random(ties * divisor, g), divisor * 6 * torch.rand(size, generator=g)):
            out = torch.empty(size)
            divide_kernel[(1,)](x, divisor, out, ONCE=once, SIZE=size)
            assert torch.equal(out, x / divisor)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("power", [-149, -140, -126, -100, 0, 90, 120])
def test_a_quotient_by_a_scale_of_any_size_is_ieee_s(power: int) -> None:
    """What the pre-pass divides by, from FP32's smallest to its largest; quotients below 2^-100 are zeros anyway."""
    size, g = 1 << 12, torch.Generator().manual_seed(power + 200)
    by = torch.exp2(power + 7 * torch.rand(size, generator=g)).clamp(min=2.0**-149)
    x = by.double() * 448 * (2 * torch.rand(size, generator=g).double() - 1)
    x = x.clamp(-torch.finfo(torch.float32).max, torch.finfo(torch.float32).max).float()
    out = torch.empty(size)
    moved_kernel[(1,)](x, by, out, SIZE=size)
    want = x / by
    counts = want.abs() >= 2.0**-100
    assert counts.float().mean() > 0.9
    assert torch.equal(out[counts], want[counts])
    moved_kernel[(1,)](x, torch.zeros(size), out, SIZE=size)
    assert not out.any()


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_sixth_is_ieee_s() -> None:
    size, g = 1 << 16, torch.Generator().manual_seed(6)
    for x in (torch.exp2(40 * torch.rand(size, generator=g) - 28), torch.arange(size).float() + 2.0**20):
        out = torch.empty(size)
        sixth_kernel[(1,)](x, out, SIZE=size)
        assert torch.equal(out, x / 6)


def test_once_is_enough_beside_a_tie() -> None:
    """In exact arithmetic: one correction leaves every neighbour of a tie on its side, for every E4M3 divisor."""

    def rounded(x: Fraction) -> Fraction:
        spacing = Fraction(2) ** int(np.frexp(float(x))[1] - 24)  # of numbers far above the subnormals
        return round(x / spacing) * spacing if x else x

    scales = [Fraction(m, 8) * Fraction(2) ** e for e in range(-6, 9) for m in range(8, 16)]
    for s in [*scales, *(Fraction(m, 512) for m in range(1, 8))]:
        y = rounded(1 / s)
        for tie in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0):
            at = np.float32(tie * float(s))
            for x in (at, np.nextafter(at, np.float32(0)), np.nextafter(at, np.float32(1e9))):
                p = Fraction(float(x))
                q = rounded(p * y)
                q = rounded(q + rounded(p - s * q) * y)
                assert q == rounded(p / s)


@pytest.mark.gpu
@pytest.mark.parametrize("quantizer", BLOCKS, ids=str)
def test_a_hundred_million_values(quantizer: Quantizer) -> None:
    g = torch.Generator("cuda").manual_seed(0)
    blocks = adversarial(quantizer.form.block or 0, -40, 12)
    beside_ties = rows_of(blocks[blocks.amax(-1) <= quantizer.prescale]).cuda()  # what P can be
    for part in range(10):
        bits = torch.randint(0, 1 << 23, (48_000, COLUMNS), generator=g, device="cuda", dtype=torch.int32)
        spread = 8 if part % 2 else 40
        exponent = torch.randint(127 - spread, 127, bits.shape, generator=g, device="cuda", dtype=torch.int32)
        p = (bits | exponent << 23).view(torch.float32) * quantizer.prescale
        if part >= 4:
            p = p.bfloat16().float()  # ties are common
        if part >= 8:
            p = beside_ties[torch.randint(0, len(beside_ties), (len(p),), generator=g, device="cuda")]
        expected = quantise_tile_(p.clone(), quantizer, torch.empty_like(p))
        assert torch.equal(tiles(p, quantizer), expected)
