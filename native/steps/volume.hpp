// Structure tensor, g(J) and fluxes of the 2 x 2 x 2 Haar cells of volumes, a vector of cells at a
// time, as in integrodiff/stages/haar_volume.py and eigenframe.py.
#pragma once

#include "../simd/exponential.hpp"
#include "blur.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Four times the seven coefficients of a vector of cells. `rows` are the rows of voxels of a cell, in
// the order (slice, row) = (0, 0), (0, 1), (1, 0), (1, 1), and point to the voxels on the right.
template <class Real>
struct VolumeCell {
    using V = Packed<Real>;
    V x, y, z, xy, xz, yz, xyz;

    VolumeCell(const Real *const *rows, Index at) {
        V change[4], sum[4];
        for (int k = 0; k < 4; ++k) {
            const V left = load(rows[k] + at - 1), right = load(rows[k] + at);
            change[k] = right - left;
            sum[k] = right + left;
        }
        const V near = change[0] + change[1], far = change[2] + change[3];
        const V near_twist = change[1] - change[0], far_twist = change[3] - change[2];
        x = near + far;
        xz = far - near;
        xy = near_twist + far_twist;
        xyz = far_twist - near_twist;
        const V near_step = sum[1] - sum[0], far_step = sum[3] - sum[2];
        y = near_step + far_step;
        yz = far_step - near_step;
        z = (sum[2] - sum[0]) + (sum[3] - sum[1]);
    }
};

// What the cells of a vector give to the voxels on their left and right, in the order of the rows.
template <class Real>
struct VolumeFlux {
    using V = Packed<Real>;
    V left[4], right[4];

    explicit VolumeFlux(const VolumeCell<Real> &f) {
        const V a = f.x - f.xz, b = f.x + f.xz, c = f.xy - f.xyz, d = f.xy + f.xyz;
        const V change[4] = {a - c, a + c, b - d, b + d};
        const V e = f.y - f.yz, g = f.y + f.yz;
        const V sum[4] = {-e - f.z, e - f.z, f.z - g, f.z + g};
        for (int k = 0; k < 4; ++k) {
            left[k] = sum[k] - change[k];
            right[k] = sum[k] + change[k];
        }
    }
};

// A symmetric 3 x 3 tensor for each cell of a vector.
template <class Real>
struct Symmetric {
    using V = Packed<Real>;
    V xx{}, xy{}, xz{}, yy{}, yz{}, zz{};

    void add(const VolumeCell<Real> &cell, Real weight) {
        const V x = weight * cell.x, y = weight * cell.y;
        xx = multiply_add(x, cell.x, xx);
        xy = multiply_add(x, cell.y, xy);
        xz = multiply_add(x, cell.z, xz);
        yy = multiply_add(y, cell.y, yy);
        yz = multiply_add(y, cell.z, yz);
        zz = multiply_add(weight * cell.z, cell.z, zz);
    }

    // The twists across slices, rows and columns.
    void add_twists(const VolumeCell<Real> &cell, Real weight, const Real *shares) {
        const V z = weight * shares[0] * cell.xz, y = weight * shares[1] * cell.xy;
        const V x = weight * shares[2] * cell.xy;
        xx = multiply_add(z, cell.xz, multiply_add(y, cell.xy, xx));
        xy = multiply_add(z, cell.yz, xy);
        xz = multiply_add(y, cell.yz, xz);
        yy = multiply_add(weight * shares[0] * cell.yz, cell.yz, multiply_add(x, cell.xy, yy));
        yz = multiply_add(x, cell.xz, yz);
        zz = multiply_add(weight * shares[1] * cell.yz, cell.yz,
                          multiply_add(weight * shares[2] * cell.xz, cell.xz, zz));
    }
};

template <class Real>
struct Vector3 {
    using V = Packed<Real>;
    V x, y, z;
};

template <class Real>
inline Packed<Real> dot(const Vector3<Real> &a, const Vector3<Real> &b) {
    return multiply_add(a.x, b.x, multiply_add(a.y, b.y, a.z * b.z));
}

template <class Real>
inline Vector3<Real> cross(const Vector3<Real> &a, const Vector3<Real> &b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

// cos(arccos(r) / 3) for r from 0 to 1: the largest root of 4 x^3 - 3 x = r, by Newton's method. The
// error of the first guess is below 2e-3, and each step squares it and doubles that.
template <class Real>
inline Packed<Real> cosine_of_third(Packed<Real> r) {
    using V = Packed<Real>;
    V x = multiply_add(multiply_add(broadcast(Real(-0.032692)), r, broadcast(Real(1.0 / 6))), r,
                       broadcast(Real(0.8660254037844386)));
    for (int k = 0; k < (sizeof(Real) == 4 ? 2 : 4); ++k) {
        const V square = x * x;
        x -= (x * (4 * square - 3) - r) / (12 * square - 3);
    }
    return x;
}

// Eigenvalues of a tensor, in no order, and the eigenvectors of the second and the third.
template <class Real>
struct Frame {
    using V = Packed<Real>;
    V values[3];
    Vector3<Real> second, third;

    explicit Frame(const Symmetric<Real> &j) {
        const V zero{}, one = broadcast(Real(1));
        const V mean = (j.xx + j.yy + j.zz) * Real(1.0 / 3);
        V size = absolute<Real>(j.xx);
        size = larger_of(larger_of(size, absolute<Real>(j.yy)), absolute<Real>(j.zz));
        size = larger_of(larger_of(size, absolute<Real>(j.xy)), absolute<Real>(j.xz));
        size = larger_of(size, absolute<Real>(j.yz));
        const Real tiny = sizeof(Real) == 4 ? Real(1e-30) : Real(1e-290);
        const Real eps = sizeof(Real) == 4 ? Real(1.2e-7) : Real(2.3e-16);
        const V unit = size > tiny ? one / size : one;
        V xx = (j.xx - mean) * unit, yy = (j.yy - mean) * unit, zz = (j.zz - mean) * unit;
        V xy = j.xy * unit, xz = j.xz * unit, yz = j.yz * unit;
        const V square = (xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)) * Real(1.0 / 6);
        // Where all eigenvalues agree up to rounding, the frame is that of the axes.
        V usable = size > tiny ? square : zero;
        const V spread = square_root(usable > eps * eps ? usable : one);
        const V inverse = one / spread;
        xx *= inverse, xy *= inverse, xz *= inverse, yy *= inverse, yz *= inverse, zz *= inverse;
        const V ratio = (xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) +
                         xz * (xy * yz - yy * xz)) * Real(0.5);
        V isolated = 2 * cosine_of_third<Real>(smaller_of(one, absolute<Real>(ratio)));
        isolated = ratio < zero ? -isolated : isolated;

        const Vector3<Real> rows[3] = {{xx - isolated, xy, xz}, {xy, yy - isolated, yz},
                                       {xz, yz, zz - isolated}};
        Vector3<Real> w = cross(rows[0], rows[1]);
        V longest = dot(w, w);
        for (int k = 0; k < 2; ++k) {
            const Vector3<Real> other = cross(rows[k], rows[2]);
            const V length = dot(other, other);
            w.x = length > longest ? other.x : w.x;
            w.y = length > longest ? other.y : w.y;
            w.z = length > longest ? other.z : w.z;
            longest = length > longest ? length : longest;
        }
        const V over = one / square_root(usable > eps * eps ? longest : one);
        w.x = usable > eps * eps ? w.x * over : one;
        w.y = usable > eps * eps ? w.y * over : zero;
        w.z = usable > eps * eps ? w.z * over : zero;

        // Two unit vectors orthogonal to w: Duff et al., Building an orthonormal basis, revisited.
        const V sign = w.z < zero ? -one : one;
        const V a = -one / (sign + w.z), b = w.x * w.y * a;
        const Vector3<Real> u{one + sign * w.x * w.x * a, sign * b, -sign * w.x};
        const Vector3<Real> v{b, sign + w.y * w.y * a, -w.y};
        const Vector3<Real> first{xx, xy, xz}, middle_row{xy, yy, yz}, last{xz, yz, zz};
        const Vector3<Real> of_u{dot(first, u), dot(middle_row, u), dot(last, u)};
        const Vector3<Real> of_v{dot(first, v), dot(middle_row, v), dot(last, v)};
        const V uu = dot(u, of_u), uv = dot(u, of_v), vv = dot(v, of_v);
        const V middle = (uu + vv) * Real(0.5), deviation = (uu - vv) * Real(0.5);
        const V distance_square = multiply_add(deviation, deviation, uv * uv);
        const V length = square_root(distance_square > tiny ? distance_square : one);
        const V distance = distance_square > tiny ? length : zero;
        const V cosine = distance_square > tiny ? deviation / length : one;
        const V sine = distance_square > tiny ? uv / length : zero;
        const V large = square_root((one + absolute<Real>(cosine)) * Real(0.5));
        const V small = sine / (2 * large);
        const V c = cosine < zero ? small : large, s = cosine < zero ? large : small;
        const V back = usable > eps * eps ? spread * size : zero;
        values[0] = multiply_add(back, middle - distance, mean);
        values[1] = multiply_add(back, middle + distance, mean);
        values[2] = multiply_add(back, isolated, mean);
        second = {multiply_add(c, u.x, s * v.x), multiply_add(c, u.y, s * v.y),
                  multiply_add(c, u.z, s * v.z)};
        third = w;
    }
};

// Numbers of one frame in a row of cells: values, then the two eigenvectors.
constexpr int frame_numbers = 9;

template <class Real>
void store_frame(const Symmetric<Real> &j, bool tensor, Real *const *rows, Index at) {
    if (!tensor) {
        // Negative only by rounding; all three gates are that of the trace.
        store(rows[0] + at, larger_of(Packed<Real>{}, j.xx + j.yy + j.zz));
        return;
    }
    const Frame<Real> frame(j);
    for (int k = 0; k < 3; ++k) store(rows[k] + at, larger_of(Packed<Real>{}, frame.values[k]));
    store(rows[3] + at, frame.second.x);
    store(rows[4] + at, frame.second.y);
    store(rows[5] + at, frame.second.z);
    store(rows[6] + at, frame.third.x);
    store(rows[7] + at, frame.third.y);
    store(rows[8] + at, frame.third.z);
}

// What a scale needs for its fluxes.
template <class Real>
struct VolumeNumbers {
    Rate<Real> rate;
    Real factor;         // minus the weight, a quarter from the coefficients, another from the adjoint
    Real xx, xy, xz, yy, yz, zz;  // of the entries of g(J), by the spacing
    Real twisting, triple;

    VolumeNumbers(double contrast, double weight, double theta, const double *spacing)
        : rate(contrast),
          factor(static_cast<Real>(-weight / 16)),
          xx(static_cast<Real>(1 / (spacing[2] * spacing[2]))),
          xy(static_cast<Real>(1 / (spacing[2] * spacing[1]))),
          xz(static_cast<Real>(1 / (spacing[2] * spacing[0]))),
          yy(static_cast<Real>(1 / (spacing[1] * spacing[1]))),
          yz(static_cast<Real>(1 / (spacing[1] * spacing[0]))),
          zz(static_cast<Real>(1 / (spacing[0] * spacing[0]))),
          twisting(static_cast<Real>(1 - 2 * theta)),
          triple(static_cast<Real>((3 - 12 * theta + 16 * theta * theta) / 6)) {}
};

// The fluxes of a vector of cells. `cell` has their coefficients; `known` is zero at the cells that are
// left out, or null.
template <class Real, bool tensor, Accuracy accuracy>
inline VolumeFlux<Real> volume_flux(const VolumeCell<Real> &cell, Real *const *frame,
                                    const Real *known, Index at, const VolumeNumbers<Real> &n) {
    using V = Packed<Real>;
    Symmetric<Real> d;
    const V factor = known ? n.factor * load(known + at) : broadcast(n.factor);
    const V first = factor * gate_of<Real, accuracy>(n.rate, load(frame[0] + at));
    if constexpr (tensor) {
        const V a = factor * gate_of<Real, accuracy>(n.rate, load(frame[1] + at)) - first;
        const V b = factor * gate_of<Real, accuracy>(n.rate, load(frame[2] + at)) - first;
        const V ax = load(frame[3] + at), ay = load(frame[4] + at), az = load(frame[5] + at);
        const V bx = load(frame[6] + at), by = load(frame[7] + at), bz = load(frame[8] + at);
        const V aax = a * ax, aay = a * ay, bbx = b * bx, bby = b * by;
        d.xx = n.xx * multiply_add(aax, ax, multiply_add(bbx, bx, first));
        d.xy = n.xy * multiply_add(aax, ay, bbx * by);
        d.xz = n.xz * multiply_add(aax, az, bbx * bz);
        d.yy = n.yy * multiply_add(aay, ay, multiply_add(bby, by, first));
        d.yz = n.yz * multiply_add(aay, az, bby * bz);
        d.zz = n.zz * multiply_add(a * az, az, multiply_add(b * bz, bz, first));
    } else {
        d.xx = n.xx * first, d.yy = n.yy * first, d.zz = n.zz * first;
    }
    // The factor of g(J) is negative, and so are these.
    const V of_xy = d.xx + d.yy + 2 * absolute<Real>(d.xy);
    const V of_xz = d.xx + d.zz + 2 * absolute<Real>(d.xz);
    const V of_yz = d.yy + d.zz + 2 * absolute<Real>(d.yz);
    VolumeCell<Real> flux = cell;
    flux.x = multiply_add(d.xx, cell.x, multiply_add(d.xy, cell.y, d.xz * cell.z));
    flux.y = multiply_add(d.xy, cell.x, multiply_add(d.yy, cell.y, d.yz * cell.z));
    flux.z = multiply_add(d.xz, cell.x, multiply_add(d.yz, cell.y, d.zz * cell.z));
    flux.xy = n.twisting * of_xy * cell.xy;
    flux.xz = n.twisting * of_xz * cell.xz;
    flux.yz = n.twisting * of_yz * cell.yz;
    flux.xyz = n.triple * (of_xy + of_xz + of_yz) * cell.xyz;
    return VolumeFlux<Real>(flux);
}

// Fluxes of a row of cells, added to the rows of voxels around it. A row that is null gets nothing.
template <class Real, bool tensor, Accuracy accuracy>
void volume_flux_row(const Real *const *rows, Real *const *frame, const Real *known, Index width,
                     const VolumeNumbers<Real> &numbers, Real *const *flows) {
    const auto at = [&](Index x) {
        return volume_flux<Real, tensor, accuracy>(VolumeCell<Real>(rows, x), frame, known, x,
                                                    numbers);
    };
    VolumeFlux<Real> here = at(0);
    for (Index x = 0; x < width; x += lanes<Real>) {
        const VolumeFlux<Real> next = at(x + lanes<Real>);
        for (int k = 0; k < 4; ++k)
            if (flows[k])
                store(flows[k] + x, load(flows[k] + x) +
                                        (here.right[k] + shifted<Real>(here.left[k], next.left[k])));
        here = next;
    }
}

// What the structure tensor of a step needs: factors of its entries, and shares of twists.
template <class Real>
struct CouplingNumbers {
    Real xx, xy, xz, yy, yz, zz;
    Real twists[3];
    bool twisted = false;

    explicit CouplingNumbers(const Term &term)
        : xx(static_cast<Real>(1 / (term.units[2] * term.units[2]))),
          xy(static_cast<Real>(1 / (term.units[2] * term.units[1]))),
          xz(static_cast<Real>(1 / (term.units[2] * term.units[0]))),
          yy(static_cast<Real>(1 / (term.units[1] * term.units[1]))),
          yz(static_cast<Real>(1 / (term.units[1] * term.units[0]))),
          zz(static_cast<Real>(1 / (term.units[0] * term.units[0]))) {
        for (int axis = 0; axis < 3; ++axis) {
            twists[axis] = static_cast<Real>(term.twists[axis]);
            twisted = twisted || twists[axis] != 0;
        }
    }
};

// The structure tensor of a row of cells: `emit(j, x)` gets that of a vector of them. `rows` has four
// rows of voxels for each scale and channel; `local` has factors of J, `known` is zero at the cells
// that are left out, and both may be null.
template <class Real, class Emit>
inline void structure_row(const Term &term, Index scales, Index channels, const Real *const *rows,
                          const Real *local, const Real *known, Index width,
                          const Emit &emit) {
    const CouplingNumbers<Real> h(term);
    // The coefficients are four times too large.
    const Real share = static_cast<Real>(1.0 / static_cast<double>(16 * channels));
    for (Index x = 0; x <= width; x += lanes<Real>) {
        Symmetric<Real> j;
        for (Index i = 0; i < scales; ++i) {
            const Real weight = static_cast<Real>(term.coupling_weights[i]);
            if (weight == 0) continue;
            for (Index n = i * channels; n < (i + 1) * channels; ++n)
            {
                const VolumeCell<Real> cell(rows + 4 * n, x);
                j.add(cell, weight);
                if (h.twisted) j.add_twists(cell, weight, h.twists);
            }
        }
        Packed<Real> factor = local ? share * load(local + x) : broadcast(share);
        if (known) factor *= load(known + x);
        j.xx *= h.xx * factor, j.xy *= h.xy * factor, j.xz *= h.xz * factor;
        j.yy *= h.yy * factor, j.yz *= h.yz * factor, j.zz *= h.zz * factor;
        emit(j, x);
    }
}

// The frame of the structure tensor of a row of cells.
template <class Real>
void couple_row(const Term &term, Index scales, Index channels, const Real *const *rows,
                const Real *local, const Real *known, Index width, Real *const *frame) {
    structure_row(term, scales, channels, rows, local, known, width,
                  [&](const Symmetric<Real> &j, Index x) { store_frame(j, term.tensor, frame, x); });
}

// ---- the integration scale ----

// Entries xx, xy, xz, yy, yz and zz, and which of them change their sign across the borders of slices,
// rows and columns.
constexpr int tensor_entries = 6;
constexpr bool is_odd[tensor_entries][3] = {{false, false, false}, {false, true, true},
                                            {true, false, true},   {false, false, false},
                                            {true, true, false},   {false, false, false}};

// The same in rows for each entry, to be smoothed.
template <class Real>
void tensor_row(const Term &term, Index scales, Index channels, const Real *const *rows,
                const Real *local, const Real *known, Index width, Real *const *tensor) {
    structure_row(term, scales, channels, rows, local, known, width,
                  [&](const Symmetric<Real> &j, Index x) {
                      store(tensor[0] + x, j.xx);
                      store(tensor[1] + x, j.xy);
                      store(tensor[2] + x, j.xz);
                      store(tensor[3] + x, j.yy);
                      store(tensor[4] + x, j.yz);
                      store(tensor[5] + x, j.zz);
                  });
}

// The frame of tensors in rows; `factor` may be null.
template <class Real>
void frame_row(bool is_tensor, const Real *const *tensor, const Real *factor, Index width,
               Real *const *frame) {
    for (Index x = 0; x <= width; x += lanes<Real>) {
        Symmetric<Real> j;
        Packed<Real> *const entries[tensor_entries] = {&j.xx, &j.xy, &j.xz, &j.yy, &j.yz, &j.zz};
        for (int n = 0; n < tensor_entries; ++n) {
            *entries[n] = load(tensor[n] + x);
            if (factor) *entries[n] *= load(factor + x);
        }
        store_frame(j, is_tensor, frame, x);
    }
}

// Kernels along slices, rows and columns of the integration of each entry of a schedule. One without
// integration has kernels of one tap.
template <class Real>
class VolumeIntegration {
  public:
    explicit VolumeIntegration(const Schedule &schedule) {
        for (const std::vector<Term> &terms : schedule) {
            used_ = used_ || !terms[0].volume_integration.empty();
            for (int axis = 0; axis < 3; ++axis) {
                const Taps &taps = terms[0].volume_integration;
                kernels_.emplace_back(taps.empty() ? std::vector<double>{1.0} : taps[axis]);
                radius_[axis] = std::max(radius_[axis], kernels_.back().radius);
            }
        }
    }

    bool used() const { return used_; }

    // The largest of all entries.
    Index radius(int axis) const { return radius_[axis]; }

    const Kernel<Real> &at(std::size_t step, int axis) const {
        return kernels_[kernels_.size() == 3 ? axis : 3 * step + axis];
    }

  private:
    bool used_ = false;
    Index radius_[3] = {0, 0, 0};
    std::vector<Kernel<Real>> kernels_;
};

// Sum of the rows of cells around one, which are `row_at(index)` and continue by reflection about the
// outermost. `rows` and `taps` are for 2 radius + 1 of them.
template <class Real, class RowAt>
void smooth_across_cells(const Kernel<Real> &kernel, Index at, Index size, bool odd,
                         const RowAt &row_at, Index count, const Real **rows, Real *taps, Real *out) {
    for (Index k = -kernel.radius; k <= kernel.radius; ++k) {
        const Reflected from = reflect_field(at + k, size, true);
        const Real tap = kernel.taps[k < 0 ? -k : k];
        rows[k + kernel.radius] = row_at(from.index);
        taps[k + kernel.radius] = from.flipped && odd ? -tap : tap;
    }
    add_up(rows, taps, 2 * kernel.radius, count, out);
}

// The same along a row with margins, which are filled.
template <class Real>
void smooth_along_cells(const Kernel<Real> &kernel, Index size, bool odd, Index count, Real *row,
                        Real *out) {
    const auto continued = [&](Index x) {
        const Reflected from = reflect_field(x, size, true);
        return from.flipped && odd ? -row[from.index] : row[from.index];
    };
    for (Index x = 1; x <= kernel.radius; ++x) {
        row[-x] = continued(-x);
        row[size - 1 + x] = continued(size - 1 + x);
    }
    correlate_along(row, kernel.taps.data(), kernel.radius, count, out);
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
