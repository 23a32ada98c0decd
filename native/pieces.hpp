// What the step and its tangents share. Included by files that are compiled for one instruction
// set each, which INTEGRODIFF_ISA names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "simd.hpp"
#include "stencils.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

using Index = std::ptrdiff_t;

// ---- exponential of nonpositive numbers ----

// Relative error below 2e-7; numbers below -87 count as -87, whose exponential is 1.6e-38.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const float shifted = x * 1.44269504f + shifter;
    const float n = shifted - shifter;
    float r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    float p = 1.38888889e-3f;
    p = p * r + 8.33333377e-3f;
    p = p * r + 4.16666679e-2f;
    p = p * r + 1.66666672e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    std::int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const std::int32_t power = (bits - 0x4B400000 + 127) << 23;
    float scale;
    std::memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

inline double exponential(double x) { return std::exp(x); }

// ---- reflection ----

inline Index reflect(Index i, Index size) {
    i %= 2 * size;
    if (i < 0) i += 2 * size;
    return i < size ? i : 2 * size - 1 - i;
}

// Index and sign of a row of derivatives beyond the border: see stages/derivatives.py.
struct Reflected {
    Index index;
    bool flipped;
};

inline Reflected reflect_field(Index i, Index size, bool on_cells) {
    const Index period = on_cells ? 2 * (size - 1) : 2 * size;
    i %= period;
    if (i < 0) i += period;
    if (i < size) return {i, false};
    return {on_cells ? period - i : period - 1 - i, true};
}

template <class Real>
void pad_row(const Real *row, Index width, Index radius, Real *padded) {
    std::copy(row, row + width, padded + radius);
    for (Index i = 1; i <= radius; ++i) {
        padded[radius - i] = row[reflect(-i, width)];
        padded[radius + width - 1 + i] = row[reflect(width - 1 + i, width)];
    }
}

// ---- blur ----

// A symmetric kernel: `count` results from `center` and its neighbours at distance k, which begin
// at before(k) and after(k). The first product is held, so that the compiler cannot choose which of
// the first two it joins with the sum: then all forms of a blur round alike, and results do not
// depend on the number of threads.
template <class Real, class Before, class After>
inline void correlate(const Real *center, const Before &before, const After &after, const Real *taps,
                      Index radius, Index count, Real *out) {
    Index x = 0;
#if defined(__GNUC__)
    constexpr Index lanes = INTEGRODIFF_ISA::lanes<Real>, block = 4 * lanes;
    const auto at = [](const Real *p) { return load(p); };
    while (count >= block) {
        // The last block may begin before the end of the one before it.
        x = std::min(x, count - block);
        Packed<Real> s0 = taps[0] * at(center + x), s1 = taps[0] * at(center + x + lanes);
        Packed<Real> s2 = taps[0] * at(center + x + 2 * lanes), s3 = taps[0] * at(center + x + 3 * lanes);
        hold(s0), hold(s1), hold(s2), hold(s3);
        for (Index k = 1; k <= radius; ++k) {
            const Real *a = before(k) + x, *b = after(k) + x;
            const Real tap = taps[k];
            s0 += tap * (at(a) + at(b));
            s1 += tap * (at(a + lanes) + at(b + lanes));
            s2 += tap * (at(a + 2 * lanes) + at(b + 2 * lanes));
            s3 += tap * (at(a + 3 * lanes) + at(b + 3 * lanes));
        }
        store(out + x, s0);
        store(out + x + lanes, s1);
        store(out + x + 2 * lanes, s2);
        store(out + x + 3 * lanes, s3);
        x += block;
        if (x >= count) return;
    }
#endif
    for (; x < count; ++x) {
        Real sum = taps[0] * center[x];
        hold(sum);
        for (Index k = 1; k <= radius; ++k) sum += taps[k] * (before(k)[x] + after(k)[x]);
        out[x] = sum;
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
    ((sum += taps[k + 1] * (part_of<15 - k>(before, here) + part_of<k + 1>(here, after))), ...);
    return sum;
}

// Shifts in registers: a load that crosses two lines of the cache takes as long as two.
template <int radius>
void correlate_along_row(const float *row, const float *taps, Index count, float *out) {
    Packed<float> before = load(row - 16), here = load(row);
    for (Index x = 0; x < count; x += 16) {
        const Packed<float> after = load(row + x + 16);
        Packed<float> sum = taps[0] * here;
        hold(sum);
        store(out + x, add_taps(sum, before, here, after, taps,
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

template <class Real>
void blur(const Real *in, Real *out, Index height, Index width, const std::vector<double> &kernel,
          Team &team) {
    const Index radius = static_cast<Index>(kernel.size()) - 1;
    if (radius == 0) {
        std::copy(in, in + height * width, out);
        return;
    }
    const std::vector<Real> taps(kernel.begin(), kernel.end());
    team.rows(height, [&](Index first, Index last) {
        std::vector<Real> row(width), padded(width + 2 * radius);
        std::vector<const Real *> above(radius + 1), below(radius + 1);
        for (Index y = first; y < last; ++y) {
            for (Index k = 1; k <= radius; ++k) {
                above[k] = in + reflect(y - k, height) * width;
                below[k] = in + reflect(y + k, height) * width;
            }
            correlate(
                in + y * width, [&](Index k) { return above[k]; }, [&](Index k) { return below[k]; },
                taps.data(), radius, width, row.data());
            pad_row(row.data(), width, radius, padded.data());
            const Real *center = padded.data() + radius;
            correlate(
                center, [&](Index k) { return center - k; }, [&](Index k) { return center + k; },
                taps.data(), radius, width, out + y * width);
        }
    });
}

// Smooth planes that lie behind each other.
template <class Real>
void blur_planes(const Real *in, Real *out, Index planes, const Shape &s,
                 const std::vector<double> &kernel, Team &team) {
    const Index size = s.height * s.width;
    for (Index k = 0; k < planes; ++k)
        blur(in + k * size, out + k * size, s.height, s.width, kernel, team);
}

struct Nothing {
    template <class Real>
    void operator()(std::size_t, Real *) const {}
};

// Smooth `planes` planes at every scale, each from the scale before. `then` is called with each
// scale and its planes before they are used.
template <class Real, class Then = Nothing>
void to_all_scales(const Real *images, Real *smoothed, Index planes, const Shape &s,
                   const Taps &taps, Team &team, const Then &then = {}) {
    const Index size = planes * s.height * s.width;
    for (std::size_t i = 0; i < taps.size(); ++i) {
        blur_planes(i ? smoothed + (i - 1) * size : images, smoothed + i * size, planes, s, taps[i],
                    team);
        then(i, smoothed + i * size);
    }
}

// Add up the flows of all scales at the finest one, by Horner's rule: the adjoint of the above.
// `present` says which scales have a flow. The flows are overwritten; the result is in `total`.
// `then` is called after each scale with its number and what it has smoothed.
template <class Real, class Then = Nothing>
void to_finest_scale(Real *flows, const std::vector<bool> &present, Real *total, Index planes,
                     const Shape &s, const Taps &taps, Team &team, const Then &then = {}) {
    const Index size = planes * s.height * s.width;
    std::fill(total, total + size, Real(0));
    bool any = false;
    for (Index i = static_cast<Index>(taps.size()) - 1; i >= 0; --i) {
        Real *here = flows + i * size;
        if (!present[i] && !any) continue;
        if (present[i])
            for (Index k = 0; k < size; ++k) here[k] += total[k];
        else
            std::copy(total, total + size, here);
        blur_planes(here, total, planes, s, taps[i], team);
        then(static_cast<std::size_t>(i), total);
        any = true;
    }
}

// ---- cells ----

// The rows above and below a row of cells, continued by one pixel on both sides.
template <class Real>
struct CellRows {
    std::vector<Real> up, down;

    explicit CellRows(Index width) : up(width + 2), down(width + 2) {}

    void load(const Real *plane, Index y, Index height, Index width) {
        pad_row(plane + reflect(y - 1, height) * width, width, 1, up.data());
        pad_row(plane + reflect(y, height) * width, width, 1, down.data());
    }
};

// ---- orders two to four ----

inline double binomial(int n, int k) {
    double result = 1;
    for (int i = 0; i < k; ++i) result = result * (n - i) / (i + 1);
    return result;
}

// All derivatives of one order in one row of pixels or cells.
template <class Real>
struct Derivatives {
    int order;
    bool on_cells;
    Index height, width, columns;  // of the image; columns of the result
    std::vector<std::vector<Real>> parts;
    std::vector<Real> mixed, padded;

    Derivatives(int order_, Index height_, Index width_)
        : order(order_),
          on_cells(order_ % 2 == 1),
          height(height_),
          width(width_),
          columns(width_ + on_cells),
          parts(order_ + 1, std::vector<Real>(width_ + on_cells)),
          mixed(width_),
          padded(width_ + 8) {}

    const Stencil &stencil(int derivative) const {
        return on_cells ? integrodiff::on_cells[derivative] : on_pixels[derivative];
    }

    // parts[j] is the derivative of order - j along the row and j across, without its factor.
    void load(const Real *plane, Index y) {
        for (int j = 0; j <= order; ++j) {
            const Stencil &vertical = stencil(j), &horizontal = stencil(order - j);
            const Index up = vertical.size / 2, left = horizontal.size / 2;
            std::fill(mixed.begin(), mixed.end(), Real(0));
            for (int k = 0; k < vertical.size; ++k) {
                const Real tap = static_cast<Real>(vertical.taps[k]);
                if (tap == 0) continue;
                const Real *row = plane + reflect(y - up + k, height) * width;
                for (Index x = 0; x < width; ++x) mixed[x] += tap * row[x];
            }
            pad_row(mixed.data(), width, left, padded.data());
            Real *part = parts[j].data();
            std::fill(parts[j].begin(), parts[j].end(), Real(0));
            for (int k = 0; k < horizontal.size; ++k) {
                const Real tap = static_cast<Real>(horizontal.taps[k]);
                if (tap == 0) continue;
                for (Index x = 0; x < columns; ++x) part[x] += tap * padded[x + k];
            }
        }
    }

    // The adjoint along the row of one part, into `out` of the image's width.
    void adjoint_row(int j, Real *out) {
        const Stencil &horizontal = stencil(order - j);
        const Index reach = horizontal.size / 2 - on_cells;
        const Real sign = (order - j) % 2 ? Real(-1) : Real(1);
        const Real *part = parts[j].data();
        const auto continued = [&](Index x) {
            const Reflected at = reflect_field(x, columns, on_cells);
            return at.flipped ? sign * part[at.index] : part[at.index];
        };
        std::copy(part, part + columns, padded.data() + reach);
        for (Index x = 1; x <= reach; ++x) {
            padded[reach - x] = continued(-x);
            padded[reach + columns - 1 + x] = continued(columns - 1 + x);
        }
        std::fill(out, out + width, Real(0));
        for (int k = 0; k < horizontal.size; ++k) {
            const Real tap = static_cast<Real>(horizontal.taps[horizontal.size - 1 - k]);
            if (tap == 0) continue;
            for (Index x = 0; x < width; ++x) out[x] += tap * padded[x + k];
        }
    }
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
