// Steps of a process together with their derivatives in some parameters, on one thread: training
// shares images, not rows.
//
// A linear stage acts on a tangent as on the image; g(J) needs a derivative of its own, and so does
// smoothing if the scales are parameters. The image and its p tangents lie behind each other, and so
// do their smoothed versions and flows. Reading order: TangentRun::advance().

#include "../core/instruction_sets.hpp"
#include "cascade.hpp"
#include "cells.hpp"
#include "derivatives.hpp"
#include "integration.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

template <class Real>
class TangentRun final : public Run<Real> {
  public:
    TangentRun(const ExactProcess &process, const ParameterSlopes &slopes, const Start<Real> &start)
        : s_(start.shape),
          parameters_(slopes.parameters),
          theta_(process.theta),
          tau_(static_cast<Real>(start.tau)),
          pull_(static_cast<Real>(start.pulls.front())),
          schedule_(*start.schedule),
          slopes_(slopes),
          cascade_(process.taps, s_, serial_),
          integration_(schedule_, s_, serial_),
          smoothed_(cascade_.scales()),
          present_(cascade_.scales()),
          fluxes_(3 * (parameters_ + 1)) {
        for (const std::vector<Term> &terms : schedule_) {
            Index planes = 0;
            for (const Term &term : terms) planes += coupling_planes(term);
            coupling_planes_ = std::max(coupling_planes_, planes);
        }
        lay_out(*start.memory, [&](Arena<Real> &arena) { take_memory(arena); });
        for (Index c = 0; c < s_.channels; ++c)
            for (Real *to : {images_, original_})
                copy_in(start.image + c * s_.height * s_.width, s_.height, s_.width, false,
                        to + c * cascade_.plane());
        std::fill(images_ + size(), images_ + (parameters_ + 1) * size() - margin, Real(0));
    }

    void advance(std::size_t step) override {
        const std::vector<Term> &terms = terms_at(schedule_, step);
        const auto &slopes = slopes_.terms[slopes_.terms.size() == 1 ? 0 : step];
        const Index planes = (parameters_ + 1) * s_.channels;
        const auto change_kernel = [&](Index i, Real *stack) {
            if (!slopes_.variances.empty()) add_change_of_kernel(stack, slopes_.variances[i]);
        };
        cascade_.to_all_scales(images_, smoothed_.data(), planes, change_kernel);

        Real *coupling = couplings_;
        for (std::size_t t = 0; t < terms.size(); ++t) {
            couple(terms[t], slopes[t], coupling);
            coupling += coupling_planes(terms[t]) * coupling_plane();
        }

        for (Index i = 0; i < cascade_.scales(); ++i) {
            present_[i] = false;
            std::fill(flow_, flow_ + planes * cascade_.plane() - margin, Real(0));
            coupling = couplings_;
            for (std::size_t t = 0; t < terms.size(); ++t) {
                if (terms[t].flux_weights[i] != 0) {
                    present_[i] = true;
                    if (terms[t].order > 1)
                        add_higher_order_flow(terms[t], i, slopes[t][i], coupling);
                    else if (terms[t].tensor)
                        add_first_order_flow<true>(terms[t], i, slopes[t][i], coupling);
                    else
                        add_first_order_flow<false>(terms[t], i, slopes[t][i], coupling);
                }
                coupling += coupling_planes(terms[t]) * coupling_plane();
            }
            if (present_[i]) std::swap(smoothed_[i], flow_);
        }

        const bool any = cascade_.to_finest_scale(smoothed_.data(), present_, flow_, planes,
                                                  change_kernel);
        for (Index n = 0; n < s_.channels * s_.height; ++n)
            for (Index x = 0; x < s_.width; ++x) update(n * cascade_.stride() + x, any);
    }

    void read(Real *out) const override {
        for (Index k = 0; k < (parameters_ + 1) * s_.channels; ++k)
            copy_out(images_ + k * cascade_.plane(), s_.height, s_.width, false,
                     out + k * s_.height * s_.width);
    }

  private:
    // J by its three components, or an energy; of the image and of each tangent.
    Index coupling_planes(const Term &term) const {
        return (term.order == 1 ? 3 : 1) * (parameters_ + 1);
    }
    Index coupling_stride() const { return padded_width<Real>(s_.width + 1); }
    Index coupling_plane() const { return (s_.height + 1) * coupling_stride(); }
    Index size() const { return s_.channels * cascade_.plane(); }

    void take_memory(Arena<Real> &arena) {
        const Index rows = s_.channels * s_.height, all = (parameters_ + 1) * rows;
        images_ = take_rows(arena, s_.width, all);
        original_ = take_rows(arena, s_.width, rows);
        for (Real *&planes : smoothed_) planes = take_rows(arena, s_.width, all);
        flow_ = take_rows(arena, s_.width, all);
        couplings_ = take_rows(arena, s_.width + 1, coupling_planes_ * (s_.height + 1));
        gates_ = take_rows(arena, s_.width + 1, s_.height + 1);
        line_ = take_rows(arena, s_.width);
        for (Real *&row : fluxes_) row = take_rows(arena, s_.width + 1);
        cascade_.take_memory(arena);
        integration_.take_memory(arena);
        values_.take_memory(arena, s_);
        changes_.take_memory(arena, s_);
    }

    // Add to the tangents what comes from a change of the kernel that has smoothed these planes. The
    // discrete Gaussian of variance t is exp(t L / 2) with the five-point Laplacian L, so that its
    // derivative in t is L / 2 times what it has smoothed.
    void add_change_of_kernel(Real *planes, const std::vector<double> &slopes) {
        const Index stride = cascade_.stride();
        for (Index n = 0; n < s_.channels * s_.height; ++n) {
            const Real *plane = planes + n / s_.height * cascade_.plane();
            const Index y = n % s_.height;
            const Real *here = plane + y * stride;  // the cascade continues it by one pixel
            const Real *up = plane + reflect(y - 1, s_.height) * stride;
            const Real *down = plane + reflect(y + 1, s_.height) * stride;
            for (Index x = 0; x < s_.width; ++x)
                line_[x] = (up[x] - here[x]) + (down[x] - here[x]) + (here[x - 1] - here[x]) +
                           (here[x + 1] - here[x]);
            for (Index p = 1; p <= parameters_; ++p) {
                const Real factor = static_cast<Real>(slopes[p - 1] / 2);
                if (factor == 0) continue;
                Real *tangent = planes + p * size() + n * stride;
                for (Index x = 0; x < s_.width; ++x)
                    tangent[x] = multiply_add(factor, line_[x], tangent[x]);
                reflect_margins(tangent, s_.width, 1);
            }
        }
    }

    void couple(const Term &term, const std::vector<Slopes> &slopes, Real *coupling) {
        if (term.order > 1)
            add_energies(term, slopes, coupling);
        else
            add_structure(term, slopes, coupling);
        if (term.integration.empty()) return;
        // Smoothing is linear: tangents are smoothed alike. Of three planes of J the last is J_xy.
        for (Index k = 0; k < coupling_planes(term); ++k)
            integration_.smooth(coupling + k * coupling_plane(), term.integration,
                                {term.order % 2 == 1, term.order == 1 && k % 3 == 2});
    }

    Cell<Real> cell_at(Index i, Index p, Index c, Index y, Index x) const {
        const Real *plane = smoothed_[i] + p * size() + c * cascade_.plane() + x - 1;
        return {plane + reflect(y - 1, s_.height) * cascade_.stride(),
                plane + reflect(y, s_.height) * cascade_.stride()};
    }

    Moments<Real> moments_at(const Real *coupling, Index p, Index y, Index x) const {
        const Real *j = coupling + 3 * p * coupling_plane() + y * coupling_stride() + x;
        return {load(j), load(j + coupling_plane()), load(j + 2 * coupling_plane())};
    }

    void add_structure(const Term &term, const std::vector<Slopes> &slopes, Real *coupling) {
        const double share = 1.0 / static_cast<double>(4 * s_.channels);
        for (Index y = 0; y <= s_.height; ++y)
            for (Index x = 0; x <= s_.width; x += lanes<Real>)
                for (Index p = 0; p <= parameters_; ++p) {
                    Structure<Real> sum;
                    for (Index i = 0; i < cascade_.scales(); ++i) {
                        if (term.coupling_weights[i] == 0) continue;
                        const Real weight = static_cast<Real>(share * term.coupling_weights[i]);
                        const Real slope =
                            p ? static_cast<Real>(share * slopes[i].coupling[p - 1]) : Real(0);
                        for (Index c = 0; c < s_.channels; ++c) {
                            const Cell<Real> cell = cell_at(i, 0, c, y, x);
                            if (p)
                                sum.add_slope(cell, cell_at(i, p, c, y, x), weight, slope);
                            else
                                sum.add(cell, weight);
                        }
                    }
                    Real *j = coupling + 3 * p * coupling_plane() + y * coupling_stride() + x;
                    const Moments<Real> moments = sum.moments();
                    store(j, moments.mean);
                    store(j + coupling_plane(), moments.deviation);
                    store(j + 2 * coupling_plane(), moments.xy);
                }
    }

    // Fluxes of a row of cells, and what they give to the rows of pixels above and below.
    template <bool tensor>
    void add_first_order_flow(const Term &term, Index i, const Slopes &slopes,
                              const Real *coupling) {
        for (Index y = 0; y <= s_.height; ++y)
            for (Index c = 0; c < s_.channels; ++c) {
                for (Index x = 0; x <= s_.width; x += lanes<Real>)
                    set_fluxes<tensor>(term, i, slopes, coupling, c, y, x);
                for (Index p = 0; p <= parameters_; ++p)
                    spread(p, y, flow_ + p * size() + c * cascade_.plane());
            }
    }

    template <bool tensor>
    void set_fluxes(const Term &term, Index i, const Slopes &slopes, const Real *coupling, Index c,
                    Index y, Index x) {
        using V = Packed<Real>;
        const FluxNumbers<Real> n(term.contrasts[i], term.flux_weights[i], theta_);
        const Real contrast = static_cast<Real>(term.contrasts[i]);
        const Real k = 1 / (2 * contrast * contrast);
        const Cell<Real> cell = cell_at(i, 0, c, y, x);
        const Eigen<Real> e = Eigen<Real>::of(moments_at(coupling, 0, y, x), tensor);
        const V larger = gate_of<Real, Accuracy::full>(n.rate, e.smaller);
        const V smaller = tensor ? gate_of<Real, Accuracy::full>(n.rate, e.larger) : larger;
        const V apart = n.half * (larger - smaller);
        const Gate<Real> g{n.half * (larger + smaller), apart * e.cosine, apart * e.sine};
        // Of the difference of the eigenvalues of g(J), over that of the eigenvalues of J.
        const V quotient = e.inverse > 0 ? apart * e.inverse : 2 * n.half * k * larger;
        const V side = g.sine < 0 ? V{} - Real(1) : V{} + Real(1);
        set_flux(0, x, g, cell, n.twisting * (g.sum + absolute<Real>(g.sine)) * cell.e);
        for (Index p = 1; p <= parameters_; ++p) {
            const Real rate_slope = -2 * k * static_cast<Real>(slopes.contrast[p - 1]) / contrast;
            const Real relative =
                static_cast<Real>(slopes.flux[p - 1] / term.flux_weights[i]);
            const Moments<Real> dj = moments_at(coupling, p, y, x);
            const Cell<Real> change = cell_at(i, p, c, y, x);
            Gate<Real> d;
            if (!tensor) {
                d.sum = g.sum * (relative - rate_slope * e.smaller - 2 * k * dj.mean);
                d.mixed = d.sine = V{};
            } else {
                const V parting = e.cosine * dj.deviation + e.sine * dj.xy;
                const V lower = e.smaller > 0 ? dj.mean - parting : V{};
                const V d_larger = -larger * (rate_slope * e.smaller + k * lower);
                const V d_smaller =
                    -smaller * (rate_slope * e.larger + k * (dj.mean + parting));
                const V d_apart = n.half * (d_larger - d_smaller);
                d.sum = n.half * (d_larger + d_smaller) + relative * g.sum;
                d.mixed = d_apart * e.cosine + quotient * (dj.deviation - e.cosine * parting) +
                          relative * g.mixed;
                d.sine = d_apart * e.sine + quotient * (dj.xy - e.sine * parting) +
                         relative * g.sine;
            }
            const V twist = n.twisting * ((d.sum + side * d.sine) * cell.e +
                                          (g.sum + absolute<Real>(g.sine)) * change.e);
            set_flux(p, x, d, cell, twist);
            add_flux(p, x, g, change);
        }
    }

    void set_flux(Index p, Index x, const Gate<Real> &g, const Cell<Real> &cell,
                  Packed<Real> twist) {
        store(fluxes_[3 * p] + x, (g.sum - g.sine) * cell.falling - g.mixed * cell.rising);
        store(fluxes_[3 * p + 1] + x, (g.sum + g.sine) * cell.rising - g.mixed * cell.falling);
        store(fluxes_[3 * p + 2] + x, twist);
    }

    void add_flux(Index p, Index x, const Gate<Real> &g, const Cell<Real> &cell) {
        Real *falling = fluxes_[3 * p] + x, *rising = fluxes_[3 * p + 1] + x;
        store(falling, load(falling) + ((g.sum - g.sine) * cell.falling - g.mixed * cell.rising));
        store(rising, load(rising) + ((g.sum + g.sine) * cell.rising - g.mixed * cell.falling));
    }

    Flux<Real> flux_at(Index p, Index x) const {
        return {load(fluxes_[3 * p] + x), load(fluxes_[3 * p + 1] + x), load(fluxes_[3 * p + 2] + x)};
    }

    // Add a row of fluxes to the rows of pixels above and below.
    void spread(Index p, Index y, Real *flow) const {
        Real *above = y > 0 ? flow + (y - 1) * cascade_.stride() : nullptr;
        Real *below = y < s_.height ? flow + y * cascade_.stride() : nullptr;
        for (Index x = 0; x < s_.width; x += lanes<Real>) {
            const Flux<Real> left = flux_at(p, x), right = flux_at(p, x + 1);
            if (above) store(above + x, load(above + x) + (left.ur + right.ul));
            if (below) store(below + x, load(below + x) + (left.dr - right.from_dl));
        }
    }

    // ---- higher orders ----

    void add_energies(const Term &term, const std::vector<Slopes> &slopes, Real *energies) {
        values_.set_order(term.order);
        changes_.set_order(term.order);
        const double share = 1.0 / static_cast<double>(s_.channels);
        std::fill(energies, energies + coupling_planes(term) * coupling_plane() - margin, Real(0));
        for (Index i = 0; i < cascade_.scales(); ++i) {
            if (term.coupling_weights[i] == 0) continue;
            const Real weight = static_cast<Real>(share * term.coupling_weights[i]);
            for (Index y = 0; y < values_.rows(); ++y)
                for (Index c = 0; c < s_.channels; ++c) {
                    Real *out = energies + y * coupling_stride();
                    values_.load(smoothed_[i] + c * cascade_.plane(), y);
                    values_.add_energy(weight, out);
                    for (Index p = 1; p <= parameters_; ++p) {
                        changes_.load(smoothed_[i] + p * size() + c * cascade_.plane(), y);
                        values_.add_energy_slope(
                            changes_, weight, static_cast<Real>(share * slopes[i].coupling[p - 1]),
                            out + p * coupling_plane());
                    }
                }
        }
    }

    void add_higher_order_flow(const Term &term, Index i, const Slopes &slopes,
                               const Real *energies) {
        values_.set_order(term.order);
        changes_.set_order(term.order);
        const Real contrast = static_cast<Real>(term.contrasts[i]);
        const Real weight = static_cast<Real>(term.flux_weights[i]);
        const Real k = 1 / (2 * contrast * contrast);
        for (Index y = 0; y < values_.rows(); ++y)
            gate_row(energies + y * coupling_stride(), Rate<Real>(term.contrasts[i]),
                     values_.columns(), gates_ + y * coupling_stride());
        for (Index p = 0; p <= parameters_; ++p) {
            const Real relative = p ? static_cast<Real>(slopes.flux[p - 1]) / weight : Real(0);
            const Real rate_slope =
                p ? -2 * k * static_cast<Real>(slopes.contrast[p - 1]) / contrast : Real(0);
            for (Index c = 0; c < s_.channels; ++c) {
                const Real *plane = smoothed_[i] + c * cascade_.plane();
                // The fluxes of a tangent have a part from its derivatives, and one from the gate.
                const auto load_fluxes = [&](Index y) {
                    const Real *gates = gates_ + y * coupling_stride();
                    const Real *e = energies + y * coupling_stride(), *de = e + p * coupling_plane();
                    changes_.load(plane + p * size(), y);
                    if (p) values_.load(plane, y);
                    for (int j = 0; j <= term.order; ++j) {
                        Real *flux = changes_.parts[j];
                        const Real *part = values_.parts[j];
                        for (Index x = 0; x < changes_.columns(); ++x) {
                            const Real inner =
                                p ? (relative - rate_slope * e[x] - k * de[x]) * part[x] : Real(0);
                            flux[x] = gates[x] * (flux[x] + inner);
                        }
                    }
                };
                changes_.add_adjoint(load_fluxes, 0, s_.height, weight,
                                     flow_ + p * size() + c * cascade_.plane());
            }
        }
    }

    // The step itself at one pixel.
    void update(Index at, bool any) {
        const Real missing = original_[at] - images_[at];
        const Real change = (any ? flow_[at] : Real(0)) + pull_ * missing;
        for (Index p = 1; p <= parameters_; ++p) {
            Real &tangent = images_[p * size() + at];
            const Real slope = (any ? flow_[p * size() + at] : Real(0)) - pull_ * tangent +
                               static_cast<Real>(slopes_.pull[p - 1]) * missing;
            tangent += tau_ * slope + static_cast<Real>(slopes_.tau[p - 1]) * change;
        }
        images_[at] += tau_ * change;
    }

    const Shape s_;
    const Index parameters_;
    const double theta_;
    const Real tau_, pull_;
    const Schedule &schedule_;
    const ParameterSlopes &slopes_;
    Serial serial_;
    Cascade<Real> cascade_;
    Integration<Real> integration_;
    Real *images_ = nullptr, *original_ = nullptr, *flow_ = nullptr, *couplings_ = nullptr;
    Real *gates_ = nullptr, *line_ = nullptr;
    Index coupling_planes_ = 0;
    std::vector<Real *> smoothed_;  // of each scale
    std::vector<bool> present_;     // scales that have a flow
    std::vector<Real *> fluxes_;    // falling, rising and twisting, of the image and each tangent
    Derivatives<Real> values_, changes_;
};

}  // namespace

template <class Real>
std::unique_ptr<Run<Real>> tangent_run(const ExactProcess &process, const ParameterSlopes &slopes,
                                       const Start<Real> &start) {
    return std::make_unique<TangentRun<Real>>(process, slopes, start);
}

template std::unique_ptr<Run<float>> tangent_run(const ExactProcess &, const ParameterSlopes &,
                                                 const Start<float> &);
template std::unique_ptr<Run<double>> tangent_run(const ExactProcess &, const ParameterSlopes &,
                                                  const Start<double> &);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
