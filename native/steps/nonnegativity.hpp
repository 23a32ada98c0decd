// Order one in the nonnegativity scheme: tensors at the pixels, exchange with eight neighbours.
#pragma once

#include "cells.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// J from central differences in row y, of planes with weights that have the factor 1/4.
template <class Real, class Use>
void structure_of_pixels(const Real *const *planes, const Real *weights, Index count, Index y,
                         const Shape &s, const Real *local, const Use &use) {
    using V = Packed<Real>;
    const Index stride = padded_width<Real>(s.width);
    const Index up = reflect(y - 1, s.height), down = reflect(y + 1, s.height);
    for (Index x = 0; x < s.width; x += lanes<Real>) {
        V xx{}, xy{}, yy{};
        for (Index k = 0; k < count; ++k) {
            const Real *here = planes[k] + y * stride + x;
            const V across = load(here + 1) - load(here - 1);
            const V along = load(planes[k] + down * stride + x) - load(planes[k] + up * stride + x);
            xx = multiply_add(weights[k] * across, across, xx);
            xy = multiply_add(weights[k] * across, along, xy);
            yy = multiply_add(weights[k] * along, along, yy);
        }
        const V factor = local ? load(local + x) : broadcast(Real(1));
        use(x, Moments<Real>{factor * (xx + yy) / 2, factor * (xx - yy) / 2, factor * xy});
    }
}

// Weights of exchange along x, along y, and along the two diagonals, in three rows at a time.
template <class Real>
class ExchangeRows {
  public:
    void take_memory(Arena<Real> &arena, Index width) {
        for (auto &row : weights_)
            for (Real *&kind : row) kind = take_rows(arena, width);
    }
    void reset() { std::fill(held_, held_ + 3, Index(-1)); }

    // `eigen_at(y)` gives the row of J.
    template <class EigenAt>
    Real *const *at(Index y, const EigenAt &eigen_at, Index width, const Rate<Real> &rate,
                   bool tensor) {
        Real **row = weights_[y % 3];
        if (held_[y % 3] == y) return row;
        const EigenRow<Real> eigen = eigen_at(y);
        for (Index x = 0; x < width; x += lanes<Real>) {
            const auto g = Gate<Real>::template twice<Accuracy::full>(eigen, x, rate, tensor);
            const Packed<Real> size = absolute<Real>(g.sine);
            store(row[0] + x, (g.sum - g.mixed - size) / 2);
            store(row[1] + x, (g.sum + g.mixed - size) / 2);
            store(row[2] + x, (size - g.sine) / 4);
            store(row[3] + x, (size + g.sine) / 4);
        }
        held_[y % 3] = y;
        return row;
    }

  private:
    Real *weights_[3][4];
    Index held_[3];
};

// Add the flow of one scale to row y. Neighbours beyond the border take no part.
template <class Real, class EigenAt>
void add_exchange(ExchangeRows<Real> &rows, const EigenAt &eigen_at, const Real *planes,
                  const Shape &s, Index y, Real weight, const Rate<Real> &rate, bool tensor,
                  Real *flow) {
    constexpr int directions[8][2] = {{0, -1}, {0, 1},  {-1, 0}, {1, 0},
                                      {-1, -1}, {1, 1}, {-1, 1}, {1, -1}};
    const Index stride = padded_width<Real>(s.width);
    for (const auto &direction : directions) {
        const Index below = y + direction[0], right = direction[1];
        if (below < 0 || below >= s.height) continue;
        const int kind = direction[0] == 0 ? 0 : right == 0 ? 1 : direction[0] == right ? 2 : 3;
        const Real *here = rows.at(y, eigen_at, s.width, rate, tensor)[kind];
        const Real *there = rows.at(below, eigen_at, s.width, rate, tensor)[kind];
        const Index from = std::max<Index>(0, -right), to = s.width - std::max<Index>(0, right);
        for (Index c = 0; c < s.channels; ++c) {
            const Real *own = planes + (c * s.height + y) * stride;
            const Real *other = planes + (c * s.height + below) * stride + right;
            Real *out = flow + (c * s.height + y) * stride;
            for (Index x = from; x < to; ++x)
                out[x] = multiply_add(weight * (here[x] + there[x + right]) / 2, other[x] - own[x],
                                      out[x]);
        }
    }
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
