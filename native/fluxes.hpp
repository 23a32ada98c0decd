// The fluxes of the Haar cells, a vector of cells at a time: g(J) in closed form, and the divergence.
#pragma once

#include "rows.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Eigenvalues of J in a row of cells, and its direction as cosine and sine of twice the angle.
template <class Real>
struct EigenRow {
    Index count = 0;
    Real *smaller, *larger, *cosine, *sine;

    EigenRow() = default;
    EigenRow(Arena<Real> &arena, Index count_) : count(count_) {
        for (Real **row : {&smaller, &larger, &cosine, &sine}) *row = arena.take(count);
    }

    // From the sums of the squares and of the product of the two diagonal differences.
    void decompose(Index x, Packed<Real> falling, Packed<Real> rising, Packed<Real> product,
                   bool tensor) {
        using V = Packed<Real>;
        const V mean = falling + rising, deviation = 2 * product, xy = falling - rising;
        if (!tensor) {
            store(smaller + x, 2 * mean);
            return;
        }
        const V distance = square_root(deviation * deviation + xy * xy);
        const V inverse = distance > Real(1e-18) ? 1 / distance : V{};
        const V lower = mean - distance;
        store(smaller + x, lower > 0 ? lower : 0 * lower);
        store(larger + x, mean + distance);
        store(cosine + x, deviation * inverse);
        store(sine + x, xy * inverse);
    }
};

// The differences of a vector of cells along their diagonals, and E without its factor 1/2. Twice X
// and Y are sum and difference of the first two. `up` and `down` point to the pixels on the left.
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

// What the cells of a vector give to their four pixels.
template <class Real>
struct Flux {
    Packed<Real> ul, ur, dl, dr;
    Flux(Packed<Real> falling, Packed<Real> rising, Packed<Real> e)
        : ul(e - falling), ur(rising - e), dl(-e - rising), dr(falling + e) {}
    Flux() : ul{}, ur{}, dl{}, dr{} {}
};

// What a scale needs for its fluxes.
template <class Real>
struct FluxNumbers {
    Real rate;      // minus log2(e) / (2 lambda^2)
    Real half;      // half the factor of the flow, negative
    Real twisting;  // 1 - 2 theta
};

template <class Real, bool tensor>
inline Flux<Real> flux_at(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x,
                          const FluxNumbers<Real> &n) {
    using V = Packed<Real>;
    const Cell<Real> cell(up + x, down + x);
    const V larger = power_of_two<Real>(n.rate * load(eigen.smaller + x));
    if (!tensor) {
        const V g = 2 * n.half * larger;
        return {g * cell.falling, g * cell.rising, n.twisting * g * cell.e};
    }
    const V smaller = power_of_two<Real>(n.rate * load(eigen.larger + x));
    const V sum = n.half * (larger + smaller), difference = n.half * (larger - smaller);
    // D = sum I - difference (cosine, sine; sine, -cosine), here in the basis of the diagonals.
    const V mixed = difference * load(eigen.cosine + x), sine = difference * load(eigen.sine + x);
    return {(sum - sine) * cell.falling - mixed * cell.rising,
            (sum + sine) * cell.rising - mixed * cell.falling,
            n.twisting * (sum + absolute<Real>(sine)) * cell.e};
}

// Fluxes of a row of cells, and the flow of the row of pixels above it, which `carry` has from the
// cells above; afterwards `carry` is for the row below. For the columns from `x` to `last`; `here`
// goes from one part of the row to the next.
template <class Real, bool tensor>
void flux_row(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x, Index last,
              const FluxNumbers<Real> &numbers, Flux<Real> &state, Real *carry, Real *flow) {
    Flux<Real> here = x ? state : flux_at<Real, tensor>(up, down, eigen, 0, numbers);
    for (; x < last; x += lanes<Real>) {
        const Flux<Real> next =
            flux_at<Real, tensor>(up, down, eigen, x + lanes<Real>, numbers);
        store(flow + x, load(carry + x) + (here.ur + shifted(here.ul, next.ul)));
        store(carry + x, here.dr + shifted(here.dl, next.dl));
        here = next;
    }
    state = here;
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
