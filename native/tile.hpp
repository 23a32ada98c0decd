// A part of an image in one sweep over its rows.
//
// Every stage keeps only the rows that a later one still needs, in rings that stay in the cache: the
// smoothed images, and the sums of the flows on their way back to the finest scale. A row is
// computed when somebody asks for it. Reading order: Tile::run(), and from there to what it calls.
#pragma once

#include "fluxes.hpp"

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

// A part of the image: some rows of some columns, with all that is needed around them.
template <class Real>
class Tile {
  public:
    Tile(const FusedStep<Real> &task, Index first_column, Index columns, Buffer<Real> &memory)
        : task_(task),
          s_(task.shape),
          left_(first_column),
          width_(columns),
          half_width_((columns + 1) / 2),
          fine_(static_cast<Index>(task.fine->size())),
          scales_(fine_ + static_cast<Index>(task.coarse->size())),
          interpolation_(*task.interpolation),
          resampler_(columns) {
        for (const auto &half : *task.fine) kernels_.emplace_back(half);
        for (Index i = 0; i < scales_; ++i) {
            const Term &term = *task.term;
            const double contrast = term.contrasts[i];
            numbers_.push_back({static_cast<Real>(-1.4426950408889634 / (2 * contrast * contrast)),
                                static_cast<Real>(-term.flux_weights[i] / 4),
                                static_cast<Real>(1 - 2 * task.theta)});
            if (term.flux_weights[i] != 0) {
                flowing_.push_back(i);
                if (i < fine_) coarsest_ = i;
            }
            for (Index c = 0; term.coupling_weights[i] != 0 && c < s_.channels; ++c) {
                coupled_.push_back(at(i, c));
                coupling_.push_back(static_cast<Real>(term.coupling_weights[i] /
                                                      static_cast<double>(4 * s_.channels)));
            }
        }
        above_.resize(coupled_.size());
        below_.resize(coupled_.size());
        state_.resize(scales_ * s_.channels);
        Arena<Real> arena(memory);
        do take_memory(arena);
        while (!arena.enough());
    }

    // Compute the rows from `first` to `last` and write the columns from `from` to `to`.
    void run(Index first, Index last, Index from, Index to, const Real *original) {
        prepare(first, last);
        from_ = from;
        to_ = to;
        const Kernel<Real> &kernel = kernels_[0];
        for (Index y = first; y < last; y += 2) {
            const bool two = y + 1 < last;
            total_to(0, y + two + kernel.radius);
            for (Index c = 0; c < s_.channels; ++c) {
                smooth_rows([&](Index row) { return total_[c].row(row); }, y, s_.height, width_,
                            kernel, mixed_, change_[0], two ? change_[1] : nullptr);
                for (int k = 0; k <= two; ++k) write_row(c, y + k, change_[k], original);
            }
        }
        if (coarse()) flow_to(last + reach());
    }

    // Number of pixels beyond its own that a tile looks at in each direction.
    static Index halo(const FusedStep<Real> &task) {
        Index sum = 2;
        for (const auto &half : *task.fine) sum += 2 * (static_cast<Index>(half.size()) - 1);
        if (!task.coarse->empty()) sum += 2 * static_cast<Index>(task.interpolation->size());
        return (sum + 15) / 16 * 16;
    }

  private:
    // The new row from the velocity.
    void write_row(Index c, Index y, Real *change, const Real *original) {
        const Real tau = static_cast<Real>(task_.tau), pull = static_cast<Real>(task_.pull);
        Workspace<Real> &w = *task_.workspace;
        const Real *old = padded_row(c, y) - left_;
        const Real *aim = original + (c * s_.height + y) * s_.width;
        Real *out = w.next.data() + (old - w.image.data());
        change -= left_;
        if (pull != 0)
            for (Index x = from_; x < to_; ++x) change[x] += pull * (aim[x] - old[x]);
        for (Index x = from_; x < to_; ++x) out[x] = old[x] + tau * change[x];
    }

    bool coarse() const { return scales_ > fine_; }
    Index reach() const { return interpolation_.size(); }
    Index at(Index scale, Index channel) const { return scale * s_.channels + channel; }

    const Real *padded_row(Index c, Index y) const {
        const Workspace<Real> &w = *task_.workspace;
        return w.image.data() + (c * s_.height + y) * padded_width<Real>(s_.width) + margin + left_;
    }

    // Where each stage begins, and how many rows it keeps.
    void prepare(Index first, Index last) {
        next_coarse_ = first / 2;
        last_coarse_ = last == s_.height ? (last + 1) / 2 : last / 2;
        Index above = first;
        next_total_.assign(fine_, 0);
        for (Index i = 0; i <= coarsest_; ++i) {
            above -= kernels_[i].radius;
            next_total_[i] = std::max<Index>(0, above);
        }
        if (coarse()) above = std::min(above, first - reach());
        next_flow_ = std::max<Index>(0, above);
        // Fine scales add up from the coarsest to the finest, and each needs fewer rows than the
        // one before; a pair of rows may be one ahead.
        flows_.assign(scales_, {std::max<Index>(0, first - reach()), last + reach()});
        Index below = last - 1;
        for (Index i = 0; i <= coarsest_; ++i) {
            below += kernels_[i].radius + 1;
            flows_[i] = {next_total_[i], below};
        }
        above = next_flow_ - 1;
        next_smooth_.assign(scales_, std::max<Index>(0, above));
        for (Index i = fine_ - 2; i >= 0; --i) {
            above -= kernels_[i + 1].radius;
            next_smooth_[i] = std::max<Index>(0, above);
        }
    }

    // Take the memory of all stages; each keeps the rows that later ones still need.
    void take_memory(Arena<Real> &arena) {
        const Index padded = padded_width<Real>(width_);
        eigen_ = EigenRow<Real>(arena, whole_vectors<Real>(width_) + lanes<Real>);
        for (Real **row : {&mixed_[0], &mixed_[1], &change_[0], &change_[1]})
            *row = arena.take(padded) + margin;
        flow_.clear();
        for (Index k = fine_ * s_.channels; k < scales_ * s_.channels; ++k)
            flow_.push_back(arena.take(padded) + margin);
        carry_.clear();
        smoothed_.resize(scales_ * s_.channels);
        total_.resize(fine_ * s_.channels);
        decimated_.resize((scales_ - fine_) * s_.channels);
        for (Index k = 0; k < scales_ * s_.channels; ++k) carry_.push_back(arena.take(padded));
        Index later = 0, waiting = 0;
        for (Index i = scales_ - 1; i >= 0; --i) {
            // Rows come in pairs, so every stage may be one row ahead of what is asked for.
            const Index next = i + 1 < fine_ ? kernels_[i + 1].radius : 0;
            later += next + 1;
            if (i < coarsest_) waiting += next + 1;
            for (Index c = 0; c < s_.channels; ++c) {
                smoothed_[at(i, c)] = Ring<Real>(arena, later + 2 * next + 6, width_);
                if (i < fine_)
                    total_[at(i, c)] = Ring<Real>(arena, waiting + 2 * kernels_[i].radius + 6, width_);
                else
                    decimated_[at(i - fine_, c)] = Ring<Real>(arena, 2 * reach() + 4, half_width_);
            }
        }
    }

    // The image at scale i, up to row y.
    void smooth_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_smooth_[i] <= y;) {
            const Index row = next_smooth_[i];
            const bool two = i < fine_ && row + 1 < s_.height;
            if (i > 0 && i < fine_) smooth_to(i - 1, row + two + kernels_[i].radius);
            for (Index c = 0; c < s_.channels; ++c) {
                const Ring<Real> &ring = smoothed_[at(i, c)];
                Real *first = ring.row(row), *second = two ? ring.row(row + 1) : nullptr;
                if (i >= fine_)
                    resampler_.interpolate(coarse_plane(task_.workspace->coarse, i, c), s_, left_, row,
                                           interpolation_, first);
                else
                    smooth_rows(
                        [&](Index r) {
                            return i ? smoothed_[at(i - 1, c)].row(r) : padded_row(c, r);
                        },
                        row, s_.height, width_, kernels_[i], mixed_, first, second);
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
        for (Index i = fine_ - 1; i < scales_; ++i) smooth_to(i, std::max(up, down));
        // In parts of a row for which all scales fit into the innermost cache.
        const Index part = 8 * lanes<Real>;
        for (Index x = 0; x < width_; x += part) {
            const Index last = std::min(x + part, whole_vectors<Real>(width_));
            decompose_structure(y, up, down, x ? x + lanes<Real> : 0, last + lanes<Real>);
            for (Index i : flowing_)
                if (flows_[i].first <= y && y - 1 <= flows_[i].last)
                    add_fluxes(i, y, up, down, x, last);
        }
        for (Index i : flowing_)
            for (Index c = 0; i >= fine_ && flows_[i].has(y - 1) && c < s_.channels; ++c) {
                Real *flow = flow_[at(i - fine_, c)];
                reflect_margins(flow, width_, resampler_.pixels_around(interpolation_));
                resampler_.decimate_row(flow, interpolation_, decimated_[at(i - fine_, c)].row(y - 1));
            }
    }

    // Fluxes of scale i in a part of a row of cells.
    void add_fluxes(Index i, Index y, Index up, Index down, Index x, Index last) {
        const FluxNumbers<Real> &numbers = numbers_[i];
        for (Index c = 0; c < s_.channels; ++c) {
            const Index n = at(i, c);
            // Above the first row of cells there are no pixels, and nobody reads the result.
            Real *flow = i >= fine_ ? flow_[n - at(fine_, 0)] : total_[n].row(y > 0 ? y - 1 : 0);
            const Real *above = smoothed_[n].row(up) - 1, *below = smoothed_[n].row(down) - 1;
            if (task_.term->tensor)
                flux_row<Real, true>(above, below, eigen_, x, last, numbers, state_[n], carry_[n], flow);
            else
                flux_row<Real, false>(above, below, eigen_, x, last, numbers, state_[n], carry_[n], flow);
        }
    }

    // J and its eigenvalues in a part of a row of cells.
    void decompose_structure(Index y, Index up, Index down, Index x, Index last) {
        const std::size_t count = coupled_.size();
        for (std::size_t k = 0; k < count; ++k) {
            above_[k] = smoothed_[coupled_[k]].row(up) - 1;
            below_[k] = smoothed_[coupled_[k]].row(down) - 1;
        }
        const bool tensor = task_.term->tensor;
        const Real *local = nullptr;
        if (task_.local.cells)
            local = task_.workspace->sensitivity.data() + y * padded_width<Real>(s_.width) + margin +
                    left_;
        for (; x < last; x += lanes<Real>) {
            Packed<Real> falling{}, rising{}, product{};
            for (std::size_t k = 0; k < count; ++k) {
                const Cell<Real> cell(above_[k] + x, below_[k] + x);
                const Packed<Real> weighted = coupling_[k] * cell.falling;
                falling += weighted * cell.falling;
                product += weighted * cell.rising;
                rising += coupling_[k] * cell.rising * cell.rising;
            }
            if (local) {
                const Packed<Real> factor = load(local + x);
                falling *= factor;
                product *= factor;
                rising *= factor;
            }
            eigen_.decompose(x, falling, rising, product, tensor);
        }
    }

    // The flows of the coarse scales at all rows of their grid that row y of the pixels completes.
    void emit_coarse_flows(Index y) {
        while (next_coarse_ < last_coarse_ &&
               (2 * next_coarse_ + reach() <= y || y == s_.height - 1)) {
            const Index row = next_coarse_++;
            for (Index i : flowing_) {
                if (i < fine_) continue;
                for (Index c = 0; c < s_.channels; ++c) {
                    decimate_columns(
                        [&](Index r) -> const Real * { return decimated_[at(i - fine_, c)].row(r); },
                        row, s_.height, interpolation_, whole_vectors<Real>(half_width_),
                        change_[0]);
                    Real *out = coarse_plane(task_.workspace->coarse_flows, i, c) +
                                row * padded_width<Real>((s_.width + 1) / 2);
                    std::copy(change_[0] + (from_ - left_) / 2,
                              change_[0] + (to_ - left_ + 1) / 2, out + from_ / 2);
                }
            }
        }
    }

    Real *coarse_plane(Buffer<Real> &planes, Index i, Index c) const {
        return planes.data() + at(i - fine_, c) * coarse_plane_size<Real>(s_) + margin;
    }

    // Flows of scale i and all coarser ones, added up at scale i.
    void total_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_total_[i] <= y;) {
            const Index row = next_total_[i];
            const bool two = row + 1 < s_.height;
            if (i < coarsest_) total_to(i + 1, row + two + kernels_[i + 1].radius);
            flow_to(row + two);
            for (Index c = 0; i < coarsest_ && c < s_.channels; ++c) {
                smooth_rows([&](Index r) { return total_[at(i + 1, c)].row(r); }, row, s_.height,
                            width_, kernels_[i + 1], mixed_, change_[0], two ? change_[1] : nullptr);
                for (int k = 0; k <= two; ++k) add_to(i, total_[at(i, c)].row(row + k), change_[k]);
            }
            next_total_[i] += 1 + two;
        }
    }

    // Add what comes from coarser scales to the flow of scale i, if that has one.
    void add_to(Index i, Real *sum, const Real *change) const {
        if (task_.term->flux_weights[i] == 0) {
            std::copy(change, change + width_, sum);
            return;
        }
        for (Index x = 0; x < width_; x += lanes<Real>) store(sum + x, load(sum + x) + load(change + x));
    }

    struct Rows {
        Index first, last;
        bool has(Index y) const { return first <= y && y <= last; }
    };

    const FusedStep<Real> &task_;
    const Shape &s_;
    const Index left_, width_, half_width_, fine_, scales_;
    Index coarsest_ = 0;  // of the fine scales that have a flow
    std::vector<Kernel<Real>> kernels_;
    std::vector<FluxNumbers<Real>> numbers_;  // of each scale
    std::vector<Index> flowing_;              // scales
    std::vector<Rows> flows_;                 // rows whose flows are needed, of each scale
    std::vector<Index> coupled_;              // planes, which J takes with these weights
    std::vector<Real> coupling_;
    std::vector<const Real *> above_, below_;
    std::vector<Flux<Real>> state_;
    std::vector<Ring<Real>> smoothed_, total_, decimated_;
    std::vector<Real *> carry_, flow_;  // flows of coarse scales in one row
    EigenRow<Real> eigen_;
    Real *mixed_[2] = {}, *change_[2] = {};
    HalfKernel<Real> interpolation_;
    Resampler<Real> resampler_;
    bool started_ = false;
    Index from_ = 0, to_ = 0;  // columns to write
    Index next_flow_ = 0, next_coarse_ = 0, last_coarse_ = 0;
    std::vector<Index> next_smooth_, next_total_;
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
