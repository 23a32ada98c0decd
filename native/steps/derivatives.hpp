// Derivatives of order two to four, as in integrodiff/stages/derivatives.py, and their adjoint.
#pragma once

#include "../simd/exponential.hpp"
#include "rows.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

struct Stencil {
    int size;
    double taps[5];
};

// Derivatives 0 to 4 at the pixels, and 0 to 3 at the cells between them.
constexpr Stencil stencils_on_pixels[5] = {
    {1, {1}},
    {3, {-0.5, 0, 0.5}},
    {3, {1, -2, 1}},
    {5, {-0.5, 1, 0, -1, 0.5}},
    {5, {1, -4, 6, -4, 1}},
};
constexpr Stencil stencils_on_cells[4] = {
    {2, {0.5, 0.5}},
    {2, {-1, 1}},
    {4, {0.5, -0.5, -0.5, 0.5}},
    {4, {-1, 3, -3, 1}},
};

constexpr int highest_order = 4;

inline double binomial(int n, int k) {
    double result = 1;
    for (int i = 0; i < k; ++i) result = result * (n - i) / (i + 1);
    return result;
}

// A place for all derivatives of one order in one row of pixels or cells.
template <class Real>
class Derivatives {
  public:
    Real *parts[highest_order + 1];

    // Memory for any order.
    void take_memory(Arena<Real> &arena, const Shape &s) {
        height_ = s.height;
        width_ = s.width;
        for (Real *&part : parts) part = take_rows(arena, s.width + 1);
        mixed_ = take_rows(arena, s.width);
        ring_ = arena.take(ring * (highest_order + 1) * s.width);
    }

    void set_order(int order) {
        order_ = order;
        on_cells_ = order % 2 == 1;
        columns_ = width_ + on_cells_;
    }
    int order() const { return order_; }
    Index columns() const { return columns_; }
    Index rows() const { return height_ + on_cells_; }

    // parts[j] is the derivative of order - j along the row and j across, without its factor.
    void load(const Real *plane, Index y) {
        const Index stride = padded_width<Real>(width_);
        for (int j = 0; j <= order_; ++j) {
            const Stencil &vertical = stencil(j), &horizontal = stencil(order_ - j);
            const Index up = vertical.size / 2, left = horizontal.size / 2;
            std::fill(mixed_, mixed_ + width_, Real(0));
            for (int k = 0; k < vertical.size; ++k)
                add(vertical.taps[k], plane + reflect(y - up + k, height_) * stride, mixed_, width_);
            reflect_margins(mixed_, width_, left);
            std::fill(parts[j], parts[j] + columns_, Real(0));
            for (int k = 0; k < horizontal.size; ++k)
                add(horizontal.taps[k], mixed_ - left + k, parts[j], columns_);
        }
    }

    // Add `weight` times the sum of squares of the parts, each with its binomial coefficient.
    void add_energy(Real weight, Real *energy) const {
        for (int j = 0; j <= order_; ++j) {
            const Real share = weight * static_cast<Real>(binomial(order_, j));
            for (Index x = 0; x < columns_; ++x)
                energy[x] = multiply_add(share * parts[j][x], parts[j][x], energy[x]);
        }
    }

    // Its derivative, for the derivatives of the parts and of the weight.
    void add_energy_slope(const Derivatives &change, Real weight, Real slope, Real *energy) const {
        for (int j = 0; j <= order_; ++j) {
            const Real share = static_cast<Real>(binomial(order_, j)), twice = 2 * share * weight;
            for (Index x = 0; x < columns_; ++x)
                energy[x] = multiply_add(
                    multiply_add(twice, change.parts[j][x], share * slope * parts[j][x]),
                    parts[j][x], energy[x]);
        }
    }

    // Of order two: add `weight` times the square of the Hessian, as half its trace, half the
    // difference of its diagonal, and its other entry.
    void add_hessian(Real weight, Real *mean, Real *deviation, Real *other) const {
        const Real half = weight / 2;
        for (Index x = 0; x < columns_; ++x) {
            const Real xx = parts[0][x], xy = parts[1][x], yy = parts[2][x];
            const Real sum = xx + yy;
            mean[x] = multiply_add(half, xx * xx + 2 * xy * xy + yy * yy, mean[x]);
            deviation[x] = multiply_add(half * (xx - yy), sum, deviation[x]);
            other[x] = multiply_add(weight * xy, sum, other[x]);
        }
    }

    // Of order two: A H A for a row of tensors A = (a, b; b, c).
    void gate_hessian(const Real *a, const Real *b, const Real *c) {
        for (Index x = 0; x < columns_; ++x) {
            const Real xx = parts[0][x], xy = parts[1][x], yy = parts[2][x];
            const Real first = a[x] * xx + b[x] * xy, across = a[x] * xy + b[x] * yy;
            const Real under = b[x] * xx + c[x] * xy, last = b[x] * xy + c[x] * yy;
            parts[0][x] = first * a[x] + across * b[x];
            parts[1][x] = first * b[x] + across * c[x];
            parts[2][x] = under * b[x] + last * c[x];
        }
    }

    // Add minus `weight` times the adjoint of fluxes to the rows of `flow` from `first` to `last`.
    // `load_fluxes(y)` leaves row y of the fluxes in `parts`.
    template <class LoadFluxes>
    void add_adjoint(const LoadFluxes &load_fluxes, Index first, Index last, Real weight,
                     Real *flow) {
        std::fill(held_, held_ + ring, Index(-1));
        for (Index y = first; y < last; ++y)
            for (int j = 0; j <= order_; ++j) {
                const Stencil &vertical = stencil(j);
                const Index reach = vertical.size / 2 - on_cells_;
                for (int k = 0; k < vertical.size; ++k) {
                    const double tap = vertical.taps[vertical.size - 1 - k];
                    if (tap == 0) continue;
                    const Reflected at = reflect_field(y - reach + k, rows(), on_cells_);
                    const double sign = at.flipped && j % 2 ? 1 : -1;
                    const Real *row = adjoint_rows(at.index, load_fluxes) + j * width_;
                    const Real share = weight * static_cast<Real>(sign * tap * binomial(order_, j));
                    Real *out = flow + y * padded_width<Real>(width_);
                    for (Index x = 0; x < width_; ++x) out[x] = multiply_add(share, row[x], out[x]);
                }
            }
    }

  private:
    static constexpr Index ring = 6;  // rows of fluxes that a row of pixels can need

    const Stencil &stencil(int derivative) const {
        return on_cells_ ? stencils_on_cells[derivative] : stencils_on_pixels[derivative];
    }

    static void add(double tap, const Real *from, Real *to, Index count) {
        const Real factor = static_cast<Real>(tap);
        if (factor == 0) return;
        for (Index x = 0; x < count; ++x) to[x] = multiply_add(factor, from[x], to[x]);
    }

    // The adjoint along row y of all parts of the fluxes, one behind the other.
    template <class LoadFluxes>
    const Real *adjoint_rows(Index y, const LoadFluxes &load_fluxes) {
        Real *rows = ring_ + (y % ring) * (highest_order + 1) * width_;
        if (held_[y % ring] != y) {
            load_fluxes(y);
            for (int j = 0; j <= order_; ++j) adjoint_row(j, rows + j * width_);
            held_[y % ring] = y;
        }
        return rows;
    }

    void adjoint_row(int j, Real *out) {
        const Stencil &horizontal = stencil(order_ - j);
        const Index reach = horizontal.size / 2 - on_cells_;
        const Real sign = (order_ - j) % 2 ? Real(-1) : Real(1);
        Real *part = parts[j];
        const auto continued = [&](Index x) {
            const Reflected at = reflect_field(x, columns_, on_cells_);
            return at.flipped ? sign * part[at.index] : part[at.index];
        };
        for (Index x = 1; x <= reach; ++x) {
            part[-x] = continued(-x);
            part[columns_ - 1 + x] = continued(columns_ - 1 + x);
        }
        std::fill(out, out + width_, Real(0));
        for (int k = 0; k < horizontal.size; ++k)
            add(horizontal.taps[horizontal.size - 1 - k], part - reach + k, out, width_);
    }

    int order_ = 0;
    bool on_cells_ = false;
    Index height_ = 0, width_ = 0, columns_ = 0;
    Real *mixed_ = nullptr, *ring_ = nullptr;
    Index held_[ring];
};

// exp(-energy / (2 lambda^2)) in one row of `count` numbers.
template <class Real>
void gate_row(const Real *energy, const Rate<Real> &rate, Index count, Real *gates) {
    for (Index x = 0; x < count; x += lanes<Real>)
        store(gates + x, gate_of<Real, Accuracy::full>(rate, load(energy + x)));
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
