// Rows of Hessians at the pixels: structure tensor, gate and adjoint, a vector of pixels at a time.
// As in integrodiff/stages/operators.py.
#pragma once

#include "cells.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Second derivatives of a vector of pixels, from the pixels of three rows.
template <class Real>
struct Hessian {
    using V = Packed<Real>;
    V xx, xy, yy;

    Hessian(const Real *up, const Real *here, const Real *down) {
        const V middle = load(here);
        xx = (load(here - 1) - 2 * middle) + load(here + 1);
        yy = (load(up) - 2 * middle) + load(down);
        xy = Real(0.25) * ((load(down + 1) - load(down - 1)) - (load(up + 1) - load(up - 1)));
    }
};

// Three rows that follow each other.
template <class Row>
struct Three {
    Row up, here, down;
};

// The sum of the squared Hessians of all planes, with weights, of the pixels from 0 to `width`.
// `local` are factors, if there are any.
template <class Real, class Use>
void structure_of_hessians(const Three<const Real *> *rows, const Real *weights, Index planes,
                           const Real *local, Index width, const Use &use) {
    for (Index x = 0; x < width; x += lanes<Real>) {
        Moments<Real> sum{};
        for (Index k = 0; k < planes; ++k) {
            const Hessian<Real> h(rows[k].up + x, rows[k].here + x, rows[k].down + x);
            const Packed<Real> trace = h.xx + h.yy, half = Real(0.5) * weights[k] * h.xx;
            Packed<Real> squares = multiply_add(h.yy, h.yy, 2 * h.xy * h.xy);
            sum.mean = multiply_add(half, h.xx,
                                    multiply_add(broadcast(Real(0.5) * weights[k]), squares, sum.mean));
            sum.deviation = multiply_add(Real(0.5) * weights[k] * (h.xx - h.yy), trace, sum.deviation);
            sum.xy = multiply_add(weights[k] * h.xy, trace, sum.xy);
        }
        if (local) {
            const Packed<Real> factor = load(local + x);
            sum = {factor * sum.mean, factor * sum.deviation, factor * sum.xy};
        }
        use(x, sum);
    }
}

// Components of gated Hessians in a row; the other of its two equal entries is in `xy`, twice.
template <class Real>
struct HessianRow {
    Real *xx, *xy, *yy;
};

// Minus `weight` times A H A, with A = g(J)^(1/2): `rate` is for a contrast that is larger by the
// square root of two.
template <class Real>
void gate_hessian_row(const Three<const Real *> &rows, const EigenRow<Real> &eigen,
                      const Rate<Real> &rate, Real weight, Index width, const HessianRow<Real> &out) {
    const Real factor = -weight / 4;  // The gates below are twice A.
    for (Index x = 0; x < width; x += lanes<Real>) {
        const Hessian<Real> h(rows.up + x, rows.here + x, rows.down + x);
        const auto g = Gate<Real>::template twice<Accuracy::shortcut>(eigen, x, rate, true);
        const Packed<Real> a = g.sum - g.mixed, b = -g.sine, c = g.sum + g.mixed;
        const Packed<Real> first = multiply_add(a, h.xx, b * h.xy);
        const Packed<Real> across = multiply_add(a, h.xy, b * h.yy);
        const Packed<Real> under = multiply_add(b, h.xx, c * h.xy);
        const Packed<Real> last = multiply_add(b, h.xy, c * h.yy);
        store(out.xx + x, factor * multiply_add(first, a, across * b));
        store(out.xy + x, 2 * factor * multiply_add(first, b, across * c));
        store(out.yy + x, factor * multiply_add(under, b, last * c));
    }
    // Beyond the border they continue as the Hessian does.
    for (Real *row : {out.xx, out.yy}) {
        row[-1] = row[0];
        row[width] = row[width - 1];
    }
    out.xy[-1] = -out.xy[0];
    out.xy[width] = -out.xy[width - 1];
}

// Add the adjoint of the second derivatives, of three rows, to a row of a flow. `up` and `down` are
// the signs of the mixed derivatives above and below: minus beyond the border of the image.
template <class Real>
void add_hessian_adjoint(const Three<HessianRow<Real>> &rows, Real up, Real down, Index width,
                         Real *flow) {
    const Real above = up / 4, below = down / 4;
    for (Index x = 0; x < width; x += lanes<Real>) {
        Packed<Real> sum = load(flow + x);
        sum += (load(rows.here.xx + x - 1) - 2 * load(rows.here.xx + x)) + load(rows.here.xx + x + 1);
        sum += (load(rows.up.yy + x) - 2 * load(rows.here.yy + x)) + load(rows.down.yy + x);
        sum = multiply_add(broadcast(above),
                           load(rows.up.xy + x - 1) - load(rows.up.xy + x + 1), sum);
        sum = multiply_add(broadcast(below),
                           load(rows.down.xy + x + 1) - load(rows.down.xy + x - 1), sum);
        store(flow + x, sum);
    }
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
