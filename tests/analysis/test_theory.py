"""The theory, against the papers' printed tables, brute force in fractions, scipy and ml_dtypes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from scipy import integrate, optimize, stats

from mxbench.analysis import theory, theory_blocks, theory_exact, theory_expcast, theory_figure
from mxbench.errors import UserError

F = Fraction
GRID = (F(0), F(1, 2), F(1), F(3, 2), F(2), F(3), F(4), F(6))
CODES = np.array([float(g) for g in GRID])


def nearest(x: float) -> float:
    return float(CODES[np.abs(CODES - x).argmin()])


# Exact piecewise polynomials.


def test_the_grid_is_e2m1() -> None:
    assert theory_exact.E2M1_GRID == GRID
    every_code = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert [float(g) for g in theory_exact.E2M1_GRID] == every_code.tolist()


def test_table_5() -> None:
    printed = {0: F(0), F(1, 4): F(1, 192), F(3, 4): F(1, 64), F(5, 4): F(5, 192), F(7, 4): F(7, 192)}
    printed |= {F(5, 2): F(1, 12), F(7, 2): F(1, 6), F(5): F(13, 24), F(6): F(7, 8)}
    error = theory_exact.projection_error()
    assert {x: error(F(x)) for x in printed} == printed


@pytest.mark.parametrize("x", [0.1, 0.6, 1.9, 3.3, 4.9, 5.7, 7.9, 12.0])
def test_the_projection_error_is_the_integral_that_defines_it(x: float) -> None:
    kinks = [float(t) for t in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0) if t < x]
    value, _ = integrate.quad(lambda v: (v - nearest(v)) ** 2, 0, x, points=kinks or None, limit=200)
    assert float(theory_exact.projection_error()(F(x))) == pytest.approx(value, rel=1e-10)
    assert float(theory_exact.normalised_error(F(x))) == pytest.approx(value / x**3, rel=1e-10)


def printed_polynomial(text: str, q: Fraction) -> Fraction:
    """The value of a polynomial as the paper prints it."""
    code = text.replace("²", "**2").replace(")(", ")*(")
    code = re.sub(r"(\d)q", r"\1*q", code)
    code = re.sub(r"(\d+)", r"F(\1)", code).replace("**F(2)", "**2")
    return F(eval(code, {"F": F, "q": q}))


def test_table_6() -> None:
    pieces = theory_exact.boundary_difference().pieces
    assert len(pieces) == len(theory.PUBLISHED_DELTA)
    for piece, (low, high, text, _, _) in zip(pieces, theory.PUBLISHED_DELTA, strict=True):
        assert piece.low == F(low)
        assert piece.high == (None if high == "∞" else F(high))
        for q in (F(1, 3), F(29, 4), F(11)):  # a quadratic is known by three values
            assert piece(q) == printed_polynomial(text, q)


def test_delta_is_continuous_and_what_defines_it() -> None:
    delta, error = theory_exact.boundary_difference(), theory_exact.projection_error()
    for before, after in pairwise(delta.pieces):
        assert before.high == after.low
        assert before(after.low) == after(after.low)
    for n in range(1, 300):
        q = F(n, 23)
        assert delta(q) == error(q) - 8 * error(q / 2)


def test_signs_and_the_only_root() -> None:
    delta = theory_exact.boundary_difference()
    assert theory_exact.optimal_boundary() == F(29, 4)
    assert delta(F(29, 4)) == 0
    assert {sign for _, high, sign in delta.signs() if high is not None and high <= F(1, 4)} == {0}
    assert {sign for low, high, sign in delta.signs() if low >= F(1, 4) and high and high <= F(29, 4)} == {-1}
    assert {sign for low, _, sign in delta.signs() if low >= F(29, 4)} == {1}
    assert all(delta(F(n, 64)) < 0 for n in range(17, 464))
    assert all(delta(F(n, 64)) > 0 for n in range(465, 2000))


def test_other_grids_have_other_boundaries() -> None:
    e2m3 = theory_exact.minifloat_grid(2, 3, 1)
    assert (e2m3[1], e2m3[-1], len(e2m3)) == (F(1, 8), F(15, 2), 32)
    root = theory_exact.optimal_boundary(e2m3)
    below, above = (theory_exact.log_uniform_objective(root + d, e2m3) for d in (F(-1, 64), F(1, 64)))
    assert theory_exact.log_uniform_objective(root, e2m3) < min(below, above)


def test_roots_that_are_irrational_are_refused_inside_only() -> None:
    square_less_2 = (F(-2), F(0), F(1))
    assert theory_exact.Piece(F(2), None, square_less_2).roots() == ()
    assert theory_exact.Piece(F(0), F(1), (F(-1), F(2))).roots() == (F(1, 2),)
    for high in (F(2), None):
        with pytest.raises(ArithmeticError, match="irrational"):
            theory_exact.Piece(F(1), high, square_less_2).roots()
    with pytest.raises(ArithmeticError, match="no finite set"):
        theory_exact.Piece(F(0), None, ()).roots()
    with pytest.raises(ArithmeticError, match="no unique"):
        theory_exact.optimal_boundary((F(0),))


# The objective.


@pytest.mark.parametrize(("q", "value"), [(6, 3.8528), (7, 3.7497), (7.25, 3.7378), (7.5, 3.7577), (8, 3.9602)])
def test_the_log_uniform_objective(q: float, value: float) -> None:
    assert 1000 * theory_exact.log_uniform_objective(q) == pytest.approx(value, abs=5e-5)
    flat = theory_blocks.objective(q, np.ones_like)
    assert flat == pytest.approx(theory_exact.log_uniform_objective(q), rel=1e-10)


def test_the_objective_against_scipy() -> None:
    density = theory_blocks.wrapped_gaussian(0.3, 0.25)
    error = theory_exact.projection_error()

    def integrand(x: float) -> float:
        return float(error(F(x))) / x**3 * float(density(np.array(math.log2(x)))) / (x * math.log(2))

    value, _ = integrate.quad(integrand, 3.5, 7.0, points=[5.0])
    assert theory_blocks.objective(7.0, density) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 0.08), (0.4, 0.3), (-3.7, 1.4)])
def test_wrapped_densities_are_periodic_and_have_mean_one(mu: float, sigma: float) -> None:
    density = theory_blocks.wrapped_gaussian(mu, sigma)
    t = np.arange(4096) / 4096
    assert density(t).mean() == pytest.approx(1, rel=1e-12)
    assert density(t + 5) == pytest.approx(density(t), rel=1e-9, abs=1e-12)
    by_hand = sum(stats.norm.pdf(t + k, mu, sigma) for k in range(-30, 31))
    assert density(t) == pytest.approx(by_hand, rel=1e-9, abs=1e-12)
    harmonic = 2 * abs(np.mean(density(t) * np.exp(-2j * np.pi * t)))
    assert harmonic == pytest.approx(theory_blocks.first_harmonic(sigma), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("mu", [0.0, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("sigma", [0.12, 0.2, 0.5])
def test_every_density_has_its_minimum_at_29_4(mu: float, sigma: float) -> None:
    density = theory_blocks.wrapped_gaussian(mu, sigma)
    found = optimize.minimize_scalar(
        theory_blocks.objective, bounds=(6.5, 7.9), args=(density,), method="bounded", options={"xatol": 1e-9}
    )
    assert found.x == pytest.approx(7.25, abs=2e-2)
    steps = [theory_blocks.objective(q, density) for q in (6, 6.5, 7, 7.25, 7.5, 8, 9, 11)]
    assert steps[:4] == sorted(steps[:4], reverse=True)
    assert steps[3:] == sorted(steps[3:])


def test_overflow_share() -> None:
    assert theory.overflow_share(8) == pytest.approx(0.19264507794, rel=1e-10)
    assert theory.overflow_share(7) == 0


# Gaussian blocks.


@pytest.mark.parametrize(("q", "value"), [(7.25, 12.47), (7, 12.52), (8, 13.22), (6, 13.33)])
def test_gaussian_blocks(q: float, value: float) -> None:
    assert 1000 * theory_blocks.gaussian_block_error(q) == pytest.approx(value, abs=0.03)


@pytest.mark.parametrize(("q", "value"), [(7.25, 12.52), (7, 12.62), (8, 13.36), (6, 13.67)])
def test_gaussian_blocks_of_any_scale(q: float, value: float) -> None:
    assert 1000 * theory_blocks.gaussian_block_error_over_scales(q) == pytest.approx(value, abs=0.03)


@pytest.mark.parametrize(("q", "block", "sigma"), [(7.25, 32, 1.0), (6, 16, 1.3), (8, 1, 0.7)])
def test_gaussian_blocks_against_a_simulation(q: float, block: int, sigma: float) -> None:
    x = sigma * np.abs(np.random.default_rng(5).standard_normal((400_000 // block, block)))
    m = x.max(-1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(m / q)))
    cuts = (CODES[1:] + CODES[:-1]) / 2
    squared = ((x - scale * CODES[np.searchsorted(cuts, x / scale)]) ** 2).mean(-1) / sigma**2
    allowed = 4 * squared.std() / math.sqrt(len(squared))
    assert theory_blocks.gaussian_block_error(q, block, sigma) == pytest.approx(squared.mean(), abs=allowed)


def test_the_scale_average_has_converged_and_repeats_over_doublings() -> None:
    few, many = (theory_blocks.gaussian_block_error_over_scales(7.25, scales=n) for n in (8, 24))
    assert few == pytest.approx(many, rel=1e-9)
    assert theory_blocks.gaussian_block_error(7, sigma=2.0) == pytest.approx(theory_blocks.gaussian_block_error(7))


# ExpCast.


def test_expcast_constants() -> None:
    assert theory_expcast.OFFSET == F("119.65") == 8 * (8 + 7) - F("0.35")
    assert theory_expcast.expcast_code(0) == theory_expcast.TOP_CODE == 120
    assert theory_expcast.expcast_code(-14) == 8
    assert theory_expcast.expcast_code(-1000) == 0
    first_normal = np.array([8], np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)[0]
    assert first_normal == float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).tiny) == 256 * 2.0**-14


def test_expcast_against_casting_every_value() -> None:
    u = (np.arange(200_000) + 0.5) / 200_000 - 3  # two doublings, each evenly in the logarithm
    cast = (256 * np.exp2(u)).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(int)
    direct = np.rint(8 * u + 119.65).astype(int)
    ratio = direct.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64) / 256 / np.exp2(u)
    assert theory_expcast.equal_code_share() == pytest.approx(np.mean(cast == direct), abs=1e-4)
    assert theory_expcast.equal_code_share() == pytest.approx(0.796, abs=5e-4)
    assert theory_expcast.largest_code_difference() == np.abs(cast - direct).max() == 1
    assert theory_expcast.decoded_ratio_range() == pytest.approx((ratio.min(), ratio.max()), abs=1e-4)
    assert theory_expcast.decoded_ratio_range() == pytest.approx((0.9290, 1.0746), abs=1e-4)
    assert [theory_expcast.expcast_code(x) for x in u[::5003]] == direct[::5003].tolist()


def test_coding_error_range() -> None:
    f = np.linspace(0, 1, 100_001)
    error = 8 * (np.exp2(f) - 1) - 8 * f
    assert theory_expcast.coding_error_range() == pytest.approx((error.min(), error.max()), abs=1e-8)
    assert theory_expcast.coding_error_range() == pytest.approx((-0.6886, 0), abs=5e-5)
    assert theory_expcast.coding_error_range(-0.35) == pytest.approx((-0.6886 + 0.35, 0.35), abs=5e-5)


def test_a_shift_that_leaves_the_doubling_is_refused() -> None:
    with pytest.raises(ValueError, match="shift"):
        theory_expcast.equal_code_share(0.6)


def test_the_total_variation_bound_is_reached_and_never_passed() -> None:
    low, high = 0.9290, 1.0746
    bound = theory_expcast.total_variation_bound(low, high)
    assert bound == pytest.approx(0.0364, abs=5e-5)
    x = np.linspace(0, 1, 10_001)
    two_valued = x * (1 - x) * (high - low) / (low + x * (high - low))
    assert two_valued.max() == pytest.approx(bound, rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(300):
        p = rng.dirichlet(np.full(9, 0.3))
        weights = p * rng.uniform(low, high, 9)
        assert np.abs(weights / weights.sum() - p).sum() / 2 <= bound


# The summary and the figure.


def test_every_claim_agrees_but_two_last_digits() -> None:
    rows = theory.summary()
    assert len(rows) > 40
    assert len({(row.claim, row.source) for row in rows}) == len(rows)
    assert all(
        row.published and row.computed and row.source.startswith(("MXAttention", "VC-Attention")) for row in rows
    )
    differing = [(row.published, row.computed) for row in rows if not row.agrees]
    assert differing == [("19.27%", "19.26%"), ("-0.35", "-0.3443")]
    assert all(row.note for row in rows if not row.agrees)


def test_a_wrong_publication_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory, "PUBLISHED_E", {"5": "13/25"})
    monkeypatch.setattr(theory, "PUBLISHED_HARMONICS", {"0.10": "1.6418"})
    rows = {row.claim: row.agrees for row in theory.summary()}
    assert not rows["E(5)"]
    assert not rows["first harmonic, sigma 0.10"]


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_figure_is_the_same_bytes_every_time(tmp_path: Path, ending: str) -> None:
    first, second = (theory_figure.draw(tmp_path / name / f"theory.{ending}", dpi=60) for name in "ab")
    content = first.read_bytes()
    assert content == second.read_bytes()
    assert content.startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[ending])
    assert b"dc:date" not in content
    assert b"CreationDate" not in content


def test_the_figure_leaves_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 33.0}):
        theory_figure.draw(tmp_path / "large.png", dpi=40)
        assert matplotlib.rcParams["font.size"] == 33.0
    assert (tmp_path / "large.png").read_bytes() == theory_figure.draw(tmp_path / "usual.png", dpi=40).read_bytes()


def test_the_figure_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.svg, \.png, \.pdf"):
        theory_figure.draw(tmp_path / "theory.gif")
    with pytest.raises(UserError, match="standard deviation"):
        theory_figure.draw(tmp_path / "theory.svg", sigma=0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        theory_figure.draw(tmp_path / "file" / "theory.svg")
