// Correlation of rows with symmetric kernels.
#pragma once

#include "rows.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// A symmetric kernel with its taps in the precision of the computation.
template <class Real>
struct Kernel {
    std::vector<Real> taps;
    Index radius;
    explicit Kernel(const std::vector<double> &half)
        : taps(half.begin(), half.end()), radius(static_cast<Index>(half.size()) - 1) {}
};

template <class Real>
std::vector<Kernel<Real>> kernels_of(const Taps &taps) {
    return std::vector<Kernel<Real>>(taps.begin(), taps.end());
}

// `count` results, in whole vectors, from `center` and its neighbours at distance k, which begin at
// before(k) and after(k).
template <class Real, class Before, class After>
inline void correlate(const Real *center, const Before &before, const After &after, const Real *taps,
                      Index radius, Index count, Real *out) {
    constexpr Index n = lanes<Real>;
    const auto at = [](const Real *p) { return load(p); };
    Index x = 0;
    for (; x + 4 * n <= count; x += 4 * n) {
        Packed<Real> s0 = taps[0] * at(center + x), s1 = taps[0] * at(center + x + n);
        Packed<Real> s2 = taps[0] * at(center + x + 2 * n), s3 = taps[0] * at(center + x + 3 * n);
        for (Index k = 1; k <= radius; ++k) {
            const Real *a = before(k) + x, *b = after(k) + x;
            const Packed<Real> tap = broadcast(taps[k]);
            s0 = multiply_add(tap, at(a) + at(b), s0);
            s1 = multiply_add(tap, at(a + n) + at(b + n), s1);
            s2 = multiply_add(tap, at(a + 2 * n) + at(b + 2 * n), s2);
            s3 = multiply_add(tap, at(a + 3 * n) + at(b + 3 * n), s3);
        }
        store(out + x, s0);
        store(out + x + n, s1);
        store(out + x + 2 * n, s2);
        store(out + x + 3 * n, s3);
    }
    for (; x < count; x += n) {
        Packed<Real> sum = taps[0] * at(center + x);
        for (Index k = 1; k <= radius; ++k)
            sum = multiply_add(broadcast(taps[k]), at(before(k) + x) + at(after(k) + x), sum);
        store(out + x, sum);
    }
}

#if defined(__AVX512F__)
// The numbers from `shift` on of two vectors that follow each other.
template <int shift>
inline Packed<float> part_of(Packed<float> first, Packed<float> second) {
    return _mm512_castsi512_ps(
        _mm512_alignr_epi32(_mm512_castps_si512(second), _mm512_castps_si512(first), shift));
}

template <int... k>
inline Packed<float> add_taps(Packed<float> sum, Packed<float> before, Packed<float> here,
                              Packed<float> after, const float *taps,
                              std::integer_sequence<int, k...>) {
    ((sum = multiply_add(broadcast(taps[k + 1]),
                         part_of<15 - k>(before, here) + part_of<k + 1>(here, after), sum)),
     ...);
    return sum;
}

// Shifts in registers: a load that crosses two cache lines takes as long as two.
template <int radius>
void correlate_along_row(const float *row, const float *taps, Index count, float *out) {
    Packed<float> before = load(row - 16), here = load(row);
    for (Index x = 0; x < count; x += 16) {
        const Packed<float> after = load(row + x + 16);
        store(out + x, add_taps(taps[0] * here, before, here, after, taps,
                                std::make_integer_sequence<int, radius>()));
        before = here;
        here = after;
    }
}
#endif

// The same along a row that continues by `radius` numbers at both ends, and by one vector that may
// be anything.
template <class Real>
void correlate_along(const Real *row, const Real *taps, Index radius, Index count, Real *out) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Real) == 4) switch (radius) {
            case 1: return correlate_along_row<1>(row, taps, count, out);
            case 2: return correlate_along_row<2>(row, taps, count, out);
            case 3: return correlate_along_row<3>(row, taps, count, out);
            case 4: return correlate_along_row<4>(row, taps, count, out);
            case 5: return correlate_along_row<5>(row, taps, count, out);
            case 6: return correlate_along_row<6>(row, taps, count, out);
            case 7: return correlate_along_row<7>(row, taps, count, out);
            case 8: return correlate_along_row<8>(row, taps, count, out);
            default: break;
        }
#endif
    correlate(
        row, [&](Index k) { return row - k; }, [&](Index k) { return row + k; }, taps, radius, count,
        out);
}

// Two rows from the 2 radius + 2 rows that they need, each of them loaded once.
template <int radius, class Real>
void correlate_pair(const Real *const *rows, const Real *taps, Index count, Real *first,
                    Real *second) {
    for (Index x = 0; x < count; x += lanes<Real>) {
        Packed<Real> v[2 * radius + 2];
        for (int k = 0; k < 2 * radius + 2; ++k) v[k] = load(rows[k] + x);
        Packed<Real> above = taps[0] * v[radius], below = taps[0] * v[radius + 1];
        for (int k = 1; k <= radius; ++k) {
            const Packed<Real> tap = broadcast(taps[k]);
            above = multiply_add(tap, v[radius - k] + v[radius + k], above);
            below = multiply_add(tap, v[radius + 1 - k] + v[radius + 1 + k], below);
        }
        store(first + x, above);
        store(second + x, below);
    }
}

// Scratch of one blur: addresses of 2 radius + 2 rows, and two rows with margins of `radius`.
template <class Real>
struct BlurScratch {
    const Real **rows;
    Real *mixed[2];
};

// Smooth row y and, if there is a `second` result, the next. `row_at` gives the rows of the plane,
// also beyond the border, and `extend(row, radius)` continues one of the `width` columns.
template <class Real, class RowAt, class Extend>
void smooth_rows(const RowAt &row_at, Index y, Index width, const Kernel<Real> &kernel,
                 const Extend &extend, const BlurScratch<Real> &scratch, Real *first, Real *second) {
    const Index count = whole_vectors<Real>(width), radius = kernel.radius;
    const Real *taps = kernel.taps.data(), **rows = scratch.rows;
    for (Index k = 0; k < 2 * radius + 1 + (second != nullptr); ++k) rows[k] = row_at(y - radius + k);
    const auto across = [&](const Real *const *center, Real *out) {
        correlate(
            center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; }, taps,
            radius, count, out);
    };
    const auto pair = [&](auto constant) {
        correlate_pair<decltype(constant)::value>(rows, taps, count, scratch.mixed[0],
                                                  scratch.mixed[1]);
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
            across(rows + radius, scratch.mixed[0]);
            if (second) across(rows + radius + 1, scratch.mixed[1]);
    }
    for (int k = 0; k < (second ? 2 : 1); ++k) {
        extend(scratch.mixed[k], radius);
        correlate_along(scratch.mixed[k], taps, radius, count, k ? second : first);
    }
}

// `count` numbers of the sum of rows, each with its tap.
template <class Real>
void add_up(const Real *const *rows, const Real *taps, Index radius, Index count, Real *out) {
    constexpr Index n = lanes<Real>;
    Index x = 0;
    for (; x + 4 * n <= count; x += 4 * n) {
        const Real *row = rows[0] + x;
        Packed<Real> s0 = taps[0] * load(row), s1 = taps[0] * load(row + n);
        Packed<Real> s2 = taps[0] * load(row + 2 * n), s3 = taps[0] * load(row + 3 * n);
        for (Index k = 1; k <= radius; ++k) {
            row = rows[k] + x;
            const Packed<Real> tap = broadcast(taps[k]);
            s0 = multiply_add(tap, load(row), s0);
            s1 = multiply_add(tap, load(row + n), s1);
            s2 = multiply_add(tap, load(row + 2 * n), s2);
            s3 = multiply_add(tap, load(row + 3 * n), s3);
        }
        store(out + x, s0);
        store(out + x + n, s1);
        store(out + x + 2 * n, s2);
        store(out + x + 3 * n, s3);
    }
    for (; x < count; x += n) {
        Packed<Real> sum = taps[0] * load(rows[0] + x);
        for (Index k = 1; k <= radius; ++k)
            sum = multiply_add(broadcast(taps[k]), load(rows[k] + x), sum);
        store(out + x, sum);
    }
}

// How a row of `width` pixels is continued.
template <class Real>
auto by_reflection(Index width) {
    return [width](Real *row, Index radius) { reflect_margins(row, width, radius); };
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
