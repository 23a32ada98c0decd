// A part of an image in one sweep over its rows.
//
// Every stage keeps only the rows that a later one still needs, in rings that stay in the cache: the
// smoothed images, and the sums of the flows on their way back to the finest scale. A row is
// computed when somebody asks for it. Reading order: Tile::run(), and from there to what it calls.
#pragma once

#include "cells.hpp"
#include "hessian.hpp"
#include "resample.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// How an image is divided among threads: strips of columns whose rings fit the cache, and bands of
// rows, both with even borders.
class Tiling {
  public:
    struct Part {
        Index first, last;         // rows
        Index from, to;            // columns
        Index left, width;         // columns to compute for them
    };

    Tiling(const Shape &s, Index halo, Index threads) : s_(s), halo_(halo) {
        const Index widest = 1024;
        strips_ = (s.width + widest - 1) / widest;
        // As few bands as keep all threads busy: the rows around a band are computed twice.
        bands_ = strips_ >= 4 * threads ? 1 : (threads + strips_ - 1) / strips_;
        bands_ = std::max<Index>(1, std::min(bands_, s.height / 32));
    }

    Index count() const { return strips_ * bands_; }

    Part part(Index n) const {
        const Index strip = n / bands_, band = n % bands_;
        Part part{even(s_.height, band, bands_), even(s_.height, band + 1, bands_),
                  even(s_.width, strip, strips_), even(s_.width, strip + 1, strips_), 0, 0};
        part.left = std::max<Index>(0, part.from - halo_);
        part.width = std::min(s_.width, part.to + halo_) - part.left;
        return part;
    }

  private:
    static Index even(Index size, Index n, Index parts) {
        return n == parts ? size : size * n / parts / 2 * 2;
    }
    Shape s_;
    Index halo_, strips_, bands_;
};

// The last rows of a plane; row y takes the place of row y - capacity.
template <class Real>
struct Ring {
    Real *memory = nullptr;
    Index capacity = 1, stride = 0;
    std::uint64_t inverse = 0;  // of the capacity, times 2^40 and rounded up

    Ring() = default;
    Ring(Arena<Real> &arena, Index capacity_, Index width)
        : memory(take_rows(arena, width, capacity_)),
          capacity(capacity_),
          stride(padded_width<Real>(width)),
          inverse(((std::uint64_t(1) << 40) + capacity_ - 1) / capacity_) {}

    // y modulo the capacity, without a division, which would take longer than some vectors of a row.
    // The quotient is exact as long as y times the capacity is below 2^40.
    Real *row(Index y) const {
        const Index rounds = static_cast<Index>((static_cast<std::uint64_t>(y) * inverse) >> 40);
        return memory + (y - rounds * capacity) * stride;
    }
};

// The numbers of the second order in one step.
template <class Real>
struct HessianNumbers {
    std::vector<Rate<Real>> rates;   // of each scale
    std::vector<Real> weights;       // of the flow of each scale
    std::vector<Index> flowing;      // scales that have one
    std::vector<Index> coupled;      // planes, which J takes with these weights
    std::vector<Real> coupling;
    Kernel<Real> integration{std::vector<double>{1.0}};  // smooths J on the coarse grid
    Mix<Real> mix;

    HessianNumbers() = default;
    HessianNumbers(const Term &term, Index channels)
        : integration(term.integration), mix(term.mix) {
        for (Index i = 0; i < static_cast<Index>(term.contrasts.size()); ++i) {
            rates.emplace_back(std::sqrt(2.0) * term.contrasts[i]);
            weights.push_back(static_cast<Real>(term.flux_weights[i]));
            if (term.flux_weights[i] != 0) flowing.push_back(i);
            for (Index c = 0; term.coupling_weights[i] != 0 && c < channels; ++c) {
                coupled.push_back(i * channels + c);
                coupling.push_back(
                    static_cast<Real>(term.coupling_weights[i] / static_cast<double>(channels)));
            }
        }
    }
};

// The numbers of one step, as its kernels use them.
template <class Real>
struct StepNumbers {
    bool tensor;
    std::vector<FluxNumbers<Real>> fluxes;  // of each scale
    std::vector<bool> flows;                // of each scale: whether it has a flow
    std::vector<Index> flowing;             // scales that have one
    Index coarsest = 0;                     // of the fine scales among them
    std::vector<Index> coupled;             // planes, which J takes with these weights
    std::vector<Real> coupling;
    Kernel<Real> integration;               // smooths J; of radius zero if nothing does
    Mix<Real> mix;
    Real pull;                              // to the input
    bool second;                            // whether there is a second order
    HessianNumbers<Real> hessian;

    StepNumbers(const std::vector<Term> &terms, Index fine, Index channels, double theta,
                double pull_)
        : tensor(terms[0].tensor),
          integration(terms[0].integration.empty() ? std::vector<double>{1.0}
                                                   : terms[0].integration),
          mix(terms[0].mix),
          pull(static_cast<Real>(pull_)),
          second(terms.size() > 1) {
        const Term &term = terms[0];
        if (second) hessian = HessianNumbers<Real>(terms[1], channels);
        for (Index i = 0; i < static_cast<Index>(term.contrasts.size()); ++i) {
            fluxes.emplace_back(term.contrasts[i], term.flux_weights[i], theta);
            flows.push_back(term.flux_weights[i] != 0 || (second && terms[1].flux_weights[i] != 0));
            if (flows.back()) {
                flowing.push_back(i);
                if (i < fine) coarsest = i;
            }
            for (Index c = 0; term.coupling_weights[i] != 0 && c < channels; ++c) {
                coupled.push_back(i * channels + c);
                coupling.push_back(static_cast<Real>(term.coupling_weights[i] /
                                                     static_cast<double>(4 * channels)));
            }
        }
    }
};

// Kernels and planes of a fused run, for all its tiles. Planes have margins.
template <class Real>
struct FusedFields {
    Shape s;
    Real tau;
    std::vector<Kernel<Real>> fine, coarse;
    HalfKernel<Real> sampling, interpolation;
    Real *image, *next;            // before and after a step
    Real *original = nullptr;      // if anything pulls to it
    Real *sampled;                 // on the coarse grid, smoothed by the sampling kernel
    Real *coarse_smoothed, *coarse_flows;  // at all coarse scales
    Real *sensitivity = nullptr;   // of the cells, if the noise varies
    Index integration = 0;         // largest radius of the kernels that smooth J
    bool second = false;           // whether there is a second order
    Real *hessians[3] = {};        // its J on the coarse grid, as moments
    Real *pixel_sensitivity = nullptr;

    FusedFields(const FusedProcess &process, const Start<Real> &start)
        : s(turned(start.shape)),
          tau(static_cast<Real>(start.tau)),
          fine(kernels_of<Real>(process.fine)),
          coarse(kernels_of<Real>(process.coarse)),
          sampling(process.sampling),
          interpolation(process.interpolation) {
        for (const std::vector<Term> &terms : *start.schedule) {
            integration =
                std::max(integration, static_cast<Index>(terms[0].integration.size()) - 1);
            second = second || terms.size() > 1;
        }
    }

    Index coarse_plane_size() const {
        return (s.height + 1) / 2 * padded_width<Real>((s.width + 1) / 2);
    }
};

// A part of the image: some rows of some columns, with all that is needed around them.
template <class Real>
class Tile {
  public:
    Tile(const FusedFields<Real> &fields, const Tiling::Part &part)
        : f_(fields),
          s_(fields.s),
          part_(part),
          left_(part.left),
          width_(part.width),
          half_width_((part.width + 1) / 2),
          fine_(static_cast<Index>(fields.fine.size())),
          scales_(fine_ + static_cast<Index>(fields.coarse.size())),
          flows_(scales_),
          above_(scales_ * s_.channels),
          below_(scales_ * s_.channels),
          state_(scales_ * s_.channels),
          flowing_(scales_ * s_.channels),
          smoothed_(scales_ * s_.channels),
          total_(fine_ * s_.channels),
          decimated_((scales_ - fine_) * s_.channels),
          carry_(scales_ * s_.channels),
          flow_(scales_ * s_.channels),
          gated_(scales_ * s_.channels),
          around_(scales_ * s_.channels),
          next_smooth_(scales_),
          next_total_(fine_) {}

    // Take the memory of all stages; each keeps the rows that later ones still need.
    void take_memory(Arena<Real> &arena) {
        blur_.rows = rows_;
        const Index cells = whole_vectors<Real>(width_) + lanes<Real>;
        for (Real **row : {&eigen_.smaller, &eigen_.larger, &eigen_.cosine, &eigen_.sine})
            *row = arena.take(cells);
        for (Real **row : {&blur_.mixed[0], &blur_.mixed[1], &change_[0], &change_[1]})
            *row = take_rows(arena, width_);
        if (coarse()) resampler_ = Resampler<Real>(arena, width_);
        if (f_.integration) {
            // Cells, one more than pixels, in whole vectors and one more.
            const Index columns = width_ + 1 + lanes<Real>;
            for (Ring<Real> &ring : structure_)
                ring = Ring<Real>(arena, 2 * f_.integration + 2, columns);
            for (Real *&row : integrated_) row = take_rows(arena, columns);
            mixed_ = take_rows(arena, columns);
        }
        if (f_.second) {
            for (Real **row : {&bending_.smaller, &bending_.larger, &bending_.cosine, &bending_.sine})
                *row = take_rows(arena, width_);
            for (Real *&row : moments_) row = take_rows(arena, width_);
            pair_ = take_rows(arena, width_);
            for (Ring<Real> &ring : bent_) ring = Ring<Real>(arena, 10, width_);
            for (Gated &gated : gated_)
                for (Ring<Real> *ring : {&gated.xx, &gated.xy, &gated.yy})
                    *ring = Ring<Real>(arena, 4, width_);
        }
        for (Index k = fine_ * s_.channels; k < scales_ * s_.channels; ++k)
            flow_[k] = take_rows(arena, width_);
        for (Real *&row : carry_) row = take_rows(arena, width_);
        Index later = std::max<Index>(f_.integration, f_.second ? 2 : 0), waiting = 0;
        for (Index i = scales_ - 1; i >= 0; --i) {
            // Rows come in pairs, so every stage may be one row ahead of what is asked for.
            const Index next = i + 1 < fine_ ? f_.fine[i + 1].radius : 0;
            later += next + 1;
            if (i + 1 < fine_) waiting += next + 1;
            for (Index c = 0; c < s_.channels; ++c) {
                smoothed_[at(i, c)] = Ring<Real>(arena, later + 2 * next + 6, width_);
                if (i < fine_)
                    total_[at(i, c)] =
                        Ring<Real>(arena, waiting + 2 * f_.fine[i].radius + 6, width_);
                else
                    decimated_[at(i - fine_, c)] = Ring<Real>(arena, 2 * reach() + 4, half_width_);
            }
        }
    }

    // Compute one step of the part.
    void run(const StepNumbers<Real> &numbers) {
        n_ = &numbers;
        prepare(part_.first, part_.last);
        const Kernel<Real> &kernel = f_.fine[0];
        for (Index y = part_.first; y < part_.last; y += 2) {
            const bool two = y + 1 < part_.last;
            total_to(0, y + two + kernel.radius);
            for (Index c = 0; c < s_.channels; ++c) {
                smooth_rows([&](Index r) { return total_[c].row(reflect(r, s_.height)); }, y, width_,
                            kernel, by_reflection<Real>(width_), blur_, change_[0],
                            two ? change_[1] : nullptr);
                for (int k = 0; k <= two; ++k) write_row(c, y + k, change_[k]);
            }
        }
        if (coarse()) flow_to(part_.last + reach());
    }

    // J of the second order, on the coarse grid, before it is smoothed: binomial means of 8 x 8
    // pixels, so that high frequencies do not come back as low ones.
    void find_hessians(const StepNumbers<Real> &numbers) {
        n_ = &numbers;
        next_bent_ = std::max<Index>(0, part_.first - 3);
        begin_smoothing(next_bent_ - 1);
        const Index stride = padded_width<Real>((s_.width + 1) / 2);
        for (Index y = part_.first; y < part_.last; y += 2) {
            bend_to(y + 4);
            for (int part = 0; part < 3; ++part) {
                const bool odd = part == 2;
                const Real *rows[8];
                Real taps[8];
                for (Index k = 0; k < 8; ++k) {
                    const Reflected at = reflect_field(y - 3 + k, s_.height, false);
                    rows[k] = bent_[part].row(at.index);
                    taps[k] = odd && at.flipped ? -binomial_[k] : binomial_[k];
                }
                Real *mixed = moments_[0];
                for (Index x = 0; x < width_; ++x) {
                    Real sum = taps[0] * rows[0][x];
                    for (Index k = 1; k < 8; ++k) sum = multiply_add(taps[k], rows[k][x], sum);
                    mixed[x] = sum;
                }
                for (Index k = 1; k <= 4; ++k) {
                    const Reflected left = reflect_field(-k, width_, false);
                    const Reflected right = reflect_field(width_ - 1 + k, width_, false);
                    mixed[-k] = odd && left.flipped ? -mixed[left.index] : mixed[left.index];
                    mixed[width_ - 1 + k] =
                        odd && right.flipped ? -mixed[right.index] : mixed[right.index];
                }
                Real *out = f_.hessians[part] + y / 2 * stride + left_ / 2;
                for (Index j = (part_.from - left_) / 2; 2 * j < part_.to - left_; ++j) {
                    const Real *at = mixed + 2 * j;
                    const Real middle = multiply_add(binomial_[2], at[-1] + at[2],
                                                     binomial_[3] * (at[0] + at[1]));
                    out[j] = multiply_add(binomial_[0], at[-3] + at[4],
                                          multiply_add(binomial_[1], at[-2] + at[3], middle));
                }
            }
        }
    }

    // Number of pixels beyond its own that a tile looks at in each direction.
    static Index halo(const FusedFields<Real> &f) {
        Index sum = 2 + f.integration + (f.second ? 6 : 0);
        for (const Kernel<Real> &kernel : f.fine) sum += 2 * kernel.radius;
        if (!f.coarse.empty()) sum += 2 * f.interpolation.size();
        return (sum + 15) / 16 * 16;
    }

  private:
    static constexpr Real binomial_[8] = {Real(1) / 128,  Real(7) / 128,  Real(21) / 128,
                                          Real(35) / 128, Real(35) / 128, Real(21) / 128,
                                          Real(7) / 128,  Real(1) / 128};

    // Gated Hessians of a plane.
    struct Gated {
        Ring<Real> xx, xy, yy;
        HessianRow<Real> row(Index y) const { return {xx.row(y), xy.row(y), yy.row(y)}; }
    };

    struct Rows {
        Index first, last;
        bool has(Index y) const { return first <= y && y <= last; }
    };

    // The new row from the velocity.
    void write_row(Index c, Index y, Real *change) {
        const Index row = (c * s_.height + y) * padded_width<Real>(s_.width);
        const Real *old = f_.image + row;
        Real *out = f_.next + row;
        change -= left_;
        if (n_->pull != 0)
            for (Index x = part_.from; x < part_.to; ++x)
                change[x] = multiply_add(n_->pull, f_.original[row + x] - old[x], change[x]);
        for (Index x = part_.from; x < part_.to; ++x)
            out[x] = multiply_add(f_.tau, change[x], old[x]);
    }

    bool coarse() const { return scales_ > fine_; }
    Index reach() const { return f_.interpolation.size(); }
    Index at(Index scale, Index channel) const { return scale * s_.channels + channel; }

    const Real *padded_row(Index c, Index y) const {
        return f_.image + (c * s_.height + y) * padded_width<Real>(s_.width) + left_;
    }

    // Where each stage begins, and how many rows it keeps.
    void prepare(Index first, Index last) {
        started_ = false;
        next_coarse_ = first / 2;
        last_coarse_ = last == s_.height ? (last + 1) / 2 : last / 2;
        Index above = first;
        std::fill(next_total_.begin(), next_total_.end(), Index(0));
        for (Index i = 0; i <= n_->coarsest; ++i) {
            above -= f_.fine[i].radius;
            next_total_[i] = std::max<Index>(0, above);
        }
        if (coarse()) above = std::min(above, first - reach());
        next_flow_ = std::max<Index>(0, above);
        // Fine scales add up from the coarsest to the finest, and each needs fewer rows than the
        // one before; a pair of rows may be one ahead.
        std::fill(flows_.begin(), flows_.end(),
                  Rows{std::max<Index>(0, first - reach()), last + reach()});
        Index below = last - 1;
        for (Index i = 0; i <= n_->coarsest; ++i) {
            below += f_.fine[i].radius + 1;
            flows_[i] = {next_total_[i], below};
        }
        next_structure_ = std::max<Index>(0, next_flow_ - n_->integration.radius);
        next_gated_ = std::max<Index>(0, next_flow_ - 1);
        begin_smoothing(next_flow_ - 1 - std::max<Index>(n_->integration.radius, n_->second));
    }

    // Smooth from row `above` on, at all scales.
    void begin_smoothing(Index above) {
        std::fill(next_smooth_.begin(), next_smooth_.end(), std::max<Index>(0, above));
        for (Index i = fine_ - 2; i >= 0; --i) {
            above -= f_.fine[i + 1].radius;
            next_smooth_[i] = std::max<Index>(0, above);
        }
    }

    // The image at scale i, up to row y.
    void smooth_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_smooth_[i] <= y;) {
            const Index row = next_smooth_[i];
            const bool two = i < fine_ && row + 1 < s_.height;
            if (i > 0 && i < fine_) smooth_to(i - 1, row + two + f_.fine[i].radius);
            for (Index c = 0; c < s_.channels; ++c) {
                const Ring<Real> &ring = smoothed_[at(i, c)];
                Real *first = ring.row(row), *second = two ? ring.row(row + 1) : nullptr;
                if (i >= fine_)
                    resampler_.interpolate(coarse_plane(f_.coarse_smoothed, i, c), s_, left_, row,
                                           f_.interpolation, first);
                else
                    smooth_rows(
                        [&](Index r) -> const Real * {
                            r = reflect(r, s_.height);
                            return i ? smoothed_[at(i - 1, c)].row(r) : padded_row(c, r);
                        },
                        row, width_, f_.fine[i], by_reflection<Real>(width_), blur_, first, second);
                reflect_margins(first, width_, 1);
                if (two) reflect_margins(second, width_, 1);
            }
            next_smooth_[i] += 1 + two;
        }
    }

    // The flows of all scales, up to row y of the pixels.
    void flow_to(Index y) {
        for (y = std::min(y, s_.height - 1); next_flow_ <= y; ++next_flow_) {
            if (!started_) cells(next_flow_);
            started_ = true;
            cells(next_flow_ + 1);
            if (coarse()) emit_coarse_flows(next_flow_);
        }
    }

    // One row of cells: J, its eigenvalues, and the fluxes of all scales.
    void cells(Index y) {
        const Index up = reflect(y - 1, s_.height), down = reflect(y, s_.height);
        const bool integrated = n_->integration.radius > 0;
        if (integrated)
            integrate(y);
        else
            smooth_for_cells(y);
        const auto decompose = [&](Index x, const Moments<Real> &j) {
            eigen_.set(x, j, n_->tensor, n_->mix);
        };
        if (!integrated) find_coupled_rows(y);
        find_flowing_rows(y, up, down);
        // In parts of a row for which all scales fit into the innermost cache.
        const Index part = 8 * lanes<Real>;
        for (Index x = 0; x < width_; x += part) {
            const Index last = std::min(x + part, whole_vectors<Real>(width_));
            const Index from = x ? x + lanes<Real> : 0, to = last + lanes<Real>;
            if (!integrated)
                find_structure(y, from, to, decompose);
            else
                for (Index k = from; k < to; k += lanes<Real>)
                    decompose(k, {load(integrated_[0] + k), load(integrated_[1] + k),
                                  load(integrated_[2] + k)});
            for (Index i : n_->flowing)
                if (flows_[i].first <= y && y - 1 <= flows_[i].last)
                    add_fluxes(i, x, last);
        }
        if (n_->second && y > 0) add_hessian_flows(y - 1);
        for (Index i : n_->flowing)
            for (Index c = 0; i >= fine_ && flows_[i].has(y - 1) && c < s_.channels; ++c) {
                Real *flow = flow_[at(i, c)];
                reflect_margins(flow, width_, resampler_.pixels_around(f_.interpolation));
                resampler_.decimate_row(flow, f_.interpolation,
                                        decimated_[at(i - fine_, c)].row(y - 1));
            }
    }

    // Rows of the pixels around a row of cells, and of the flow above it, for all scales with fluxes.
    void find_flowing_rows(Index y, Index up, Index down) {
        for (Index i : n_->flowing)
            for (Index n = at(i, 0); n < at(i + 1, 0); ++n)
                // Above the first row of cells there are no pixels, and nobody reads the result.
                flowing_[n] = {smoothed_[n].row(up) - 1, smoothed_[n].row(down) - 1,
                               i >= fine_ ? flow_[n] : total_[n].row(y > 0 ? y - 1 : 0)};
    }

    // Fluxes of scale i in a part of a row of cells.
    void add_fluxes(Index i, Index x, Index last) {
        const FluxNumbers<Real> &numbers = n_->fluxes[i];
        for (Index n = at(i, 0); n < at(i + 1, 0); ++n) {
            const auto [above, below, flow] = flowing_[n];
            const auto add = [&, above = above, below = below, flow = flow](auto tensor) {
                flux_row<Real, decltype(tensor)::value, Accuracy::shortcut>(
                    above, below, eigen_, x, last, numbers, state_[n], carry_[n], flow);
            };
            n_->tensor ? add(std::true_type()) : add(std::false_type());
        }
    }

    // All scales at the pixels around a row of cells.
    void smooth_for_cells(Index y) {
        const Index last = std::max(reflect(y - 1, s_.height), reflect(y, s_.height));
        for (Index i = fine_ - 1; i < scales_; ++i) smooth_to(i, last);
    }

    // Rows of the pixels around a row of cells, for all planes that J is made of.
    void find_coupled_rows(Index y) {
        const Index up = reflect(y - 1, s_.height), down = reflect(y, s_.height);
        for (std::size_t k = 0; k < n_->coupled.size(); ++k) {
            above_[k] = smoothed_[n_->coupled[k]].row(up) - 1;
            below_[k] = smoothed_[n_->coupled[k]].row(down) - 1;
        }
    }

    // J in a part of a row of cells.
    template <class Use>
    void find_structure(Index y, Index x, Index last, const Use &use) {
        const Index count = static_cast<Index>(n_->coupled.size());
        const Real *local = nullptr;
        if (f_.sensitivity) local = f_.sensitivity + y * padded_width<Real>(s_.width + 1) + left_;
        structure_of_cells(above_.data(), below_.data(), n_->coupling.data(), count, local, x, last,
                           use);
    }

    // ---- the second order ----

    // All scales at a row of pixels and at its neighbours.
    void smooth_around(Index y) {
        for (Index i = fine_ - 1; i < scales_; ++i) smooth_to(i, y + 1);
    }

    Three<const Real *> rows_around(Index plane, Index y) const {
        const Ring<Real> &ring = smoothed_[plane];
        return {ring.row(reflect(y - 1, s_.height)), ring.row(y), ring.row(reflect(y + 1, s_.height))};
    }

    // J of the second order up to row y of the pixels.
    void bend_to(Index y) {
        const Index count = static_cast<Index>(n_->hessian.coupled.size());
        for (y = std::min(y, s_.height - 1); next_bent_ <= y; ++next_bent_) {
            smooth_around(next_bent_);
            for (Index k = 0; k < count; ++k)
                around_[k] = rows_around(n_->hessian.coupled[k], next_bent_);
            const Real *local = nullptr;
            if (f_.pixel_sensitivity)
                local = f_.pixel_sensitivity + next_bent_ * padded_width<Real>(s_.width) + left_;
            Real *const rows[] = {bent_[0].row(next_bent_), bent_[1].row(next_bent_),
                                  bent_[2].row(next_bent_)};
            structure_of_hessians(around_.data(), n_->hessian.coupling.data(), count, local, width_,
                                  [&](Index x, const Moments<Real> &j) {
                                      store(rows[0] + x, j.mean);
                                      store(rows[1] + x, j.deviation);
                                      store(rows[2] + x, j.xy);
                                  });
        }
    }

    // The gated Hessians of all scales up to row y.
    void gate_to(Index y) {
        for (y = std::min(y, s_.height - 1); next_gated_ <= y; ++next_gated_) {
            smooth_around(next_gated_);
            for (int part = 0; part < 3; ++part)
                interpolate(f_.hessians[part], next_gated_, part == 2, moments_[part]);
            for (Index x = 0; x < width_; x += lanes<Real>)
                bending_.set(x, {load(moments_[0] + x), load(moments_[1] + x), load(moments_[2] + x)},
                             true, n_->hessian.mix);
            for (Index i : n_->hessian.flowing)
                for (Index c = 0; c < s_.channels; ++c)
                    gate_hessian_row(rows_around(at(i, c), next_gated_), bending_,
                                     n_->hessian.rates[i], n_->hessian.weights[i], width_,
                                     gated_[at(i, c)].row(next_gated_));
        }
    }

    // Add the second order to row y of the flows.
    void add_hessian_flows(Index y) {
        gate_to(y + 1);
        const bool top = y == 0, bottom = y + 1 == s_.height;
        for (Index i : n_->hessian.flowing) {
            if (!flows_[i].has(y)) continue;
            for (Index c = 0; c < s_.channels; ++c) {
                const Gated &gated = gated_[at(i, c)];
                add_hessian_adjoint<Real>(
                    {gated.row(top ? y : y - 1), gated.row(y), gated.row(bottom ? y : y + 1)},
                    top ? Real(-1) : Real(1), bottom ? Real(-1) : Real(1), width_,
                    i >= fine_ ? flow_[at(i, c)] : total_[at(i, c)].row(y));
            }
        }
    }

    // A row of pixels from samples in the middle of 2 x 2 of them: the adjoint of those means. A
    // pixel takes its own sample with tap 3, the two beyond it on the pixel's side with taps 5 and
    // 7, and the next one on the other side with tap 1.
    void interpolate(const Real *plane, Index y, bool odd, Real *out) {
        const Index stride = padded_width<Real>((s_.width + 1) / 2), near = y / 2;
        const Index towards = y % 2 ? 1 : -1;  // the pixel's side of its sample
        const Real *rows[4];
        Real shares[4];
        for (Index k = 0; k < 4; ++k) {
            const Index sample = near + towards * (k - 1);
            rows[k] = plane + reflect_coarse(sample, s_.height) * stride + left_ / 2;
            const Real share = 2 * binomial_[1 + 2 * k];
            shares[k] = odd && is_flipped_coarse(sample, s_.height) ? -share : share;
        }
        Real *row = pair_;
        for (Index j = 0; j < half_width_; ++j) {
            const Real sum = multiply_add(shares[0], rows[0][j], shares[1] * rows[1][j]);
            row[j] = multiply_add(shares[2], rows[2][j], multiply_add(shares[3], rows[3][j], sum));
        }
        for (Index k = 1; k <= 2; ++k)
            for (const Index j : {-k, half_width_ - 1 + k}) {
                const Real value = row[reflect_coarse(j, width_)];
                row[j] = odd && is_flipped_coarse(j, width_) ? -value : value;
            }
        const Real far = 2 * binomial_[7], across = 2 * binomial_[1], side = 2 * binomial_[5];
        for (Index j = 0; j < half_width_; ++j) {
            const Real own = 2 * binomial_[3] * row[j];
            const Real first = multiply_add(side, row[j - 1], multiply_add(far, row[j - 2], own));
            const Real second = multiply_add(side, row[j + 1], multiply_add(far, row[j + 2], own));
            out[2 * j] = multiply_add(across, row[j + 1], first);
            out[2 * j + 1] = multiply_add(across, row[j - 1], second);
        }
    }

    // ---- the integration scale ----

    // J up to row y of the cells.
    void structure_to(Index y) {
        for (y = std::min(y, s_.height); next_structure_ <= y; ++next_structure_) {
            smooth_for_cells(next_structure_);
            find_coupled_rows(next_structure_);
            Real *const rows[] = {structure_[0].row(next_structure_),
                                  structure_[1].row(next_structure_),
                                  structure_[2].row(next_structure_)};
            find_structure(next_structure_, 0, whole_vectors<Real>(width_) + lanes<Real>,
                           [&](Index x, const Moments<Real> &j) {
                               store(rows[0] + x, j.mean);
                               store(rows[1] + x, j.deviation);
                               store(rows[2] + x, j.xy);
                           });
        }
    }

    // Row y of J, smoothed. Beyond the border of the image, J continues by reflection about the
    // outermost cells, J_xy with the opposite sign.
    void integrate(Index y) {
        const Kernel<Real> &kernel = n_->integration;
        const Index radius = kernel.radius, count = whole_vectors<Real>(width_ + 1);
        structure_to(y + radius);
        smooth_for_cells(y);
        for (int part = 0; part < 3; ++part) {
            const Ring<Real> &ring = structure_[part];
            const bool odd = part == 2;
            const auto row = [&](Index r) {
                return ring.row(reflect_field(r, s_.height + 1, true).index);
            };
            if (odd && (y < radius || y + radius > s_.height)) {
                std::fill(mixed_, mixed_ + count, Real(0));
                for (Index k = -radius; k <= radius; ++k) {
                    const bool flipped = reflect_field(y + k, s_.height + 1, true).flipped;
                    const Real tap = kernel.taps[std::abs(k)] * (flipped ? Real(-1) : Real(1));
                    const Real *from = row(y + k);
                    for (Index x = 0; x < count; x += lanes<Real>)
                        store(mixed_ + x,
                              multiply_add(broadcast(tap), load(from + x), load(mixed_ + x)));
                }
            } else {
                for (Index k = -radius; k <= radius; ++k) rows_[k + radius] = row(y + k);
                const Real *const *center = rows_ + radius;
                correlate(
                    center[0], [&](Index k) { return center[-k]; },
                    [&](Index k) { return center[k]; }, kernel.taps.data(), radius, count, mixed_);
            }
            for (Index k = 1; k <= radius; ++k) {
                const Reflected left = reflect_field(-k, width_ + 1, true);
                const Reflected right = reflect_field(width_ + k, width_ + 1, true);
                mixed_[-k] = left.flipped && odd ? -mixed_[left.index] : mixed_[left.index];
                mixed_[width_ + k] = right.flipped && odd ? -mixed_[right.index] : mixed_[right.index];
            }
            correlate_along(mixed_, kernel.taps.data(), radius, count, integrated_[part]);
        }
    }

    // The flows of the coarse scales at all rows of their grid that row y of the pixels completes.
    void emit_coarse_flows(Index y) {
        while (next_coarse_ < last_coarse_ &&
               (2 * next_coarse_ + reach() <= y || y == s_.height - 1)) {
            const Index row = next_coarse_++;
            for (Index i : n_->flowing) {
                if (i < fine_) continue;
                for (Index c = 0; c < s_.channels; ++c) {
                    decimate_columns(
                        [&](Index r) -> const Real * { return decimated_[at(i - fine_, c)].row(r); },
                        row, s_.height, f_.interpolation, whole_vectors<Real>(half_width_),
                        change_[0]);
                    Real *out = coarse_plane(f_.coarse_flows, i, c) +
                                row * padded_width<Real>((s_.width + 1) / 2);
                    std::copy(change_[0] + (part_.from - left_) / 2,
                              change_[0] + (part_.to - left_ + 1) / 2, out + part_.from / 2);
                }
            }
        }
    }

    Real *coarse_plane(Real *planes, Index i, Index c) const {
        return planes + at(i - fine_, c) * f_.coarse_plane_size();
    }

    // Flows of scale i and all coarser ones, added up at scale i.
    void total_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_total_[i] <= y;) {
            const Index row = next_total_[i];
            const bool two = row + 1 < s_.height;
            if (i < n_->coarsest) total_to(i + 1, row + two + f_.fine[i + 1].radius);
            flow_to(row + two);
            // Without any fine flow nobody has written the rows of the finest scale.
            for (Index c = 0; i == n_->coarsest && !n_->flows[i] && c < s_.channels; ++c)
                for (int k = 0; k <= two; ++k) {
                    Real *const sum = total_[at(i, c)].row(row + k);
                    std::fill(sum, sum + width_, Real(0));
                }
            for (Index c = 0; i < n_->coarsest && c < s_.channels; ++c) {
                smooth_rows([&](Index r) { return total_[at(i + 1, c)].row(reflect(r, s_.height)); },
                            row, width_, f_.fine[i + 1], by_reflection<Real>(width_), blur_,
                            change_[0], two ? change_[1] : nullptr);
                for (int k = 0; k <= two; ++k) add_to(i, total_[at(i, c)].row(row + k), change_[k]);
            }
            next_total_[i] += 1 + two;
        }
    }

    // Add what comes from coarser scales to the flow of scale i, if that has one.
    void add_to(Index i, Real *sum, const Real *change) const {
        if (!n_->flows[i]) {
            std::copy(change, change + width_, sum);
            return;
        }
        for (Index x = 0; x < width_; x += lanes<Real>) store(sum + x, load(sum + x) + load(change + x));
    }

    const FusedFields<Real> &f_;
    const Shape &s_;
    const Tiling::Part part_;
    const Index left_, width_, half_width_, fine_, scales_;
    const StepNumbers<Real> *n_ = nullptr;
    std::vector<Rows> flows_;  // rows whose flows are needed, of each scale
    std::vector<const Real *> above_, below_;
    std::vector<Flux<Real>> state_;
    struct FlowingRows {
        const Real *above, *below;
        Real *flow;
    };
    std::vector<FlowingRows> flowing_;
    std::vector<Ring<Real>> smoothed_, total_, decimated_;
    std::vector<Real *> carry_, flow_;  // flows of coarse scales in one row
    EigenRow<Real> eigen_{};
    const Real *rows_[2 * longest_radius + 2];
    BlurScratch<Real> blur_{};
    Real *change_[2] = {};
    Resampler<Real> resampler_;
    EigenRow<Real> bending_{};      // of J of the second order
    Ring<Real> bent_[3];            // that J, before it is smoothed
    Real *moments_[3] = {}, *pair_ = nullptr;
    std::vector<Gated> gated_;
    std::vector<Three<const Real *>> around_;
    Index next_gated_ = 0, next_bent_ = 0;
    Ring<Real> structure_[3];       // J before it is smoothed
    Real *integrated_[3] = {}, *mixed_ = nullptr;
    bool started_ = false;
    Index next_structure_ = 0;
    Index next_flow_ = 0, next_coarse_ = 0, last_coarse_ = 0;
    std::vector<Index> next_smooth_, next_total_;
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
