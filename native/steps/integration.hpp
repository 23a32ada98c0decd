// The integration scale: a Gaussian that smooths J, or an energy, before g.
#pragma once

#include "blur.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// How a plane continues beyond the border. At cells that is reflection about the outermost ones,
// where J_xy changes its sign; at pixels about the border of the image.
struct Continuation {
    bool on_cells;
    bool odd;
};

// Smooth planes with margins. One object serves planes at cells and at pixels.
template <class Real>
class Integration {
  public:
    // For kernels up to the longest of a schedule.
    Integration(const Schedule &schedule, const Shape &shape, Executor &executor)
        : s_(shape), executor_(executor), scratch_(executor.workers()) {
        for (const auto &terms : schedule)
            for (const Term &term : terms)
                radius_ = std::max(radius_, static_cast<Index>(term.integration.size()) - 1);
        rows_.resize(scratch_.size() * (2 * radius_ + 2));
        taps_.taps.resize(radius_ + 1);
    }

    void take_memory(Arena<Real> &arena) {
        if (radius_ < 0) return;
        const Index width = whole_vectors<Real>(s_.width + 1) + lanes<Real> + 2 * radius_;
        for (std::size_t k = 0; k < scratch_.size(); ++k)
            scratch_[k] = {rows_.data() + k * (2 * radius_ + 2),
                           {arena.take(width, radius_ + lanes<Real>),
                            arena.take(width, radius_ + lanes<Real>)}};
        extended_ = take_rows(arena, s_.width + 1, s_.height + 1 + 2 * radius_);
    }

    // A plane of height x width pixels, or of one more cell in both directions, in place.
    void smooth(Real *plane, const std::vector<double> &half, Continuation how) {
        for (std::size_t k = 0; k < half.size(); ++k) taps_.taps[k] = static_cast<Real>(half[k]);
        taps_.radius = static_cast<Index>(half.size()) - 1;
        const Index height = s_.height + how.on_cells, width = s_.width + how.on_cells;
        const Index stride = padded_width<Real>(s_.width + 1);
        executor_.rows(height + 2 * taps_.radius, [&](Index first, Index last, Index) {
            for (Index row = first; row < last; ++row) {
                const Reflected at = reflect_field(row - taps_.radius, height, how.on_cells);
                const Real sign = at.flipped && how.odd ? Real(-1) : Real(1);
                const Real *from = plane + at.index * stride;
                Real *to = extended_ + row * stride;
                for (Index x = 0; x < width; ++x) to[x] = sign * from[x];
            }
        });
        const auto extend = [&](Real *row, Index radius) {
            const auto continued = [&](Index x) {
                const Reflected at = reflect_field(x, width, how.on_cells);
                return at.flipped && how.odd ? -row[at.index] : row[at.index];
            };
            for (Index x = 1; x <= radius; ++x) {
                row[-x] = continued(-x);
                row[width - 1 + x] = continued(width - 1 + x);
            }
        };
        executor_.rows(height, [&](Index first, Index last, Index worker) {
            for (Index y = first; y < last; ++y)
                smooth_rows([&](Index r) { return extended_ + (r + taps_.radius) * stride; }, y,
                            width, taps_, extend, scratch_[worker], plane + y * stride,
                            static_cast<Real *>(nullptr));
        });
    }

  private:
    Shape s_;
    Executor &executor_;
    Index radius_ = -1;
    Kernel<Real> taps_{std::vector<double>()};
    std::vector<const Real *> rows_;
    std::vector<BlurScratch<Real>> scratch_;  // of each thread
    Real *extended_ = nullptr;
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
