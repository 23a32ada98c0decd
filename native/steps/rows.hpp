// Rows of an image with margins, and how they continue beyond the border.
#pragma once

#include <algorithm>

#include "../core/run.hpp"
#include "../simd/vectors.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Rows have this many numbers to spare on both sides, for reflection and for whole vectors.
constexpr Index margin = 32;
static_assert(longest_radius < margin && longest_half_kernel + 3 < margin, "kernels fit the margins");

// Numbers from one row to the next.
template <class Real>
constexpr Index padded_width(Index width) {
    return whole_vectors<Real>(width) + 2 * margin + 32;
}

// A row with margins of its own, or of a plane.
template <class Real>
Real *take_rows(Arena<Real> &arena, Index width, Index rows = 1) {
    return arena.take(rows * padded_width<Real>(width) - margin, margin);
}

// ---- reflection ----

// Half-sample reflection: d c b a | a b c d.
inline Index reflect(Index i, Index size) {
    if (i < 0) i = -1 - i;
    if (i < size) return i;
    if (i >= 2 * size) i %= 2 * size;  // A division takes longer than a vector of a row.
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

// Continue a row of `width` pixels by reflection.
template <class Real>
void reflect_margins(Real *row, Index width, Index reach) {
    Real *end = row + width;
    const Index plain = std::min(reach, width);
    for (Index i = 0; i < plain; ++i) {
        row[-1 - i] = row[i];
        end[i] = end[-1 - i];
    }
    for (Index i = plain; i < reach; ++i) {
        row[-1 - i] = row[reflect(-1 - i, width)];
        end[i] = row[reflect(width + i, width)];
    }
}

// ---- images that come in and go out ----

// Tall narrow images are turned: most of a short row would be margins.
inline bool is_turned(const Shape &s) { return s.width < 64 && s.height > s.width; }

inline Shape turned(const Shape &s) {
    return is_turned(s) ? Shape{s.channels, s.width, s.height} : s;
}

// Copy a plane of `height` x `width` numbers into rows with margins, or its transpose.
template <class Real>
void copy_in(const Real *in, Index height, Index width, bool transpose, Real *out) {
    const Index stride = padded_width<Real>(width);
    for (Index y = 0; y < height; ++y)
        if (!transpose)
            std::copy(in + y * width, in + (y + 1) * width, out + y * stride);
        else
            for (Index x = 0; x < width; ++x) out[y * stride + x] = in[x * height + y];
}

template <class Real>
void copy_out(const Real *in, Index height, Index width, bool transpose, Real *out) {
    const Index stride = padded_width<Real>(width);
    for (Index y = 0; y < height; ++y)
        if (!transpose)
            std::copy(in + y * stride, in + y * stride + width, out + y * width);
        else
            for (Index x = 0; x < width; ++x) out[x * height + y] = in[y * stride + x];
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
