// Blurs of images with invalid pixels, as in integrodiff/stages/domain.py: polynomials of a walk
// along the edges between valid neighbours.
#pragma once

#include "blur.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

template <class Real>
class Walk {
  public:
    Walk(const Shape &shape, Executor &executor) : s_(shape), executor_(executor) {}

    void take_memory(Arena<Real> &arena) {
        for (Real **stack : {&here_, &before_})
            *stack = take_rows(arena, s_.width, s_.channels * s_.height);
        across_ = take_rows(arena, s_.width, s_.height + 1);
        along_ = take_rows(arena, s_.width + 1, s_.height);
    }

    // From the distances of the pixels to the next invalid one, in rows with margins.
    void find_edges(const Real *distances) {
        const Index stride = padded_width<Real>(s_.width), wide = padded_width<Real>(s_.width + 1);
        // What lies beyond the rows is multiplied by zero, and must be a number.
        std::fill(here_, here_ + s_.channels * s_.height * stride - margin, Real(0));
        std::fill(before_, before_ + s_.channels * s_.height * stride - margin, Real(0));
        std::fill(across_ - margin, across_ + (s_.height + 1) * stride - margin, Real(0));
        std::fill(along_ - margin, along_ + s_.height * wide - margin, Real(0));
        std::fill(here_ - margin, here_, Real(0));
        for (Index y = 0; y < s_.height; ++y) {
            const Real *row = distances + y * stride;
            for (Index x = 1; x < s_.width; ++x)
                if (row[x - 1] > 0 && row[x] > 0) along_[y * wide + x] = Real(0.25);
            for (Index x = 0; y > 0 && x < s_.width; ++x)
                if (row[x - stride] > 0 && row[x] > 0) across_[y * stride + x] = Real(0.25);
        }
    }

    // `taps` are the coefficients of the Chebyshev polynomials.
    void blur(const Real *in, Real *out, Index planes, const std::vector<Real> &taps) {
        const Index stride = padded_width<Real>(s_.width), rows = planes * s_.height;
        executor_.rows(rows, [&](Index first, Index last, Index) {
            for (Index n = first * stride; n < last * stride; n += stride)
                for (Index x = n; x < n + s_.width; ++x) {
                    here_[x] = in[x];
                    out[x] = taps[0] * in[x];
                }
        });
        for (std::size_t k = 1; k < taps.size(); ++k) {
            executor_.rows(rows, [&](Index first, Index last, Index) {
                for (Index n = first; n < last; ++n) step(n, k == 1, taps[k], out + n * stride);
            });
            std::swap(here_, before_);
        }
        executor_.rows(rows, [&](Index first, Index last, Index) {
            for (Index n = first; n < last; ++n) reflect_margins(out + n * stride, s_.width, 1);
        });
    }

  private:
    // One row of the next polynomial, in place of the one before the last, added to `out`.
    void step(Index n, bool first, Real tap, Real *out) {
        const Index stride = padded_width<Real>(s_.width), y = n % s_.height;
        const Real *row = here_ + n * stride;
        const Real *above = y > 0 ? row - stride : row;
        const Real *below = y + 1 < s_.height ? row + stride : row;
        const Real *up = across_ + y * stride, *down = up + stride;
        const Real *left = along_ + y * padded_width<Real>(s_.width + 1);
        Real *next = before_ + n * stride;
        for (Index x = 0; x < s_.width; x += lanes<Real>) {
            const Packed<Real> here = load(row + x);
            Packed<Real> walked = multiply_add(load(left + x), load(row + x - 1) - here, here);
            walked = multiply_add(load(left + x + 1), load(row + x + 1) - here, walked);
            walked = multiply_add(load(up + x), load(above + x) - here, walked);
            walked = multiply_add(load(down + x), load(below + x) - here, walked);
            if (!first) walked = 2 * walked - load(next + x);
            store(next + x, walked);
            store(out + x, multiply_add(broadcast(tap), walked, load(out + x)));
        }
    }

    Shape s_;
    Executor &executor_;
    Real *here_ = nullptr, *before_ = nullptr;
    // A quarter on the edges to the pixel above and on the left, and zero where there is none.
    Real *across_ = nullptr, *along_ = nullptr;
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
