// All scales of an image, each smoothed from the one before, and the adjoint.
#pragma once

#include "walk.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

// Does nothing to the planes of a scale.
struct Nothing {
    template <class Real>
    void operator()(Index, Real *) const {}
};

// Planes of one shape, with margins, lie behind each other: a stack.
template <class Real>
class Cascade {
  public:
    Cascade(const Taps &taps, const Shape &shape, Executor &executor, bool masked = false)
        : kernels_(kernels_of<Real>(taps)),
          s_(shape),
          executor_(executor),
          walk_(shape, executor),
          masked_(masked) {
        for (const Kernel<Real> &kernel : kernels_) radius_ = std::max(radius_, kernel.radius);
        scratch_.resize(executor.workers());
        rows_.resize(executor.workers() * (2 * radius_ + 2));
    }

    void take_memory(Arena<Real> &arena) {
        if (masked_) return walk_.take_memory(arena);
        const Index width = whole_vectors<Real>(s_.width) + lanes<Real> + 2 * radius_;
        for (std::size_t k = 0; k < scratch_.size(); ++k)
            scratch_[k] = {rows_.data() + k * (2 * radius_ + 2),
                           {arena.take(width, radius_ + lanes<Real>),
                            arena.take(width, radius_ + lanes<Real>)}};
    }

    // If the image has invalid pixels: the distances to them, before the first step.
    void find_edges(const Real *distances) { walk_.find_edges(distances); }

    Index scales() const { return static_cast<Index>(kernels_.size()); }
    Index stride() const { return padded_width<Real>(s_.width); }
    Index plane() const { return s_.height * stride(); }

    // Smooth `planes` planes to all scales. `then(i, planes)` is called with each scale before it is
    // used.
    template <class Then = Nothing>
    void to_all_scales(const Real *images, Real *const *smoothed, Index planes,
                       const Then &then = {}) {
        for (Index i = 0; i < scales(); ++i) {
            blur(i ? smoothed[i - 1] : images, smoothed[i], planes, kernels_[i]);
            then(i, smoothed[i]);
        }
    }

    // Add up the flows of all scales at the finest one, by Horner's rule: the adjoint of the above.
    // `present` says which scales have a flow. The flows are overwritten; `total` is a free stack
    // before, and the result afterwards. Returns whether there is any flow.
    template <class Then = Nothing>
    bool to_finest_scale(Real **flows, const std::vector<bool> &present, Real *&total, Index planes,
                         const Then &then = {}) {
        bool any = false;
        for (Index i = scales() - 1; i >= 0; --i) {
            if (!present[i] && !any) continue;
            if (!present[i])
                std::swap(flows[i], total);
            else if (any)
                add(total, flows[i], planes);
            blur(flows[i], total, planes, kernels_[i]);
            then(i, total);
            any = true;
        }
        return any;
    }

  private:
    void blur(const Real *in, Real *out, Index planes, const Kernel<Real> &kernel) {
        if (masked_) return walk_.blur(in, out, planes, kernel.taps);
        const Index pairs = (s_.height + 1) / 2;
        executor_.rows(planes * pairs, [&](Index first, Index last, Index worker) {
            for (Index n = first; n < last; ++n) {
                const Index y = n % pairs * 2;
                const Real *plane = in + n / pairs * this->plane();
                Real *row = out + n / pairs * this->plane() + y * stride();
                Real *next = y + 1 < s_.height ? row + stride() : nullptr;
                smooth_rows([&](Index r) { return plane + reflect(r, s_.height) * stride(); }, y,
                            s_.width, kernel, by_reflection<Real>(s_.width), scratch_[worker], row,
                            next);
                // For the cells on the border.
                reflect_margins(row, s_.width, 1);
                if (next) reflect_margins(next, s_.width, 1);
            }
        });
    }

    void add(const Real *from, Real *to, Index planes) {
        executor_.rows(planes * s_.height, [&](Index first, Index last, Index) {
            for (Index n = first; n < last; ++n)
                for (Index x = 0; x < s_.width; ++x) to[n * stride() + x] += from[n * stride() + x];
        });
    }

    std::vector<Kernel<Real>> kernels_;
    Shape s_;
    Executor &executor_;
    Walk<Real> walk_;
    const bool masked_;
    Index radius_ = 0;
    std::vector<const Real *> rows_;
    std::vector<BlurScratch<Real>> scratch_;
};

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
