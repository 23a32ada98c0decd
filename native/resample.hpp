// Between the grid of the pixels and one of half the resolution, whose samples lie in the middle
// between two pixels: sample j at 2 j + 1/2. There the reflection at the border of the image maps
// samples to samples. Both directions use even symmetric kernels: tap k belongs to the distance
// k + 1/2. With the same kernel they are adjoint to each other.
#pragma once

#include "pieces.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Rows have this many numbers to spare on both sides, for reflection and for whole vectors.
constexpr Index margin = 32;
static_assert(longest_radius < margin && longest_half_kernel + 3 < margin, "kernels fit the margins");

template <class Real>
constexpr Index padded_width(Index width) {
    return whole_vectors<Real>(width) + 2 * margin + 32;
}

template <class Real>
Index coarse_plane_size(const Shape &s) {
    return (s.height + 1) / 2 * padded_width<Real>((s.width + 1) / 2);
}

// Sample seen at position j of a grid that belongs to `size` pixels.
inline Index reflect_coarse(Index j, Index size) {
    j %= size;
    if (j < 0) j += size;
    return j < (size + 1) / 2 ? j : size - 1 - j;
}

// Continue a row of `width` pixels by reflection.
template <class Real>
void reflect_margins(Real *row, Index width, Index reach) {
    for (Index i = 1; i <= reach; ++i) {
        row[-i] = row[reflect(-i, width)];
        row[width - 1 + i] = row[reflect(width - 1 + i, width)];
    }
}

// Half of an even symmetric kernel.
template <class Real>
struct HalfKernel {
    std::vector<Real> lifted;  // with a centre of weight zero before it

    explicit HalfKernel(const std::vector<double> &half) : lifted(1, Real(0)) {
        lifted.insert(lifted.end(), half.begin(), half.end());
    }
    Index size() const { return static_cast<Index>(lifted.size()) - 1; }
    const Real *taps() const { return lifted.data() + 1; }

    // The sample that tap k takes for the first or second pixel of pair a, relative to a.
    static Index offset(Index k, bool second) {
        const Index distance = k % 2 ? -(k + 1) / 2 : k / 2;
        return second ? -distance : distance;
    }
};

template <class Real>
class Resampler {
  public:
    explicit Resampler(Index columns)
        : columns_(columns),
          half_((columns + 1) / 2),
          mixed_(padded_width<Real>(half_)),
          first_(mixed_.size()),
          second_(mixed_.size()) {}

    // One row of pixels from the samples; `left` is the first column, and even.
    void interpolate(const Real *plane, const Shape &s, Index left, Index y,
                     const HalfKernel<Real> &kernel, Real *out) {
        const Index stride = padded_width<Real>((s.width + 1) / 2);
        const Index count = whole_vectors<Real>(half_), reach = kernel.size() / 2 + 1;
        Real *mixed = mixed_.data() + margin, *first = first_.data() + margin;
        Real *second = second_.data() + margin;
        combine(
            [&](Index k) {
                const Index row = reflect_coarse(y / 2 + kernel.offset(k, y % 2 == 1), s.height);
                return plane + row * stride + left / 2;
            },
            kernel, count, mixed);
        for (Index i = 1; i <= reach; ++i) {
            mixed[-i] = mixed[reflect_coarse(-i, columns_)];
            mixed[half_ - 1 + i] = mixed[reflect_coarse(half_ - 1 + i, columns_)];
        }
        combine_both(mixed, kernel, count, first, second);
        for (Index j = 0; j < half_; ++j) {
            out[2 * j] = first[j];
            out[2 * j + 1] = second[j];
        }
    }

    // Samples in one row from its pixels, which are continued as far as `pixels_around`.
    void decimate_row(const Real *row, const HalfKernel<Real> &kernel, Real *out) {
        const Index reach = kernel.size() / 2 + 1;
        Real *first = first_.data() + margin, *second = second_.data() + margin;
        for (Index j = -reach; j < half_ + reach; ++j) {
            first[j] = row[2 * j];
            second[j] = row[2 * j + 1];
        }
        // Taps counted from one: odd ones take the second pixel of a pair to the right, and the
        // first to the left.
        correlate(
            static_cast<const Real *>(first),
            [&](Index k) { return k % 2 ? first - k / 2 : second - k / 2; },
            [&](Index k) { return k % 2 ? second + k / 2 : first + k / 2; }, kernel.lifted.data(),
            kernel.size(), whole_vectors<Real>(half_), out);
    }

    static Index pixels_around(const HalfKernel<Real> &kernel) { return kernel.size() + 3; }

  private:
    template <class At>
    static void combine(const At &at, const HalfKernel<Real> &kernel, Index count, Real *out) {
        const Real *from[longest_half_kernel];
        for (Index k = 0; k < kernel.size(); ++k) from[k] = at(k);
        const Real *taps = kernel.taps();
        constexpr Index n = lanes<Real>;
        for (Index x = 0; x < count; x += 2 * n) {
            Packed<Real> left = taps[0] * load(from[0] + x), right = taps[0] * load(from[0] + x + n);
            for (Index k = 1; k < kernel.size(); ++k) {
                left += taps[k] * load(from[k] + x);
                right += taps[k] * load(from[k] + x + n);
            }
            store(out + x, left);
            store(out + x + n, right);
        }
    }

    // The first and the second pixels of all pairs; they take the same samples in reverse order.
    static void combine_both(const Real *row, const HalfKernel<Real> &kernel, Index count,
                             Real *first, Real *second) {
        const Real *taps = kernel.taps();
        for (Index x = 0; x < count; x += lanes<Real>) {
            Packed<Real> left = taps[0] * load(row + x), right = left;
            for (Index k = 1; k < kernel.size(); ++k) {
                const Index offset = kernel.offset(k, false);
                left += taps[k] * load(row + x + offset);
                right += taps[k] * load(row + x - offset);
            }
            store(first + x, left);
            store(second + x, right);
        }
    }

    Index columns_, half_;
    std::vector<Real> mixed_, first_, second_;
};

// Samples of one row of the coarse grid in one column each: `row_at` gives rows of pixels.
template <class Real, class RowAt>
void decimate_columns(const RowAt &row_at, Index row, Index height, const HalfKernel<Real> &kernel,
                      Index count, Real *out) {
    const Real *above[longest_half_kernel + 1], *below[longest_half_kernel + 1];
    for (Index k = 1; k <= kernel.size(); ++k) {
        above[k] = row_at(reflect(2 * row + 1 - k, height));
        below[k] = row_at(reflect(2 * row + k, height));
    }
    correlate(
        above[1], [&](Index k) { return above[k]; }, [&](Index k) { return below[k]; },
        kernel.lifted.data(), kernel.size(), count, out);
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
