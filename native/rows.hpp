// Rows of an image for the fused step: memory for the last ones of a plane, and their blur.
#pragma once

#include "resample.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Memory for all rows that a tile keeps, handed out piece by piece. The first round only counts.
template <class Real>
class Arena {
  public:
    explicit Arena(Buffer<Real> &memory) : memory_(memory) {}
    Real *take(Index count) {
        Real *piece = memory_.data() + used_;
        used_ += whole_vectors<Real>(count);
        return piece;
    }
    // Whether there was enough for all; otherwise there is now.
    bool enough() {
        const bool was = used_ <= static_cast<Index>(memory_.size());
        if (!was) memory_.assign(used_, Real(0));
        used_ = 0;
        return was;
    }

  private:
    Buffer<Real> &memory_;
    Index used_ = 0;
};

// The last rows of a plane; row y takes the place of row y - capacity.
template <class Real>
struct Ring {
    Real *memory = nullptr;
    Index capacity = 0, stride = 0;

    Ring() = default;
    Ring(Arena<Real> &arena, Index capacity_, Index width)
        : memory(arena.take(capacity_ * padded_width<Real>(width)) + margin),
          capacity(capacity_),
          stride(padded_width<Real>(width)) {}
    Real *row(Index y) const { return memory + (y % capacity) * stride; }
};

// A symmetric kernel with its taps in the precision of the computation.
template <class Real>
struct Kernel {
    std::vector<Real> taps;
    Index radius;
    explicit Kernel(const std::vector<double> &half)
        : taps(half.begin(), half.end()), radius(static_cast<Index>(half.size()) - 1) {}
};

// Two rows from the 2 radius + 2 rows that they need, each of them loaded once.
template <int radius, class Real>
void correlate_pair(const Real *const *rows, const Real *taps, Index count, Real *first,
                    Real *second) {
    for (Index x = 0; x < count; x += lanes<Real>) {
        Packed<Real> v[2 * radius + 2];
        for (int k = 0; k < 2 * radius + 2; ++k) v[k] = load(rows[k] + x);
        Packed<Real> above = taps[0] * v[radius], below = taps[0] * v[radius + 1];
        hold(above), hold(below);
        for (int k = 1; k <= radius; ++k) {
            above += taps[k] * (v[radius - k] + v[radius + k]);
            below += taps[k] * (v[radius + 1 - k] + v[radius + 1 + k]);
        }
        store(first + x, above);
        store(second + x, below);
    }
}

// Smooth row y and, if there is a `second` result, the next: `row_at` gives the rows of the plane,
// `mixed` two buffers with margins.
template <class Real, class RowAt>
void smooth_rows(const RowAt &row_at, Index y, Index height, Index width,
                 const Kernel<Real> &kernel, Real *const *mixed, Real *first, Real *second) {
    const Index count = whole_vectors<Real>(width), radius = kernel.radius;
    const Real *taps = kernel.taps.data(), *rows[2 * longest_radius + 2];
    for (Index k = 0; k < 2 * radius + 2; ++k) rows[k] = row_at(reflect(y - radius + k, height));
    const auto across = [&](const Real *const *center, Real *out) {
        correlate(
            center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; }, taps,
            radius, count, out);
    };
    const auto pair = [&](auto constant) {
        correlate_pair<decltype(constant)::value>(rows, taps, count, mixed[0], mixed[1]);
    };
    switch (second ? radius : -1) {
        case 1: pair(std::integral_constant<int, 1>()); break;
        case 2: pair(std::integral_constant<int, 2>()); break;
        case 3: pair(std::integral_constant<int, 3>()); break;
        case 4: pair(std::integral_constant<int, 4>()); break;
        case 5: pair(std::integral_constant<int, 5>()); break;
        case 6: pair(std::integral_constant<int, 6>()); break;
        case 7: pair(std::integral_constant<int, 7>()); break;
        case 8: pair(std::integral_constant<int, 8>()); break;
        default:
            across(rows + radius, mixed[0]);
            if (second) across(rows + radius + 1, mixed[1]);
    }
    for (int k = 0; k < (second ? 2 : 1); ++k) {
        reflect_margins(mixed[k], width, radius);
        correlate_along(mixed[k], taps, radius, count, k ? second : first);
    }
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
