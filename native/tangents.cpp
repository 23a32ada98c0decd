// One step of a process together with its derivatives in some parameters, on one image.
//
// A linear stage acts on a tangent as on the image; g(J) needs a derivative of its own, and so does
// smoothing if the scales are parameters. The
// image and its p tangents lie behind each other, and so do their smoothed versions and flows.
// Reading order: step_with_tangents().

#include "dispatch.hpp"
#include "pieces.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

struct Stack {
    const Shape &shape;
    Index parameters;
    Index plane() const { return shape.height * shape.width; }
    Index size() const { return shape.channels * plane(); }
};

// Add to the tangents what comes from a change of the kernel that has smoothed these planes. The
// discrete Gaussian of variance t is exp(t L / 2) with the five-point Laplacian L, so that its
// derivative in t is L / 2 times what it has smoothed.
template <class Real>
void add_change_of_kernel(Real *planes, const Stack &stack, const std::vector<double> &slopes) {
    const Shape &s = stack.shape;
    std::vector<Real> row(s.width), padded(s.width + 2);
    for (Index n = 0; n < s.channels * s.height; ++n) {
        const Real *plane = planes + n / s.height * stack.plane();
        const Index y = n % s.height;
        const Real *here = plane + y * s.width;
        const Real *up = plane + reflect(y - 1, s.height) * s.width;
        const Real *down = plane + reflect(y + 1, s.height) * s.width;
        pad_row(here, s.width, 1, padded.data());
        for (Index x = 0; x < s.width; ++x)
            row[x] = (up[x] - here[x]) + (down[x] - here[x]) + (padded[x] - here[x]) +
                     (padded[x + 2] - here[x]);
        for (Index p = 1; p <= stack.parameters; ++p) {
            const Real factor = static_cast<Real>(slopes[p - 1] / 2);
            Real *tangent = planes + p * stack.size() + n * s.width;
            for (Index x = 0; factor != 0 && x < s.width; ++x) tangent[x] += factor * row[x];
        }
    }
}

// X, Y and E of a row of cells, without their factor 1/2.
template <class Real>
struct GradientRow {
    std::vector<Real> x, y, e;

    explicit GradientRow(Index count) : x(count), y(count), e(count) {}

    void load(const CellRows<Real> &rows, Index count) {
        const Real *up = rows.up.data(), *down = rows.down.data();
        for (Index i = 0; i < count; ++i) {
            x[i] = (up[i + 1] - up[i]) + (down[i + 1] - down[i]);
            y[i] = (down[i] - up[i]) + (down[i + 1] - up[i + 1]);
            e[i] = (up[i] - up[i + 1]) + (down[i + 1] - down[i]);
        }
    }
};

// Add one scale's share to J and to its derivatives: planes xx, xy, yy of value and tangents.
template <class Real>
void add_structure(const Real *smoothed, const Stack &stack, Real weight, const double *slopes,
                   Real *couplings) {
    const Shape &s = stack.shape;
    const Index across = s.width + 1, cells = (s.height + 1) * across;
    const Real share = Real(1) / static_cast<Real>(4 * s.channels);
    CellRows<Real> rows(s.width);
    GradientRow<Real> g(across), d(across);
    for (Index y = 0; y <= s.height; ++y) {
        for (Index c = 0; c < s.channels; ++c) {
            rows.load(smoothed + c * stack.plane(), y, s.height, s.width);
            g.load(rows, across);
            Real *xx = couplings + y * across, *xy = xx + cells, *yy = xy + cells;
            for (Index i = 0; i < across; ++i) {
                xx[i] += share * weight * g.x[i] * g.x[i];
                xy[i] += share * weight * g.x[i] * g.y[i];
                yy[i] += share * weight * g.y[i] * g.y[i];
            }
            for (Index p = 1; p <= stack.parameters; ++p) {
                rows.load(smoothed + p * stack.size() + c * stack.plane(), y, s.height, s.width);
                d.load(rows, across);
                Real *dxx = couplings + 3 * p * cells + y * across;
                Real *dxy = dxx + cells, *dyy = dxy + cells;
                const Real slope = share * static_cast<Real>(slopes[p - 1]), w = share * weight;
                for (Index i = 0; i < across; ++i) {
                    const Real gx = g.x[i], gy = g.y[i];
                    dxx[i] += slope * gx * gx + 2 * w * gx * d.x[i];
                    dxy[i] += slope * gx * gy + w * (gx * d.y[i] + gy * d.x[i]);
                    dyy[i] += slope * gy * gy + 2 * w * gy * d.y[i];
                }
            }
        }
    }
}

// g(J) in a row, with what its derivatives need.
template <class Real>
struct TensorRow {
    std::vector<Real> xx, xy, yy;                          // g(J)
    std::vector<Real> distance, deviation, smaller;        // of J
    std::vector<Real> larger, ratio, slope;                // see stages/diffusion_tensor.py
    std::vector<Real> dxx, dxy, dyy;                       // a derivative of g(J)

    explicit TensorRow(Index n)
        : xx(n), xy(n), yy(n), distance(n), deviation(n), smaller(n), larger(n), ratio(n), slope(n),
          dxx(n), dxy(n), dyy(n) {}

    static constexpr Real tiny = static_cast<Real>(1e-18);

    void exponentiate(const Real *jxx, const Real *jxy, const Real *jyy, Index count, Real rate,
                      bool tensor) {
        if (!tensor) {
            for (Index i = 0; i < count; ++i) {
                const Real g = exponential(-rate * (jxx[i] + jyy[i]));
                xx[i] = g;
                xy[i] = 0;
                yy[i] = g;
            }
            return;
        }
        for (Index i = 0; i < count; ++i) {
            const Real mean = (jxx[i] + jyy[i]) / 2;
            deviation[i] = (jxx[i] - jyy[i]) / 2;
            distance[i] = std::sqrt(deviation[i] * deviation[i] + jxy[i] * jxy[i]);
            const Real lower = mean - distance[i];
            smaller[i] = lower > 0 ? lower : 0 * lower;
            larger[i] = exponential(-rate * smaller[i]);
            ratio[i] = exponential(-2 * rate * distance[i]);
            const bool apart = distance[i] > tiny;
            const Real divisor = apart ? 2 * distance[i] : Real(1);
            slope[i] = larger[i] * (apart ? (1 - ratio[i]) / divisor : rate);
            const Real half_sum = larger[i] * (1 + ratio[i]) / 2;
            xx[i] = half_sum - slope[i] * deviation[i];
            xy[i] = -slope[i] * jxy[i];
            yy[i] = half_sum + slope[i] * deviation[i];
        }
    }

    void differentiate(const Real *jxx, const Real *jxy, const Real *jyy, const Real *txx,
                       const Real *txy, const Real *tyy, Index count, Real rate, Real rate_slope,
                       bool tensor) {
        if (!tensor) {
            for (Index i = 0; i < count; ++i) {
                const Real d =
                    -xx[i] * (rate_slope * (jxx[i] + jyy[i]) + rate * (txx[i] + tyy[i]));
                dxx[i] = d;
                dxy[i] = 0;
                dyy[i] = d;
            }
            return;
        }
        for (Index i = 0; i < count; ++i) {
            const bool apart = distance[i] > tiny;
            const Real inverse = apart ? 1 / distance[i] : Real(0);
            const Real deviating = (txx[i] - tyy[i]) / 2;
            const Real parting = (deviation[i] * deviating + jxy[i] * txy[i]) * inverse;
            const Real falling = smaller[i] > 0 ? (txx[i] + tyy[i]) / 2 - parting : Real(0);
            const Real d_larger = -larger[i] * (rate_slope * smaller[i] + rate * falling);
            const Real d_ratio = -2 * ratio[i] * (rate_slope * distance[i] + rate * parting);
            const Real d_half = (d_larger * (1 + ratio[i]) + larger[i] * d_ratio) / 2;
            const Real d_slope =
                apart ? (d_larger * (1 - ratio[i]) - larger[i] * d_ratio) * inverse / 2 -
                            slope[i] * parting * inverse
                      : d_larger * rate + larger[i] * rate_slope;
            dxx[i] = d_half - d_slope * deviation[i] - slope[i] * deviating;
            dxy[i] = -d_slope * jxy[i] - slope[i] * txy[i];
            dyy[i] = d_half + d_slope * deviation[i] + slope[i] * deviating;
        }
    }
};

// The three fluxes of a row of cells, spread to the rows of pixels above and below it.
template <class Real>
struct FluxRow {
    std::vector<Real> x, y, e;

    explicit FluxRow(Index count) : x(count), y(count), e(count) {}

    void spread(Real *above, Real *below, Index width, Real factor) const {
        for (Index i = 0; above && i < width; ++i)
            above[i] += factor * ((x[i] - y[i] - e[i]) + (-x[i + 1] - y[i + 1] + e[i + 1]));
        for (Index i = 0; below && i < width; ++i)
            below[i] += factor * ((x[i] + y[i] + e[i]) + (-x[i + 1] + y[i + 1] - e[i + 1]));
    }
};

template <class Real>
void add_first_order_flow(const Real *smoothed, const Stack &stack, const Real *couplings,
                          const Slopes &slopes, Real weight, Real contrast, bool tensor, Real theta,
                          Real *flow) {
    const Shape &s = stack.shape;
    const Index across = s.width + 1, cells = (s.height + 1) * across;
    const Real rate = 1 / (2 * contrast * contrast), twisting = 1 - 2 * theta;
    CellRows<Real> rows(s.width);
    GradientRow<Real> g(across), d(across);
    TensorRow<Real> tensor_row(across);
    FluxRow<Real> flux(across), changed(across);
    for (Index y = 0; y <= s.height; ++y) {
        const Real *j = couplings + y * across;
        tensor_row.exponentiate(j, j + cells, j + 2 * cells, across, rate, tensor);
        const TensorRow<Real> &t = tensor_row;
        for (Index c = 0; c < s.channels; ++c) {
            const auto row_of = [&](Index p, Index row) -> Real * {
                if (row < 0 || row >= s.height) return nullptr;
                return flow + p * stack.size() + c * stack.plane() + row * s.width;
            };
            rows.load(smoothed + c * stack.plane(), y, s.height, s.width);
            g.load(rows, across);
            for (Index i = 0; i < across; ++i) {
                const Real kappa = twisting * (t.xx[i] + t.yy[i] - 2 * std::abs(t.xy[i]));
                flux.x[i] = t.xx[i] * g.x[i] + t.xy[i] * g.y[i];
                flux.y[i] = t.xy[i] * g.x[i] + t.yy[i] * g.y[i];
                flux.e[i] = kappa * g.e[i];
            }
            flux.spread(row_of(0, y - 1), row_of(0, y), s.width, -weight / 4);
            for (Index p = 1; p <= stack.parameters; ++p) {
                const Real *dj = couplings + 3 * p * cells + y * across;
                const Real rate_slope =
                    -2 * rate * static_cast<Real>(slopes.contrast[p - 1]) / contrast;
                tensor_row.differentiate(j, j + cells, j + 2 * cells, dj, dj + cells, dj + 2 * cells,
                                         across, rate, rate_slope, tensor);
                rows.load(smoothed + p * stack.size() + c * stack.plane(), y, s.height, s.width);
                d.load(rows, across);
                const Real relative = static_cast<Real>(slopes.flux[p - 1]) / weight;
                for (Index i = 0; i < across; ++i) {
                    const Real side = t.xy[i] < 0 ? Real(-1) : Real(1);
                    const Real kappa = twisting * (t.xx[i] + t.yy[i] - 2 * std::abs(t.xy[i]));
                    const Real turning =
                        twisting * (t.dxx[i] + t.dyy[i] - 2 * side * t.dxy[i]);
                    changed.x[i] = t.dxx[i] * g.x[i] + t.dxy[i] * g.y[i] + t.xx[i] * d.x[i] +
                                   t.xy[i] * d.y[i] + relative * flux.x[i];
                    changed.y[i] = t.dxy[i] * g.x[i] + t.dyy[i] * g.y[i] + t.xy[i] * d.x[i] +
                                   t.yy[i] * d.y[i] + relative * flux.y[i];
                    changed.e[i] = turning * g.e[i] + kappa * d.e[i] + relative * flux.e[i];
                }
                changed.spread(row_of(p, y - 1), row_of(p, y), s.width, -weight / 4);
            }
        }
    }
}

template <class Real>
void add_energy(const Real *smoothed, const Stack &stack, int order, Real weight,
                const double *slopes, Real *energy, Index cells) {
    const Shape &s = stack.shape;
    Derivatives<Real> d(order, s.height, s.width), t(order, s.height, s.width);
    for (Index y = 0; y < s.height + order % 2; ++y)
        for (Index c = 0; c < s.channels; ++c) {
            d.load(smoothed + c * stack.plane(), y);
            for (Index p = 0; p <= stack.parameters; ++p) {
                if (p) t.load(smoothed + p * stack.size() + c * stack.plane(), y);
                Real *out = energy + p * cells + y * d.columns;
                for (int j = 0; j <= order; ++j) {
                    const Real share = static_cast<Real>(binomial(order, j)) /
                                       static_cast<Real>(s.channels);
                    const Real *part = d.parts[j].data(), *tangent = t.parts[j].data();
                    const Real slope = p ? share * static_cast<Real>(slopes[p - 1]) : share * weight;
                    const Real twice = p ? 2 * share * weight : Real(0);
                    for (Index x = 0; x < d.columns; ++x)
                        out[x] += (slope * part[x] + (p ? twice * tangent[x] : Real(0))) * part[x];
                }
            }
        }
}

// Add the adjoint of a row of fluxes, one for each derivative, to the rows of pixels it reaches.
template <class Real>
void spread_rows(Derivatives<Real> &d, Index y, Index rows, Real *flow, Real factor,
                 std::vector<Real> &line) {
    const bool cells = d.on_cells;
    for (int j = 0; j <= d.order; ++j) {
        const Stencil &vertical = d.stencil(j);
        const Index reach = vertical.size / 2 - cells;
        d.adjoint_row(j, line.data());
        // Row y, and its images beyond the border, contribute to the pixels in their reach.
        for (Index pixel = 0; pixel < d.height; ++pixel) {
            if (d.height > 12 && std::abs(pixel - y) > 4) continue;
            double total = 0;
            for (int k = 0; k < vertical.size; ++k) {
                const Reflected at = reflect_field(pixel - reach + k, rows, cells);
                if (at.index != y) continue;
                const double sign = at.flipped && j % 2 ? -1 : 1;
                total += sign * vertical.taps[vertical.size - 1 - k];
            }
            if (total == 0) continue;
            const Real share = -factor * static_cast<Real>(total * binomial(d.order, j));
            Real *out = flow + pixel * d.width;
            for (Index x = 0; x < d.width; ++x) out[x] += share * line[x];
        }
    }
}

template <class Real>
void add_higher_order_flow(const Real *smoothed, const Stack &stack, const Real *energy,
                           Index cells, int order, const Slopes &slopes, Real weight, Real contrast,
                           Real *flow) {
    const Shape &s = stack.shape;
    const Index rows = s.height + order % 2;
    const Real rate = 1 / (2 * contrast * contrast);
    Derivatives<Real> d(order, s.height, s.width), t(order, s.height, s.width),
        fluxes(order, s.height, s.width);
    std::vector<Real> line(s.width), factor(d.columns);
    for (Index y = 0; y < rows; ++y) {
        const Real *e = energy + y * d.columns;
        for (Index x = 0; x < d.columns; ++x) factor[x] = exponential(-rate * e[x]);
        for (Index c = 0; c < s.channels; ++c) {
            d.load(smoothed + c * stack.plane(), y);
            for (Index p = 0; p <= stack.parameters; ++p) {
                Real *out = flow + p * stack.size() + c * stack.plane();
                if (p) t.load(smoothed + p * stack.size() + c * stack.plane(), y);
                const Real *de = e + p * cells;
                const Real relative = p ? static_cast<Real>(slopes.flux[p - 1]) / weight : Real(1);
                const Real rate_slope =
                    p ? -2 * rate * static_cast<Real>(slopes.contrast[p - 1]) / contrast : Real(0);
                for (int j = 0; j <= order; ++j) {
                    const Real *part = d.parts[j].data(), *tangent = t.parts[j].data();
                    Real *flux = fluxes.parts[j].data();
                    if (p == 0)
                        for (Index x = 0; x < d.columns; ++x) flux[x] = factor[x] * part[x];
                    else
                        for (Index x = 0; x < d.columns; ++x)
                            flux[x] = factor[x] * ((relative - rate_slope * e[x] - rate * de[x]) *
                                                       part[x] +
                                                   tangent[x]);
                }
                spread_rows(fluxes, y, rows, out, weight, line);
            }
        }
    }
}

}  // namespace

template <class Real>
void step_with_tangents(const TangentStep<Real> &task, Real *images, const Real *original) {
    const Shape &s = task.shape;
    const Index parameters = task.parameters;
    const Stack stack{s, parameters};
    const Index size = stack.size(), all = (parameters + 1) * size;
    const Index cells = (s.height + 1) * (s.width + 1);
    const Index scales = static_cast<Index>(task.taps->size());
    Workspace<Real> &w = *task.workspace;
    w.smoothed.resize(scales * all);
    w.flow.resize(all);
    Team alone(1);

    const Index count = (parameters + 1) * s.channels;
    const auto change_kernel = [&](std::size_t i, Real *planes) {
        if (!task.variance_slopes->empty())
            add_change_of_kernel(planes, stack, (*task.variance_slopes)[i]);
    };
    to_all_scales(images, w.smoothed.data(), count, s, *task.taps, alone, change_kernel);

    Index planes = 0;
    for (const Term &term : *task.terms) planes += term.order == 1 ? 3 : 1;
    w.couplings.assign(planes * (parameters + 1) * cells, Real(0));
    std::vector<Real *> couplings;
    Real *next = w.couplings.data();
    for (std::size_t t = 0; t < task.terms->size(); ++t) {
        const Term &term = (*task.terms)[t];
        couplings.push_back(next);
        for (Index i = 0; i < scales; ++i) {
            const Real weight = static_cast<Real>(term.coupling_weights[i]);
            if (weight == 0) continue;
            const double *slopes = (*task.slopes)[t][i].coupling.data();
            const Real *smoothed = w.smoothed.data() + i * all;
            if (term.order == 1)
                add_structure(smoothed, stack, weight, slopes, next);
            else
                add_energy(smoothed, stack, term.order, weight, slopes, next, cells);
        }
        next += (term.order == 1 ? 3 : 1) * (parameters + 1) * cells;
    }

    std::vector<bool> flows(scales, false);
    for (Index i = 0; i < scales; ++i) {
        Real *smoothed = w.smoothed.data() + i * all;
        std::fill(w.flow.begin(), w.flow.end(), Real(0));
        for (std::size_t t = 0; t < task.terms->size(); ++t) {
            const Term &term = (*task.terms)[t];
            const Real weight = static_cast<Real>(term.flux_weights[i]);
            const Real contrast = static_cast<Real>(term.contrasts[i]);
            if (weight == 0) continue;
            flows[i] = true;
            const Slopes &slopes = (*task.slopes)[t][i];
            if (term.order == 1)
                add_first_order_flow(smoothed, stack, couplings[t], slopes, weight, contrast,
                                     term.tensor, static_cast<Real>(task.theta), w.flow.data());
            else
                add_higher_order_flow(smoothed, stack, couplings[t], cells, term.order, slopes,
                                      weight, contrast, w.flow.data());
        }
        if (flows[i]) std::copy(w.flow.begin(), w.flow.end(), smoothed);
    }

    const Real *total = w.flow.data();
    to_finest_scale(w.smoothed.data(), flows, w.flow.data(), count, s, *task.taps, alone,
                    change_kernel);
    const Real tau = static_cast<Real>(task.tau), pull = static_cast<Real>(task.pull);
    for (Index k = 0; k < size; ++k) {
        const Real missing = original[k] - images[k];
        const Real change = total[k] + pull * missing;
        for (Index p = 1; p <= parameters; ++p) {
            Real &tangent = images[p * size + k];
            const Real slope = total[p * size + k] - pull * tangent +
                               static_cast<Real>(task.pull_slopes[p - 1]) * missing;
            tangent += tau * slope + static_cast<Real>(task.tau_slopes[p - 1]) * change;
        }
        images[k] += tau * change;
    }
}

template void step_with_tangents(const TangentStep<float> &, float *, const float *);
template void step_with_tangents(const TangentStep<double> &, double *, const double *);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
