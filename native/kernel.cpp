// The step, compiled once for each instruction set: INTEGRODIFF_ISA names the namespace.
//
// All loops over a row are written so that the compiler vectorises them. Reading order: step().

#include "dispatch.hpp"
#include "pieces.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// ---- order one: Haar cells ----

template <class Real>
void add_structure(const Real *smoothed, const Shape &s, Real weight, Real *couplings, Team &team) {
    const Index cells = (s.height + 1) * (s.width + 1);
    const Real share = weight / static_cast<Real>(4 * s.channels);  // X and Y have a factor 1/2
    team.rows(s.height + 1, [&](Index first, Index last) {
        CellRows<Real> rows(s.width);
        for (Index y = first; y < last; ++y) {
            Real *xx = couplings + y * (s.width + 1), *xy = xx + cells, *yy = xy + cells;
            for (Index c = 0; c < s.channels; ++c) {
                rows.load(smoothed + c * s.height * s.width, y, s.height, s.width);
                const Real *up = rows.up.data(), *down = rows.down.data();
                for (Index x = 0; x <= s.width; ++x) {
                    const Real across = (up[x + 1] - up[x]) + (down[x + 1] - down[x]);
                    const Real along = (down[x] - up[x]) + (down[x + 1] - up[x + 1]);
                    xx[x] += share * across * across;
                    xy[x] += share * across * along;
                    yy[x] += share * along * along;
                }
            }
        }
    });
}

template <class Real>
struct TensorRow {
    std::vector<Real> xx, xy, yy;

    explicit TensorRow(Index count) : xx(count), xy(count), yy(count) {}

    // g(J) in closed form: see stages/diffusion_tensor.py.
    void exponentiate(const Real *jxx, const Real *jxy, const Real *jyy, Index count, Real rate,
                      bool tensor) {
        if (!tensor) {
            for (Index x = 0; x < count; ++x) {
                const Real g = exponential(-rate * (jxx[x] + jyy[x]));
                xx[x] = g;
                xy[x] = 0 * g;
                yy[x] = g;
            }
            return;
        }
        const Real tiny = static_cast<Real>(1e-18);
        for (Index x = 0; x < count; ++x) {
            const Real mean = (jxx[x] + jyy[x]) / 2, deviation = (jxx[x] - jyy[x]) / 2;
            const Real distance = std::sqrt(deviation * deviation + jxy[x] * jxy[x]);
            Real smaller = mean - distance;
            smaller = smaller > 0 ? smaller : 0 * smaller;
            const Real larger = exponential(-rate * smaller);
            const Real ratio = exponential(-2 * rate * distance);
            const Real half_sum = larger * (1 + ratio) / 2;
            const bool apart = distance > tiny;
            const Real divisor = apart ? 2 * distance : static_cast<Real>(1);
            const Real slope = larger * (apart ? (1 - ratio) / divisor : rate);
            xx[x] = half_sum - slope * deviation;
            xy[x] = -slope * jxy[x];
            yy[x] = half_sum + slope * deviation;
        }
    }
};

template <class Real>
void add_first_order_flow(const Real *smoothed, const Shape &s, const Real *couplings, Real weight,
                          Real contrast, bool tensor, Real theta, Real *flow, Team &team) {
    const Index cells = (s.height + 1) * (s.width + 1), across = s.width + 1;
    const Real rate = 1 / (2 * contrast * contrast), twisting = 1 - 2 * theta;
    const Real factor = -weight / 4;  // a half from the coefficients, another from their adjoint
    team.rows(s.height, [&](Index first, Index last) {
        CellRows<Real> rows(s.width);
        TensorRow<Real> d(across);
        std::vector<Real> fx(across), fy(across), fe(across), lower(s.width * s.channels);
        // A band of rows of pixels needs one more row of cells.
        for (Index y = first; y <= last; ++y) {
            const Real *j = couplings + y * across;
            d.exponentiate(j, j + cells, j + 2 * cells, across, rate, tensor);
            for (Index c = 0; c < s.channels; ++c) {
                rows.load(smoothed + c * s.height * s.width, y, s.height, s.width);
                const Real *up = rows.up.data(), *down = rows.down.data();
                for (Index x = 0; x < across; ++x) {
                    const Real ul = up[x], ur = up[x + 1], dl = down[x], dr = down[x + 1];
                    const Real gx = (ur - ul) + (dr - dl), gy = (dl - ul) + (dr - ur);
                    const Real ge = (ul - ur) + (dr - dl);
                    const Real kappa = twisting * (d.xx[x] + d.yy[x] - 2 * std::abs(d.xy[x]));
                    fx[x] = d.xx[x] * gx + d.xy[x] * gy;
                    fy[x] = d.xy[x] * gx + d.yy[x] * gy;
                    fe[x] = kappa * ge;
                }
                Real *from_above = lower.data() + c * s.width;
                if (y > first) {
                    Real *out = flow + (c * s.height + y - 1) * s.width;
                    for (Index x = 0; x < s.width; ++x)
                        out[x] += factor * (from_above[x] + (fx[x] - fy[x] - fe[x]) +
                                            (-fx[x + 1] - fy[x + 1] + fe[x + 1]));
                }
                for (Index x = 0; x < s.width; ++x)
                    from_above[x] =
                        (fx[x] + fy[x] + fe[x]) + (-fx[x + 1] + fy[x + 1] - fe[x + 1]);
            }
        }
    });
}

// ---- order one: the nonnegativity scheme at the pixels ----

template <class Real>
void add_central_structure(const Real *smoothed, const Shape &s, Real weight, Real *couplings,
                           Index stride, Team &team) {
    const Real share = weight / static_cast<Real>(4 * s.channels);
    team.rows(s.height, [&](Index first, Index last) {
        std::vector<Real> padded(s.width + 2);
        for (Index y = first; y < last; ++y) {
            Real *xx = couplings + y * s.width, *xy = xx + stride, *yy = xy + stride;
            for (Index c = 0; c < s.channels; ++c) {
                const Real *plane = smoothed + c * s.height * s.width;
                const Real *up = plane + reflect(y - 1, s.height) * s.width;
                const Real *down = plane + reflect(y + 1, s.height) * s.width;
                pad_row(plane + y * s.width, s.width, 1, padded.data());
                for (Index x = 0; x < s.width; ++x) {
                    const Real across = padded[x + 2] - padded[x], along = down[x] - up[x];
                    xx[x] += share * across * across;
                    xy[x] += share * across * along;
                    yy[x] += share * along * along;
                }
            }
        }
    });
}

template <class Real>
void add_nonnegativity_flow(const Real *smoothed, const Shape &s, const Real *couplings, Index stride,
                            Real weight, Real contrast, bool tensor, Real *flow, Team &team) {
    const Real rate = 1 / (2 * contrast * contrast);
    // Exchange with the neighbours in the eight directions; those beyond the border take no part.
    constexpr int directions[8][2] = {{0, -1}, {0, 1},  {-1, 0}, {1, 0},
                                      {-1, -1}, {1, 1}, {-1, 1}, {1, -1}};
    team.rows(s.height, [&](Index first, Index last) {
        std::vector<TensorRow<Real>> rows(3, TensorRow<Real>(s.width));
        std::vector<std::vector<Real>> shares(12, std::vector<Real>(s.width));
        std::vector<Index> held(3, -1);
        // Weights of a row along x, along y, and along the two diagonals.
        const auto weights_of = [&](Index y) {
            std::vector<Real> *row = shares.data() + 4 * (y % 3);
            if (held[y % 3] == y) return row;
            TensorRow<Real> &d = rows[y % 3];
            const Real *j = couplings + y * s.width;
            d.exponentiate(j, j + stride, j + 2 * stride, s.width, rate, tensor);
            for (Index x = 0; x < s.width; ++x) {
                const Real size = std::abs(d.xy[x]);
                row[0][x] = d.xx[x] - size;
                row[1][x] = d.yy[x] - size;
                row[2][x] = (size + d.xy[x]) / 2;
                row[3][x] = (size - d.xy[x]) / 2;
            }
            held[y % 3] = y;
            return row;
        };
        for (Index y = first; y < last; ++y) {
            for (const auto &direction : directions) {
                const Index below = y + direction[0], right = direction[1];
                if (below < 0 || below >= s.height) continue;
                const int kind = direction[0] == 0 ? 0
                                 : right == 0      ? 1
                                 : direction[0] == right ? 2
                                                         : 3;
                const std::vector<Real> &here = weights_of(y)[kind];
                const std::vector<Real> &there = weights_of(below)[kind];
                const Index from = std::max<Index>(0, -right);
                const Index to = s.width - std::max<Index>(0, right);
                for (Index c = 0; c < s.channels; ++c) {
                    const Real *plane = smoothed + c * s.height * s.width;
                    const Real *own = plane + y * s.width, *other = plane + below * s.width + right;
                    Real *out = flow + (c * s.height + y) * s.width;
                    for (Index x = from; x < to; ++x)
                        out[x] += weight * (here[x] + there[x + right]) / 2 * (other[x] - own[x]);
                }
            }
        }
    });
}

// ---- orders two to four ----

template <class Real>
void add_energy(const Real *smoothed, const Shape &s, int order, Real weight, Real *energy,
                Team &team) {
    const Index rows = s.height + order % 2;
    team.rows(rows, [&](Index first, Index last) {
        Derivatives<Real> d(order, s.height, s.width);
        for (Index y = first; y < last; ++y) {
            Real *out = energy + y * d.columns;
            for (Index c = 0; c < s.channels; ++c) {
                d.load(smoothed + c * s.height * s.width, y);
                for (int j = 0; j <= order; ++j) {
                    const Real share =
                        weight * static_cast<Real>(binomial(order, j)) / static_cast<Real>(s.channels);
                    const Real *part = d.parts[j].data();
                    for (Index x = 0; x < d.columns; ++x) out[x] += share * part[x] * part[x];
                }
            }
        }
    });
}

template <class Real>
void add_higher_order_flow(const Real *smoothed, const Shape &s, const Real *energy, int order,
                           Real weight, Real contrast, Real *flow, Team &team) {
    const bool cells = order % 2 == 1;
    const Index rows = s.height + cells;
    const Real rate = 1 / (2 * contrast * contrast);
    constexpr Index ring = 6;  // rows of fluxes that a row of pixels can need
    team.rows(s.height, [&](Index first, Index last) {
        Derivatives<Real> d(order, s.height, s.width);
        std::vector<Real> factor(d.columns);
        std::vector<Real> fluxes(ring * (order + 1) * s.width);
        std::vector<Index> held(ring, -1);
        for (Index c = 0; c < s.channels; ++c) {
            const Real *plane = smoothed + c * s.height * s.width;
            std::fill(held.begin(), held.end(), Index(-1));
            const auto flux_row = [&](Index y) {
                Real *row = fluxes.data() + (y % ring) * (order + 1) * s.width;
                if (held[y % ring] != y) {
                    d.load(plane, y);
                    for (Index x = 0; x < d.columns; ++x)
                        factor[x] = exponential(-rate * energy[y * d.columns + x]);
                    for (int j = 0; j <= order; ++j) {
                        Real *part = d.parts[j].data();
                        for (Index x = 0; x < d.columns; ++x) part[x] *= factor[x];
                        d.adjoint_row(j, row + j * s.width);
                    }
                    held[y % ring] = y;
                }
                return row;
            };
            for (Index y = first; y < last; ++y) {
                Real *out = flow + (c * s.height + y) * s.width;
                for (int j = 0; j <= order; ++j) {
                    const Stencil &vertical = d.stencil(j);
                    const Index reach = vertical.size / 2 - cells;
                    for (int k = 0; k < vertical.size; ++k) {
                        const double tap = vertical.taps[vertical.size - 1 - k];
                        if (tap == 0) continue;
                        const Reflected at = reflect_field(y - reach + k, rows, cells);
                        const double sign = at.flipped && j % 2 ? -1 : 1;
                        const Real share =
                            -weight * static_cast<Real>(sign * tap * binomial(order, j));
                        const Real *row = flux_row(at.index) + j * s.width;
                        for (Index x = 0; x < s.width; ++x) out[x] += share * row[x];
                    }
                }
            }
        }
    });
}

// ---- the step ----

template <class Real>
void multiply(Real *values, const Real *factors, Index count, Team &team) {
    team.rows(count, [&](Index first, Index last) {
        for (Index k = first; k < last; ++k) values[k] *= factors[k];
    });
}

template <class Real>
void step(const Step<Real> &task, Real *image, const Real *original) {
    const Shape &s = task.shape;
    const Index size = s.channels * s.height * s.width;
    const Index cells = (s.height + 1) * (s.width + 1);
    const Index scales = static_cast<Index>(task.taps->size());
    Workspace<Real> &w = *task.workspace;
    w.smoothed.resize(scales * size);
    w.flow.resize(size);

    // Stage 1: the image at every scale, each from the one before.
    to_all_scales(image, w.smoothed.data(), s.channels, s, *task.taps, *task.team);

    // Stages 2 and 3: structure tensor and energies.
    Index planes = 0;
    for (const Term &term : *task.terms) planes += term.order == 1 ? 3 : 1;
    w.couplings.assign(planes * cells, Real(0));
    std::vector<Real *> couplings;
    Real *next = w.couplings.data();
    for (const Term &term : *task.terms) {
        couplings.push_back(next);
        for (Index i = 0; i < scales; ++i) {
            const Real weight = static_cast<Real>(term.coupling_weights[i]);
            const Real *smoothed = w.smoothed.data() + i * size;
            if (weight == 0) continue;
            if (term.order == 1 && task.cells)
                add_structure(smoothed, s, weight, next, *task.team);
            else if (term.order == 1)
                add_central_structure(smoothed, s, weight, next, cells, *task.team);
            else
                add_energy(smoothed, s, term.order, weight, next, *task.team);
        }
        const bool on_cells = term.order == 1 ? task.cells : term.order % 2 == 1;
        if (const Real *factors = on_cells ? task.local.cells : task.local.pixels)
            for (Index plane = 0; plane < (term.order == 1 ? 3 : 1); ++plane)
                multiply(next + plane * cells, factors, on_cells ? cells : s.height * s.width,
                         *task.team);
        next += (term.order == 1 ? 3 : 1) * cells;
    }

    // Stages 4 and 5: the flow of each scale takes the place of the smoothed image.
    std::vector<bool> flows(scales, false);
    for (Index i = 0; i < scales; ++i) {
        Real *smoothed = w.smoothed.data() + i * size;
        std::fill(w.flow.begin(), w.flow.end(), Real(0));
        for (std::size_t t = 0; t < task.terms->size(); ++t) {
            const Term &term = (*task.terms)[t];
            const Real weight = static_cast<Real>(term.flux_weights[i]);
            const Real contrast = static_cast<Real>(term.contrasts[i]);
            if (weight == 0) continue;
            flows[i] = true;
            if (term.order == 1 && !task.cells)
                add_nonnegativity_flow(smoothed, s, couplings[t], cells, weight, contrast,
                                       term.tensor, w.flow.data(), *task.team);
            else if (term.order == 1)
                add_first_order_flow(smoothed, s, couplings[t], weight, contrast, term.tensor,
                                     static_cast<Real>(task.theta), w.flow.data(), *task.team);
            else
                add_higher_order_flow(smoothed, s, couplings[t], term.order, weight, contrast,
                                      w.flow.data(), *task.team);
        }
        if (flows[i]) std::copy(w.flow.begin(), w.flow.end(), smoothed);
    }

    // Stage 8: back to the finest scale, and the step itself.
    const Real *total = w.flow.data();
    to_finest_scale(w.smoothed.data(), flows, w.flow.data(), s.channels, s, *task.taps, *task.team);
    const Real tau = static_cast<Real>(task.tau), pull = static_cast<Real>(task.pull);
    for (Index k = 0; k < size; ++k) {
        Real change = total[k];
        if (pull != 0) change += pull * (original[k] - image[k]);
        image[k] += tau * change;
    }
}

template void step(const Step<float> &, float *, const float *);
template void step(const Step<double> &, double *, const double *);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
