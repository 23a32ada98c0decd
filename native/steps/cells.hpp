// Structure tensor, g(J) and fluxes of the Haar cells, a vector of cells at a time.
//
// Everything is in the basis of the diagonals: `falling` and `rising` are the differences along the
// two diagonals of a cell, and twice X and Y are their sum and difference.
#pragma once

#include "../simd/exponential.hpp"
#include "rows.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// The differences of a vector of cells along their diagonals, and E without its factor 1/2. `up`
// and `down` point to the pixels on the left.
template <class Real>
struct Cell {
    Packed<Real> falling, rising, e;
    Cell(const Real *up, const Real *down) {
        Packed<Real> ul = load(up), ur = load(up + 1), dl = load(down), dr = load(down + 1);
        hold(ul), hold(ur), hold(dl), hold(dr);
        falling = dr - ul;
        rising = ur - dl;
        e = (ul + dr) - (ur + dl);
    }
};

// ---- the structure tensor and its eigenvalues ----

// J by its components of one parity each: half the trace, half of J_xx - J_yy, and J_xy.
template <class Real>
struct Moments {
    Packed<Real> mean, deviation, xy;
};

// Sums of weighted products of the differences of a cell.
template <class Real>
struct Structure {
    using V = Packed<Real>;
    V falling{}, rising{}, product{};

    // `weight` has the factor 1/4 of X and Y.
    void add(const Cell<Real> &cell, Real weight) {
        const V weighted = weight * cell.falling;
        falling = multiply_add(weighted, cell.falling, falling);
        product = multiply_add(weighted, cell.rising, product);
        rising = multiply_add(weight * cell.rising, cell.rising, rising);
    }
    // The derivative, for the derivatives of the differences and of the weight.
    void add_slope(const Cell<Real> &cell, const Cell<Real> &change, Real weight, Real slope) {
        const V f = multiply_add(broadcast(2 * weight), change.falling, slope * cell.falling);
        const V r = multiply_add(broadcast(2 * weight), change.rising, slope * cell.rising);
        falling = multiply_add(f, cell.falling, falling);
        rising = multiply_add(r, cell.rising, rising);
        // Half of each, so that both factors are differentiated once.
        product = multiply_add(Real(0.5) * f, cell.rising, product);
        product = multiply_add(Real(0.5) * r, cell.falling, product);
    }
    void scale(V factor) {
        falling *= factor;
        product *= factor;
        rising *= factor;
    }
    Moments<Real> moments() const { return {falling + rising, 2 * product, falling - rising}; }
};

// Each eigenvalue of J gets `mix` times the other one: the factors of their sum and difference.
template <class Real>
struct Mix {
    Real sum = 1, difference = 1;
    Mix() = default;
    explicit Mix(double mix) : sum(static_cast<Real>(1 + mix)), difference(static_cast<Real>(1 - mix)) {}
};

// Eigenvalues of J, and its direction as cosine and sine of twice the angle. For a scalar coupling,
// `smaller` is the trace, and nothing else counts.
template <class Real>
struct Eigen {
    using V = Packed<Real>;
    V smaller, larger, cosine, sine, inverse;

    static Eigen of(const Moments<Real> &j, bool tensor, const Mix<Real> &mix = {}) {
        Eigen e{};
        if (!tensor) {
            e.smaller = 2 * j.mean;
            return e;
        }
        const V distance = square_root(multiply_add(j.deviation, j.deviation, j.xy * j.xy));
        e.inverse = distance > Real(1e-18) ? 1 / distance : V{};
        // Neither rounding nor a negative mix must make it negative; NaN stays NaN. Their difference
        // is that of J.
        const V half = mix.difference * distance;
        e.smaller = larger_of(V{}, mix.sum * j.mean - half);
        e.larger = e.smaller + 2 * half;
        e.cosine = j.deviation * e.inverse;
        e.sine = j.xy * e.inverse;
        return e;
    }
};

// The same of a row of cells or pixels.
template <class Real>
struct EigenRow {
    Real *smaller, *larger, *cosine, *sine;

    void set(Index x, const Moments<Real> &j, bool tensor, const Mix<Real> &mix) const {
        const Eigen<Real> e = Eigen<Real>::of(j, tensor, mix);
        store(smaller + x, e.smaller);
        if (!tensor) return;
        store(larger + x, e.larger);
        store(cosine + x, e.cosine);
        store(sine + x, e.sine);
    }
};

// J of the cells from `x` to `last` from the rows above and below, which are `above` and `below`
// with `weights`, one for each plane. `local` are factors of J, if there are any.
template <class Real, class Use>
void structure_of_cells(const Real *const *above, const Real *const *below, const Real *weights,
                        Index planes, const Real *local, Index x, Index last, const Use &use) {
    for (; x < last; x += lanes<Real>) {
        Structure<Real> sum;
        for (Index k = 0; k < planes; ++k)
            sum.add(Cell<Real>(above[k] + x, below[k] + x), weights[k]);
        if (local) sum.scale(load(local + x));
        use(x, sum.moments());
    }
}

// ---- g(J) ----

// What a scale needs for its fluxes.
template <class Real>
struct FluxNumbers {
    Rate<Real> rate;
    Real half;      // half the factor of g(J)
    Real twisting;  // 1 - 2 theta

    // The factor is minus the weight, a half from the coefficients, another from their adjoint.
    FluxNumbers(double contrast, double weight, double theta)
        : rate(contrast),
          half(static_cast<Real>(-weight / 4)),
          twisting(static_cast<Real>(1 - 2 * theta)) {}
};

// Twice g(J), or g(J) with another factor: sum I - (mixed, sine; sine, -mixed) in the axes x and y.
template <class Real>
struct Gate {
    Packed<Real> sum, mixed, sine;

    template <Accuracy accuracy>
    static Gate twice(const EigenRow<Real> &eigen, Index x, const Rate<Real> &rate, bool tensor) {
        using V = Packed<Real>;
        const V larger = gate_of<Real, accuracy>(rate, load(eigen.smaller + x));
        if (!tensor) return {2 * larger, V{}, V{}};
        const V smaller = gate_of<Real, accuracy>(rate, load(eigen.larger + x));
        const V difference = larger - smaller;
        return {larger + smaller, difference * load(eigen.cosine + x),
                difference * load(eigen.sine + x)};
    }
};

// ---- fluxes and their divergence ----

// What the cells of a vector give to three of their pixels, and take from the lower left one.
template <class Real>
struct Flux {
    Packed<Real> ul, ur, from_dl, dr;
    Flux(Packed<Real> falling, Packed<Real> rising, Packed<Real> e)
        : ul(e - falling), ur(rising - e), from_dl(e + rising), dr(falling + e) {}
    Flux() : ul{}, ur{}, from_dl{}, dr{} {}
};

// Without the factor `half`.
template <class Real, bool tensor, Accuracy accuracy>
inline Flux<Real> flux_at(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x,
                          const FluxNumbers<Real> &n) {
    const Cell<Real> cell(up + x, down + x);
    const auto g = Gate<Real>::template twice<accuracy>(eigen, x, n.rate, tensor);
    if (!tensor) return {g.sum * cell.falling, g.sum * cell.rising, n.twisting * g.sum * cell.e};
    return {multiply_add(g.sum - g.sine, cell.falling, -g.mixed * cell.rising),
            multiply_add(g.sum + g.sine, cell.rising, -g.mixed * cell.falling),
            n.twisting * (g.sum - absolute<Real>(g.sine)) * cell.e};
}

// Fluxes of a row of cells, and the flow of the row of pixels above it, for which `carry` has what
// comes from the cells above, without the factor; afterwards `carry` is for the row below. For the
// columns from `x` to `last`; `state` goes from one part of the row to the next.
template <class Real, bool tensor, Accuracy accuracy>
void flux_row(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x, Index last,
              const FluxNumbers<Real> &numbers, Flux<Real> &state, Real *carry, Real *flow) {
    Flux<Real> here = x ? state : flux_at<Real, tensor, accuracy>(up, down, eigen, 0, numbers);
    for (; x < last; x += lanes<Real>) {
        const Flux<Real> next =
            flux_at<Real, tensor, accuracy>(up, down, eigen, x + lanes<Real>, numbers);
        const Packed<Real> above = here.ur + shifted<Real>(here.ul, next.ul);
        store(flow + x, numbers.half * (load(carry + x) + above));
        store(carry + x, here.dr - shifted<Real>(here.from_dl, next.from_dl));
        here = next;
    }
    state = here;
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
