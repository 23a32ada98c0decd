// Between the grid of the pixels and one of half the resolution, whose samples lie in the middle
// between two pixels: sample j at 2 j + 1/2. There the reflection at the border of the image maps
// samples to samples. Both directions use even symmetric kernels: tap k belongs to the distance
// k + 1/2. With the same kernel they are adjoint to each other.
#pragma once

#include "blur.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Sample seen at position j of a grid that belongs to `size` pixels.
inline Index reflect_coarse(Index j, Index size) {
    if (j < -size || j >= size) j %= size;
    if (j < 0) j += size;
    return j < (size + 1) / 2 ? j : size - 1 - j;
}

// Whether that sample is seen in a mirror: there an odd plane has the opposite sign.
inline bool is_flipped_coarse(Index j, Index size) {
    Index pixel = (2 * j) % (2 * size);  // samples lie between two of them
    if (pixel < 0) pixel += 2 * size;
    return pixel >= size;
}

// Continue a row of the samples of `size` pixels.
template <class Real>
void reflect_coarse_margins(Real *row, Index size, Index reach) {
    const Index width = (size + 1) / 2;
    for (Index i = 1; i <= reach; ++i) {
        row[-i] = row[reflect_coarse(-i, size)];
        row[width - 1 + i] = row[reflect_coarse(width - 1 + i, size)];
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
    Resampler() = default;
    Resampler(Arena<Real> &arena, Index columns)
        : columns_(columns),
          half_((columns + 1) / 2),
          mixed_(take_rows(arena, half_)),
          first_(take_rows(arena, half_)),
          second_(take_rows(arena, half_)) {}

    // One row of pixels from the samples; `left` is the first column, and even.
    void interpolate(const Real *plane, const Shape &s, Index left, Index y,
                     const HalfKernel<Real> &kernel, Real *out) {
        const Index stride = padded_width<Real>((s.width + 1) / 2);
        const Index count = whole_vectors<Real>(half_);
        combine(
            [&](Index k) {
                const Index row = reflect_coarse(y / 2 + kernel.offset(k, y % 2 == 1), s.height);
                return plane + row * stride + left / 2;
            },
            kernel, count, mixed_);
        expand_row(mixed_, kernel, out);
    }

    // Pixels in one row from its samples, which get margins.
    void expand_row(Real *samples, const HalfKernel<Real> &kernel, Real *out) {
        reflect_coarse_margins(samples, columns_, kernel.size() / 2 + 1);
        combine_both(samples, kernel, whole_vectors<Real>(half_), first_, second_);
        for (Index j = 0; j < half_; ++j) {
            out[2 * j] = first_[j];
            out[2 * j + 1] = second_[j];
        }
    }

    // Samples in one row from its pixels, which are continued as far as `pixels_around`.
    void decimate_row(const Real *row, const HalfKernel<Real> &kernel, Real *out) {
        const Index reach = kernel.size() / 2 + 1;
        const Real *first = first_, *second = second_;
        for (Index j = -reach; j < half_ + reach; ++j) {
            first_[j] = row[2 * j];
            second_[j] = row[2 * j + 1];
        }
        // Taps counted from one: odd ones take the second pixel of a pair to the right, and the
        // first to the left.
        correlate(
            first, [&](Index k) { return k % 2 ? first - k / 2 : second - k / 2; },
            [&](Index k) { return k % 2 ? second + k / 2 : first + k / 2; }, kernel.lifted.data(),
            kernel.size(), whole_vectors<Real>(half_), out);
    }

    static Index pixels_around(const HalfKernel<Real> &kernel) { return kernel.size() + 3; }

    // The sum of rows at(k), each with its tap; `count` numbers in pairs of vectors.
    template <class At>
    static void combine(const At &at, const HalfKernel<Real> &kernel, Index count, Real *out) {
        const Real *from[longest_half_kernel];
        for (Index k = 0; k < kernel.size(); ++k) from[k] = at(k);
        const Real *taps = kernel.taps();
        constexpr Index n = lanes<Real>;
        for (Index x = 0; x < count; x += 2 * n) {
            Packed<Real> left = taps[0] * load(from[0] + x), right = taps[0] * load(from[0] + x + n);
            for (Index k = 1; k < kernel.size(); ++k) {
                left = multiply_add(broadcast(taps[k]), load(from[k] + x), left);
                right = multiply_add(broadcast(taps[k]), load(from[k] + x + n), right);
            }
            store(out + x, left);
            store(out + x + n, right);
        }
    }

  private:
    // The first and the second pixels of all pairs; they take the same samples in reverse order.
    static void combine_both(const Real *row, const HalfKernel<Real> &kernel, Index count,
                             Real *first, Real *second) {
        const Real *taps = kernel.taps();
        for (Index x = 0; x < count; x += lanes<Real>) {
            Packed<Real> left = taps[0] * load(row + x), right = left;
            for (Index k = 1; k < kernel.size(); ++k) {
                const Index offset = kernel.offset(k, false);
                left = multiply_add(broadcast(taps[k]), load(row + x + offset), left);
                right = multiply_add(broadcast(taps[k]), load(row + x - offset), right);
            }
            store(first + x, left);
            store(second + x, right);
        }
    }

    Index columns_ = 0, half_ = 0;
    Real *mixed_ = nullptr, *first_ = nullptr, *second_ = nullptr;
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
