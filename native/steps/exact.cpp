// Steps without shortcuts, stage by stage, for all terms and both schemes. Reading order:
// ExactRun::advance().

#include "../core/instruction_sets.hpp"
#include "cascade.hpp"
#include "cells.hpp"
#include "derivatives.hpp"
#include "integration.hpp"
#include "nonnegativity.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

// Planes that the coupling of a term needs: eigenvalues and direction of J, or an energy.
Index coupling_planes(const Term &term) { return term.order == 1 || term.tensor ? 4 : 1; }

// Whether the gate of a term is a tensor that acts on both indices of a Hessian.
bool gates_hessian(const Term &term) { return term.order == 2 && term.tensor; }

template <class Real>
class ExactRun final : public Run<Real> {
  public:
    ExactRun(const ExactProcess &process, const Start<Real> &start)
        : s_(turned(start.shape)),
          turned_(is_turned(start.shape)),
          cells_(process.cells),
          theta_(process.theta),
          tau_(static_cast<Real>(start.tau)),
          pulls_(start.pulls),
          schedule_(*start.schedule),
          executor_(*start.executor),
          reach_(start.invalid.reach),
          cascade_(process.taps, s_, executor_, start.invalid.pixels != nullptr),
          integration_(schedule_, s_, executor_),
          smoothed_(cascade_.scales()),
          present_(cascade_.scales()),
          coupled_(cascade_.scales() * s_.channels),
          coupling_(coupled_.size()),
          scratch_(executor_.workers()) {
        for (const std::vector<Term> &terms : schedule_) {
            Index planes = 0;
            for (const Term &term : terms) {
                planes += coupling_planes(term);
                if (gates_hessian(term)) gate_planes_ = 3;
            }
            coupling_planes_ = std::max(coupling_planes_, planes);
        }
        for (Scratch &scratch : scratch_) {
            scratch.carry.resize(s_.channels);
            scratch.above.resize(coupled_.size());
            scratch.below.resize(coupled_.size());
        }
        lay_out(*start.memory, [&](Arena<Real> &arena) { take_memory(arena, start); });
        const Index size = s_.height * s_.width;
        for (Index c = 0; c < s_.channels; ++c) {
            const Real *plane = start.image + c * size;
            copy_in(plane, s_.height, s_.width, turned_, image_ + c * cascade_.plane());
            if (original_)
                copy_in(plane, s_.height, s_.width, turned_, original_ + c * cascade_.plane());
        }
        if (pixel_factors_)
            copy_in(start.local.pixels, s_.height, s_.width, turned_, pixel_factors_);
        if (cell_factors_)
            copy_in(start.local.cells, s_.height + 1, s_.width + 1, turned_, cell_factors_);
        if (pixel_distances_) {
            copy_in(start.invalid.pixels, s_.height, s_.width, turned_, pixel_distances_);
            copy_in(start.invalid.cells, s_.height + 1, s_.width + 1, turned_, cell_distances_);
            cascade_.find_edges(pixel_distances_);
        }
    }

    void advance(std::size_t step) override {
        const std::vector<Term> &terms = terms_at(schedule_, step);
        // Stage 1: the image at every scale, each from the one before.
        cascade_.to_all_scales(image_, smoothed_.data(), s_.channels);

        // Stages 2 and 3: structure tensor and energies.
        Real *coupling = couplings_;
        for (const Term &term : terms) {
            couple(term, coupling);
            coupling += coupling_planes(term) * coupling_plane();
        }

        // Stages 4 and 5: the flow of each scale takes the place of the smoothed image.
        for (Index i = 0; i < cascade_.scales(); ++i) {
            present_[i] = false;
            for (const Term &term : terms) present_[i] = present_[i] || term.flux_weights[i] != 0;
            if (!present_[i]) continue;
            std::fill(flow_, flow_ + s_.channels * cascade_.plane() - margin, Real(0));
            coupling = couplings_;
            for (const Term &term : terms) {
                if (term.flux_weights[i] != 0) add_flow(term, i, coupling);
                coupling += coupling_planes(term) * coupling_plane();
            }
            std::swap(smoothed_[i], flow_);
        }

        // Stage 8: back to the finest scale, and the step itself.
        const bool any = cascade_.to_finest_scale(smoothed_.data(), present_, flow_, s_.channels);
        const Real pull = static_cast<Real>(pull_at(pulls_, step));
        executor_.rows(s_.channels * s_.height, [&](Index first, Index last, Index) {
            for (Index n = first; n < last; ++n) {
                const Index row = n * cascade_.stride();
                for (Index x = row; x < row + s_.width; ++x) {
                    Real change = any ? flow_[x] : Real(0);
                    if (original_) change = multiply_add(pull, original_[x] - image_[x], change);
                    image_[x] = multiply_add(tau_, change, image_[x]);
                }
            }
        });
    }

    void read(Real *out) const override {
        for (Index c = 0; c < s_.channels; ++c)
            copy_out(image_ + c * cascade_.plane(), s_.height, s_.width, turned_,
                     out + c * s_.height * s_.width);
    }

  private:
    // Of one thread.
    struct Scratch {
        Real *line;
        std::vector<Real *> carry;  // of each channel
        std::vector<const Real *> above, below;
        Derivatives<Real> derivatives;
        ExchangeRows<Real> exchange;
    };

    void take_memory(Arena<Real> &arena, const Start<Real> &start) {
        const Sensitivity<Real> &local = start.local;
        const Index rows = s_.channels * s_.height;
        image_ = take_rows(arena, s_.width, rows);
        if (pulls_at_all(pulls_)) original_ = take_rows(arena, s_.width, rows);
        if (local.pixels) pixel_factors_ = take_rows(arena, s_.width, s_.height);
        if (local.cells) cell_factors_ = take_rows(arena, s_.width + 1, s_.height + 1);
        if (start.invalid.pixels) {
            pixel_distances_ = take_rows(arena, s_.width, s_.height);
            cell_distances_ = take_rows(arena, s_.width + 1, s_.height + 1);
            known_ = take_rows(arena, s_.width + 1, s_.height + 1);
        }
        for (Real *&planes : smoothed_) planes = take_rows(arena, s_.width, rows);
        flow_ = take_rows(arena, s_.width, rows);
        couplings_ = take_rows(arena, s_.width + 1, coupling_planes_ * (s_.height + 1));
        gates_ = take_rows(arena, s_.width + 1, gate_planes_ * (s_.height + 1));
        cascade_.take_memory(arena);
        integration_.take_memory(arena);
        for (Scratch &scratch : scratch_) {
            scratch.line = take_rows(arena, s_.width);
            for (Real *&row : scratch.carry) row = take_rows(arena, s_.width);
            scratch.derivatives.take_memory(arena, s_);
            if (!cells_) scratch.exchange.take_memory(arena, s_.width);
        }
    }

    Index coupling_stride() const { return padded_width<Real>(s_.width + 1); }
    Index coupling_plane() const { return (s_.height + 1) * coupling_stride(); }
    bool on_cells(const Term &term) const { return term.order == 1 ? cells_ : term.order % 2 == 1; }

    // A row of the factors of the couplings of a term, if the noise varies.
    const Real *factors(const Term &term, Index y) const {
        if (on_cells(term)) return cell_factors_ ? cell_factors_ + y * coupling_stride() : nullptr;
        return pixel_factors_ ? pixel_factors_ + y * cascade_.stride() : nullptr;
    }

    EigenRow<Real> eigen_row(Real *coupling, Index y) const {
        Real *row = coupling + y * coupling_stride();
        return {row, row + coupling_plane(), row + 2 * coupling_plane(), row + 3 * coupling_plane()};
    }

    // ---- couplings ----

    void couple(const Term &term, Real *coupling) {
        if (gates_hessian(term))
            add_hessians(term, coupling);
        else if (term.order > 1)
            add_energies(term, coupling);
        else
            add_structure(term, coupling);
        if (!term.integration.empty()) integrate(term, coupling);
        // Closed gates, even for the largest contrast of a model, 1e15; and still finite where the
        // smallest relative noise level, 1e-3, multiplies them by a million.
        if (pixel_distances_) set_unknown(term, coupling, Real(1e32), Real(0));
    }

    void integrate(const Term &term, Real *coupling) {
        const bool cells = on_cells(term);
        if (pixel_distances_) find_share_of_known(term, coupling);
        if (coupling_planes(term) == 1) {
            integration_.smooth(coupling, term.integration, {cells, false});
            if (pixel_distances_) divide_by_share(term, coupling);
            return;
        }
        for (int k = 0; k < 3; ++k)  // J_xy is the last
            integration_.smooth(coupling + k * coupling_plane(), term.integration, {cells, k == 2});
        for (int k = 0; pixel_distances_ && k < 3; ++k)
            divide_by_share(term, coupling + k * coupling_plane());
        const Mix<Real> mix(term.mix);
        executor_.rows(s_.height + cells, [&](Index first, Index last, Index) {
            for (Index y = first; y < last; ++y) {
                const EigenRow<Real> row = eigen_row(coupling, y);
                for (Index x = 0; x < s_.width + cells; x += lanes<Real>)
                    row.set(x, {load(row.smaller + x), load(row.larger + x), load(row.cosine + x)},
                            term.tensor, mix);
            }
        });
    }

    // ---- invalid pixels ----

    // A row of distances to the next invalid pixel, for the derivatives of a term.
    const Real *distances(const Term &term, Index y) const {
        return on_cells(term) ? cell_distances_ + y * coupling_stride()
                              : pixel_distances_ + y * cascade_.stride();
    }

    // At this distance from an invalid pixel the stencils of a term still touch it.
    Real stencil_radius(const Term &term) const {
        return static_cast<Real>((term.order - on_cells(term)) / 2);
    }

    // Set eigenvalues, or the energy, and the direction where derivatives touch invalid pixels.
    void set_unknown(const Term &term, Real *coupling, Real size, Real direction) {
        const Real radius = stencil_radius(term);
        for (Index k = 0; k < coupling_planes(term); ++k)
            for_places(term, coupling + k * coupling_plane(), [&](Real distance, Real &value) {
                if (distance <= radius) value = k < 2 ? size : direction;
            });
    }

    // Forget what touches invalid pixels, and find how much of a neighbourhood is left.
    void find_share_of_known(const Term &term, Real *coupling) {
        const Real radius = stencil_radius(term);
        set_unknown(term, coupling, Real(0), Real(0));
        for_places(term, known_, [&](Real distance, Real &value) { value = distance > radius; });
        integration_.smooth(known_, term.integration, {on_cells(term), false});
    }

    void divide_by_share(const Term &term, Real *plane) {
        const Real radius = stencil_radius(term);
        const Real *share = known_;
        for_places(term, plane, [&](Real distance, Real &value) {
            if (distance > radius) value /= share[&value - plane];
        });
    }

    // No flux of a higher order within reach of an invalid pixel.
    void close_gates(const Term &term, Index i, Real *gates) {
        if (!pixel_distances_) return;
        const Real reach = stencil_radius(term) + static_cast<Real>(reach_[i]);
        for_places(term, gates, [&](Real distance, Real &value) {
            if (distance <= reach) value = 0;
        });
    }

    // Call `change(distance, value)` for all places of a plane of couplings.
    template <class Change>
    void for_places(const Term &term, Real *plane, const Change &change) {
        const bool cells = on_cells(term);
        executor_.rows(s_.height + cells, [&](Index first, Index last, Index) {
            for (Index y = first; y < last; ++y) {
                const Real *distance = distances(term, y);
                Real *row = plane + y * coupling_stride();
                for (Index x = 0; x < s_.width + cells; ++x) change(distance[x], row[x]);
            }
        });
    }

    // ---- structure ----

    // Eigenvalues and direction of J or, if it is still to be smoothed, its components.
    void keep(const Term &term, const EigenRow<Real> &row, Index x, const Moments<Real> &j) const {
        if (term.integration.empty()) return row.set(x, j, term.tensor, Mix<Real>(term.mix));
        store(row.smaller + x, j.mean);
        store(row.larger + x, j.deviation);
        store(row.cosine + x, j.xy);
    }

    // J is the sum of the squared Hessians, at the pixels.
    void add_hessians(const Term &term, Real *coupling) {
        executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
            Derivatives<Real> &d = scratch_[worker].derivatives;
            d.set_order(2);
            for (Index y = first; y < last; ++y) {
                const EigenRow<Real> row = eigen_row(coupling, y);
                for (Real *sum : {row.smaller, row.larger, row.cosine})
                    std::fill(sum, sum + whole_vectors<Real>(s_.width), Real(0));
                for (Index i = 0; i < cascade_.scales(); ++i) {
                    if (term.coupling_weights[i] == 0) continue;
                    const Real weight = static_cast<Real>(term.coupling_weights[i] /
                                                          static_cast<double>(s_.channels));
                    for (Index c = 0; c < s_.channels; ++c) {
                        d.load(smoothed_[i] + c * cascade_.plane(), y);
                        d.add_hessian(weight, row.smaller, row.larger, row.cosine);
                    }
                }
                const Real *local = factors(term, y);
                for (Index x = 0; x < s_.width; x += lanes<Real>) {
                    const Packed<Real> factor = local ? load(local + x) : broadcast(Real(1));
                    keep(term, row, x,
                         {factor * load(row.smaller + x), factor * load(row.larger + x),
                          factor * load(row.cosine + x)});
                }
            }
        });
    }

    void add_structure(const Term &term, Real *coupling) {
        Index count = 0;
        for (Index i = 0; i < cascade_.scales(); ++i)
            for (Index c = 0; term.coupling_weights[i] != 0 && c < s_.channels; ++c, ++count) {
                coupled_[count] = smoothed_[i] + c * cascade_.plane();
                coupling_[count] = static_cast<Real>(term.coupling_weights[i] /
                                                     static_cast<double>(4 * s_.channels));
            }
        executor_.rows(s_.height + cells_, [&](Index first, Index last, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index y = first; y < last; ++y) {
                const EigenRow<Real> row = eigen_row(coupling, y);
                const auto use = [&](Index x, const Moments<Real> &j) { keep(term, row, x, j); };
                if (!cells_) {
                    structure_of_pixels(coupled_.data(), coupling_.data(), count, y, s_,
                                        factors(term, y), use);
                    continue;
                }
                for (Index k = 0; k < count; ++k) {
                    scratch.above[k] =
                        coupled_[k] + reflect(y - 1, s_.height) * cascade_.stride() - 1;
                    scratch.below[k] = coupled_[k] + reflect(y, s_.height) * cascade_.stride() - 1;
                }
                structure_of_cells(scratch.above.data(), scratch.below.data(), coupling_.data(),
                                   count, factors(term, y), 0,
                                   whole_vectors<Real>(s_.width) + lanes<Real>, use);
            }
        });
    }

    void add_energies(const Term &term, Real *energies) {
        executor_.rows(s_.height + term.order % 2, [&](Index first, Index last, Index worker) {
            Derivatives<Real> &d = scratch_[worker].derivatives;
            d.set_order(term.order);
            for (Index y = first; y < last; ++y) {
                Real *out = energies + y * coupling_stride();
                std::fill(out, out + whole_vectors<Real>(d.columns()), Real(0));
                for (Index i = 0; i < cascade_.scales(); ++i) {
                    if (term.coupling_weights[i] == 0) continue;
                    const Real weight = static_cast<Real>(term.coupling_weights[i] /
                                                          static_cast<double>(s_.channels));
                    for (Index c = 0; c < s_.channels; ++c) {
                        d.load(smoothed_[i] + c * cascade_.plane(), y);
                        d.add_energy(weight, out);
                    }
                }
                if (const Real *local = factors(term, y))
                    for (Index x = 0; x < d.columns(); ++x) out[x] *= local[x];
            }
        });
    }

    // ---- flows ----

    void add_flow(const Term &term, Index i, Real *coupling) {
        if (gates_hessian(term))
            add_hessian_flow(term, i, coupling);
        else if (term.order > 1)
            add_higher_order_flow(term, i, coupling);
        else if (!cells_)
            add_nonnegativity_flow(term, i, coupling);
        else if (term.tensor)
            add_first_order_flow<true>(term, i, coupling);
        else
            add_first_order_flow<false>(term, i, coupling);
    }

    template <bool tensor>
    void add_first_order_flow(const Term &term, Index i, Real *coupling) {
        const FluxNumbers<Real> numbers(term.contrasts[i], term.flux_weights[i], theta_);
        executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
            Scratch &scratch = scratch_[worker];
            Flux<Real> state;
            // A band of rows of pixels needs one more row of cells. What the first one gives to the
            // pixels above belongs to another band.
            for (Index y = first; y <= last; ++y)
                for (Index c = 0; c < s_.channels; ++c) {
                    const Real *plane = smoothed_[i] + c * cascade_.plane() - 1;
                    flux_row<Real, tensor, Accuracy::full>(
                        plane + reflect(y - 1, s_.height) * cascade_.stride(),
                        plane + reflect(y, s_.height) * cascade_.stride(), eigen_row(coupling, y), 0,
                        whole_vectors<Real>(s_.width), numbers, state, scratch.carry[c],
                        scratch.line);
                    if (y == first) continue;
                    Real *out = flow_ + c * cascade_.plane() + (y - 1) * cascade_.stride();
                    for (Index x = 0; x < s_.width; ++x) out[x] += scratch.line[x];
                }
        });
    }

    void add_nonnegativity_flow(const Term &term, Index i, Real *coupling) {
        const Rate<Real> rate(term.contrasts[i]);
        executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
            ExchangeRows<Real> &rows = scratch_[worker].exchange;
            rows.reset();
            for (Index y = first; y < last; ++y)
                add_exchange(rows, [&](Index r) { return eigen_row(coupling, r); }, smoothed_[i], s_,
                             y, static_cast<Real>(term.flux_weights[i]),
                             rate, term.tensor, flow_);
        });
    }

    void add_higher_order_flow(const Term &term, Index i, const Real *energies) {
        const Rate<Real> rate(term.contrasts[i]);
        executor_.rows(s_.height + term.order % 2, [&](Index first, Index last, Index) {
            for (Index y = first; y < last; ++y)
                gate_row(energies + y * coupling_stride(), rate, s_.width + term.order % 2,
                         gates_ + y * coupling_stride());
        });
        close_gates(term, i, gates_);
        executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
            Derivatives<Real> &d = scratch_[worker].derivatives;
            d.set_order(term.order);
            for (Index c = 0; c < s_.channels; ++c) {
                const auto load_fluxes = [&](Index y) {
                    d.load(smoothed_[i] + c * cascade_.plane(), y);
                    const Real *gates = gates_ + y * coupling_stride();
                    for (int j = 0; j <= term.order; ++j)
                        for (Index x = 0; x < d.columns(); ++x) d.parts[j][x] *= gates[x];
                };
                d.add_adjoint(load_fluxes, first, last, static_cast<Real>(term.flux_weights[i]),
                              flow_ + c * cascade_.plane());
            }
        });
    }

    // A H A, with A = g(J)^(1/2): the contrast is larger by the square root of two.
    void add_hessian_flow(const Term &term, Index i, Real *coupling) {
        const Rate<Real> rate(std::sqrt(2.0) * term.contrasts[i]);
        Real *const a = gates_, *const b = a + coupling_plane(), *const c = b + coupling_plane();
        executor_.rows(s_.height, [&](Index first, Index last, Index) {
            for (Index y = first; y < last; ++y) {
                const EigenRow<Real> eigen = eigen_row(coupling, y);
                const Index row = y * coupling_stride();
                for (Index x = 0; x < s_.width; x += lanes<Real>) {
                    const auto g = Gate<Real>::template twice<Accuracy::full>(eigen, x, rate, true);
                    store(a + row + x, Real(0.5) * (g.sum - g.mixed));
                    store(b + row + x, Real(-0.5) * g.sine);
                    store(c + row + x, Real(0.5) * (g.sum + g.mixed));
                }
            }
        });
        for (Real *gates : {a, b, c}) close_gates(term, i, gates);
        executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
            Derivatives<Real> &d = scratch_[worker].derivatives;
            d.set_order(2);
            for (Index channel = 0; channel < s_.channels; ++channel) {
                const auto load_fluxes = [&](Index y) {
                    d.load(smoothed_[i] + channel * cascade_.plane(), y);
                    const Index row = y * coupling_stride();
                    d.gate_hessian(a + row, b + row, c + row);
                };
                d.add_adjoint(load_fluxes, first, last, static_cast<Real>(term.flux_weights[i]),
                              flow_ + channel * cascade_.plane());
            }
        });
    }

    const Shape s_;
    const bool turned_, cells_;
    const double theta_;
    const Real tau_;
    const std::vector<double> pulls_;
    const Schedule &schedule_;
    Executor &executor_;
    const std::vector<double> reach_;
    Cascade<Real> cascade_;
    Integration<Real> integration_;
    Real *image_ = nullptr, *original_ = nullptr, *flow_ = nullptr;
    Real *pixel_factors_ = nullptr, *cell_factors_ = nullptr;
    Real *pixel_distances_ = nullptr, *cell_distances_ = nullptr, *known_ = nullptr;
    Real *couplings_ = nullptr, *gates_ = nullptr;
    Index coupling_planes_ = 0, gate_planes_ = 1;
    std::vector<Real *> smoothed_;           // of each scale
    std::vector<bool> present_;              // scales that have a flow
    std::vector<const Real *> coupled_;      // planes, which J takes with these weights
    std::vector<Real> coupling_;
    std::vector<Scratch> scratch_;
};

}  // namespace

template <class Real>
std::unique_ptr<Run<Real>> exact_run(const ExactProcess &process, const Start<Real> &start) {
    return std::make_unique<ExactRun<Real>>(process, start);
}

template std::unique_ptr<Run<float>> exact_run(const ExactProcess &, const Start<float> &);
template std::unique_ptr<Run<double>> exact_run(const ExactProcess &, const Start<double> &);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
