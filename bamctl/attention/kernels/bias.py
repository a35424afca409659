"""The bias of a prior inside a kernel: exactly, or far from μ as a polynomial in the distance.

Shapes: H heads, S distances between a query tile and a key tile, M rows and N columns of a tile.

**Exactly.** b = -r · (|rel - μ| + ε)^β, with r = exp(log_rate), is a logarithm and an exponential for every
score. On a GPU the exponential runs on the unit that already limits attention (16 a clock and
multiprocessor, against 128 multiply-adds), and the logarithm is a dozen multiply-adds more: done everywhere,
that would double the load there. Half types evaluate it in fp32, good to (2 + |β log2 |rel - μ||) · 2^-23
of b, and far finer than the rounding of their q, k and v; fp32 inputs evaluate it in float64, rounded once.

**As a polynomial.** Let x = |rel_c - μ| + ε be the offset at the centre of a tile of M queries and N keys,
and z = rel - rel_c, so that |z| ≤ s = (M + N) / 2. Left of μ, b(z) = -r · (x - z)^β, and by Taylor's theorem

    b(z) = b_c · Σ_{m ≤ p} C(β, m) (-z / x)^m + R,    |R| ≤ |b_c| · |C(β, p + 1)| · g · (s / x)^(p + 1)

    with b_c = -r · x^β, and g = max over |z| ≤ s of (1 - z / x)^(β - p - 1)
                              ≤ max((8/7)^(p + 1 - β), (9/8)^(β - p - 1))    where x ≥ 8 s.

A tile is evaluated so if |R| ≤ 2^-24 · max(1, |b_c|): the rounding of the bias to fp32, or, where the bias is
small, the rounding of a score of size one, to which it is added. Solved for x, each of the two gives a
distance, and beyond the nearer of them (`far_field` below) the polynomial holds:

    s · E^(1 / (p + 1))                      and    (r · E · s^(p + 1))^(1 / (p + 1 - β)),
    E = 2^24 · |C(β, p + 1)| · g

Both are decreasing in x from there on, so one comparison decides for all tiles further left. Two degrees are
in use: p = 6 (for β = 1/2, tiles of 128 × 64: from a distance of 570 on, for β = -1.6 from 770) and p = 2
(from 10,000 and 1,000). β = 0, 1 and 2 are polynomials. A head whose bias passes 1e30 in magnitude where the
polynomial would be used has none, and nor do keys right of μ: there the exact form is always right.

With u = z / x the coefficients C(β, m) (-1)^m are the head's, and a tile has but two numbers of its own, b_c
and 1 / x, the same for all tiles at one distance. All of them are computed in float64, once a call. Where the
queries of a call begin at many places (sequences in pages) there is no such table of distances, and a program
computes its tile's two numbers itself, in what it would compute the bias exactly in (`centre_of`).
"""

import triton
import triton.language as tl

UNIFORM = tl.constexpr(0)
LAPLACE = tl.constexpr(1)
GENERALIZED_GAUSSIAN = tl.constexpr(2)

EPSILON = tl.constexpr(1e-5)
LOWEST = tl.constexpr(-1e37)

LOW_DEGREE = tl.constexpr(2)
HIGH_DEGREE = tl.constexpr(6)
SERIES = tl.constexpr(8)
"""Places for the coefficients of one head: a power of two above the degree."""

FAR = tl.constexpr(4)
"""Numbers of one distance: b_c, 1 / x, ln x and a place that is left free."""

DISTANCES = tl.constexpr(128)
"""Distances that one program of `far_field` computes."""


@triton.jit
def rate_of(log_rate, FLOAT64: tl.constexpr):
    """r = exp(log_rate), correctly rounded to what `power` computes in."""
    rate = tl.exp(log_rate.to(tl.float64))
    return rate if FLOAT64 else rate.to(tl.float32)


@triton.jit
def load_law(parameters_ptr, head, heads, KIND: tl.constexpr, FLOAT64: tl.constexpr):
    """The rate, β and μ of a head, or of each of several; the slope under a Laplace prior, and else zeros."""
    rate = 0.0
    beta = 0.0
    mu = 0.0
    if KIND == LAPLACE:
        rate = tl.load(parameters_ptr + head)
    elif KIND == GENERALIZED_GAUSSIAN:
        rate = rate_of(tl.load(parameters_ptr + head), FLOAT64)
        beta = tl.load(parameters_ptr + heads + head)
        mu = tl.load(parameters_ptr + 2 * heads + head)
    return rate, beta, mu


@triton.jit
def power(rel, rate, beta, mu, FLOAT64: tl.constexpr):
    """The bias of the generalized Gaussian at integers `rel`, in fp32; parameters broadcast against it."""
    if FLOAT64:
        offset = tl.abs(rel.to(tl.float64) - mu) + EPSILON
        bias = -rate * tl.exp2(beta.to(tl.float64) * tl.log2(offset))
        return tl.maximum(bias, LOWEST).to(tl.float32)
    else:
        offset = tl.abs(rel.to(tl.float32) - mu) + EPSILON
        return tl.maximum(-rate * tl.exp2(beta * tl.log2(offset)), LOWEST)


@triton.jit
def power_slopes(rel, beta, mu):
    """What the bias is multiplied by for its derivatives by β and by μ: ln |rel - μ| and -β / (rel - μ)."""
    difference = rel.to(tl.float32) - mu
    offset = tl.abs(difference) + EPSILON
    sign = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0))
    return tl.log(offset), -beta * sign / offset


@triton.jit
def load_series(ptr):
    """The coefficients of one head, by rising powers."""
    return (
        tl.load(ptr),
        tl.load(ptr + 1),
        tl.load(ptr + 2),
        tl.load(ptr + 3),
        tl.load(ptr + 4),
        tl.load(ptr + 5),
        tl.load(ptr + 6),
    )


@triton.jit
def polynomial(u, series, DEGREE: tl.constexpr):
    """Σ_m series[m] · u^m by Horner's rule."""
    value = series[DEGREE - 1] + series[DEGREE] * u
    for m in tl.static_range(DEGREE - 2, -1, -1):
        value = series[m] + value * u
    return value


@triton.jit
def centre_of(rel, rate, beta, mu, FLOAT64: tl.constexpr):
    """What one tile's polynomial is made of, for its rel_c: b_c and 1 / x."""
    offset = tl.abs(rel.to(tl.float32) - mu) + EPSILON
    return power(rel, rate, beta, mu, FLOAT64), 1.0 / offset


@triton.jit
def _from_distance(log_rate, beta, half_span, DEGREE: tl.constexpr):
    """From which offset x on a polynomial of this degree is exact enough; infinite where from none."""
    binomial = 1.0 + 0.0 * beta
    for m in tl.static_range(0, DEGREE + 1):
        binomial *= tl.abs(beta - m) / (m + 1)
    order = DEGREE + 1 - beta
    # (8/7)^order for what falls with the offset, (9/8)^-order for what rises.
    growth = tl.exp(tl.maximum(order * 0.13353139262452263, -order * 0.11778303565638346))
    ln_error = tl.log(tl.maximum(binomial * growth * 16777216.0, 1e-300))
    ln_span = tl.log(half_span)
    ln_relative = ln_span + ln_error / (DEGREE + 1)
    ln_absolute = (log_rate + ln_error + (DEGREE + 1) * ln_span) / tl.maximum(order, 0.5)
    ln_nearer = tl.where(order > 0.5, tl.minimum(ln_relative, ln_absolute), ln_relative)
    return tl.maximum(8.0 * half_span, tl.exp(tl.minimum(ln_nearer, 40.0)))


@triton.jit(do_not_specialize=["heads", "distances", "first_rel", "farthest"])
def far_field(
    far_ptr,  # [H, S, FAR] fp32
    series_ptr,  # [H, 2, SERIES] fp32: C(β, m) (-1)^m, and its derivative by β
    limits_ptr,  # [H, 2] int64: the largest rel_c of the polynomials of low and of high degree
    parameters_ptr,  # [3, H] fp32: log_rate, β, μ
    heads,
    distances,
    first_rel,  # rel_c of the nearest distance
    farthest,  # the largest |rel| of the call
    STEP: tl.constexpr,  # rel_c falls by this from one distance to the next
    HALF_SPAN: tl.constexpr,
):
    """What the polynomials of every head and every distance are made of, and for which tiles they hold."""
    head = tl.program_id(1)
    log_rate = tl.load(parameters_ptr + head).to(tl.float64)
    beta = tl.load(parameters_ptr + heads + head).to(tl.float64)
    mu = tl.load(parameters_ptr + 2 * heads + head).to(tl.float64)

    half_span = tl.full([], HALF_SPAN, tl.float64)
    nearest = 7.0 * half_span
    largest = log_rate + tl.maximum(beta * tl.log(nearest), beta * tl.log(nearest + farthest + tl.abs(mu)))
    low = _from_distance(log_rate, beta, half_span, LOW_DEGREE)
    high = _from_distance(log_rate, beta, half_span, HIGH_DEGREE)
    never = largest > 69.0
    tl.store(limits_ptr + 2 * head, tl.floor(mu - tl.where(never, 1e18, low)).to(tl.int64))
    tl.store(limits_ptr + 2 * head + 1, tl.floor(mu - tl.where(never, 1e18, high)).to(tl.int64))

    coefficient = tl.full([], 1.0, tl.float64)
    by_beta = tl.full([], 0.0, tl.float64)
    for m in tl.static_range(0, HIGH_DEGREE + 1):
        tl.store(series_ptr + 2 * head * SERIES + m, coefficient.to(tl.float32))
        tl.store(series_ptr + (2 * head + 1) * SERIES + m, by_beta.to(tl.float32))
        by_beta = -(by_beta * (beta - m) + coefficient) / (m + 1)
        coefficient = -coefficient * (beta - m) / (m + 1)

    s = tl.program_id(0) * DISTANCES + tl.arange(0, DISTANCES)
    offset = tl.maximum(mu - (first_rel - s.to(tl.int64) * STEP).to(tl.float64), nearest) + EPSILON
    bias = -tl.exp(tl.minimum(log_rate + beta * tl.log(offset), 80.0))
    place = far_ptr + (head.to(tl.int64) * distances + s) * FAR
    tl.store(place, bias.to(tl.float32), mask=s < distances)
    tl.store(place + 1, (1.0 / offset).to(tl.float32), mask=s < distances)
    tl.store(place + 2, tl.log(offset).to(tl.float32), mask=s < distances)


@triton.jit
def tiles_up_to(limit, rel_of_first, BLOCK: tl.constexpr):
    """How many tiles n = 0, 1, … have rel_c = rel_of_first + n · BLOCK ≤ limit."""
    room = limit - rel_of_first
    return tl.where(room < 0, 0, tl.maximum(room, 0) // BLOCK + 1)
