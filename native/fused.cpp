// A step of a first-order process on Haar cells with shortcuts: parts of the image in one sweep
// each (tile.hpp), large scales on a grid of half the resolution (resample.hpp). Reading order:
// step_fused().

#include "dispatch.hpp"
#include "tile.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

// Smooth the planes of one coarse scale on its grid.
template <class Real>
void smooth_coarse(const Real *in, Real *out, const Shape &s, const std::vector<double> &half,
                   bool add, Team &team) {
    const Index height = (s.height + 1) / 2, width = (s.width + 1) / 2;
    const Index stride = padded_width<Real>(width), count = whole_vectors<Real>(width);
    const Kernel<Real> kernel(half);
    team.rows(s.channels * height, [&](Index first, Index last) {
        std::vector<Real> buffer(stride), result(stride);
        Real *mixed = buffer.data() + margin;
        for (Index n = first; n < last; ++n) {
            const Real *plane = in + n / height * coarse_plane_size<Real>(s);
            const Real *above[longest_radius + 1], *below[longest_radius + 1];
            for (Index k = 1; k <= kernel.radius; ++k) {
                above[k] = plane + reflect_coarse(n % height - k, s.height) * stride;
                below[k] = plane + reflect_coarse(n % height + k, s.height) * stride;
            }
            correlate(
                plane + n % height * stride, [&](Index k) { return above[k]; },
                [&](Index k) { return below[k]; }, kernel.taps.data(), kernel.radius, count, mixed);
            for (Index i = 1; i <= kernel.radius; ++i) {
                mixed[-i] = mixed[reflect_coarse(-i, s.width)];
                mixed[width - 1 + i] = mixed[reflect_coarse(width - 1 + i, s.width)];
            }
            correlate_along(mixed, kernel.taps.data(), kernel.radius, count, result.data());
            Real *row = out + n / height * coarse_plane_size<Real>(s) + n % height * stride;
            for (Index x = 0; x < width; ++x) row[x] = result[x] + (add ? row[x] : Real(0));
        }
    });
}

// The image on the coarse grid, at the scale of the first kernel, and from there at all scales.
template <class Real>
void to_coarse_scales(const FusedStep<Real> &task) {
    const Shape &s = task.shape;
    const Index height = (s.height + 1) / 2, stride = padded_width<Real>((s.width + 1) / 2);
    const Index plane = s.channels * coarse_plane_size<Real>(s);
    Workspace<Real> &w = *task.workspace;
    const HalfKernel<Real> kernel(*task.sampling);
    task.team->rows(s.channels * height, [&](Index first, Index last) {
        Resampler<Real> resampler(s.width);
        std::vector<Real> mixed(padded_width<Real>(s.width)), result(stride);
        for (Index n = first; n < last; ++n) {
            const Index c = n / height, y = n % height;
            decimate_columns(
                [&](Index r) -> const Real * {
                    return w.image.data() +
                           (c * s.height + r) * padded_width<Real>(s.width) + margin;
                },
                y, s.height, kernel, whole_vectors<Real>(s.width), mixed.data() + margin);
            reflect_margins(mixed.data() + margin, s.width, resampler.pixels_around(kernel));
            resampler.decimate_row(mixed.data() + margin, kernel, result.data());
            std::copy(result.data(), result.data() + (s.width + 1) / 2,
                      w.sampled.data() + c * coarse_plane_size<Real>(s) + y * stride + margin);
        }
    });
    const Real *finer = w.sampled.data() + margin;
    for (std::size_t i = 0; i < task.coarse->size(); ++i) {
        Real *out = w.coarse.data() + static_cast<Index>(i) * plane + margin;
        smooth_coarse(finer, out, s, (*task.coarse)[i], false, *task.team);
        finer = out;
    }
}

// Add the flows of the coarse scales, from the coarsest to the pixels, to the new image.
template <class Real>
void add_coarse_flows(const FusedStep<Real> &task) {
    const Shape &s = task.shape;
    const Index plane = s.channels * coarse_plane_size<Real>(s);
    Workspace<Real> &w = *task.workspace;
    const Real tau = static_cast<Real>(task.tau);
    const HalfKernel<Real> kernel(*task.sampling);
    const Index fine = static_cast<Index>(task.fine->size());
    Index coarsest = static_cast<Index>(task.coarse->size()) - 1;
    while (coarsest >= 0 && task.term->flux_weights[fine + coarsest] == 0) --coarsest;
    if (coarsest < 0) return;
    for (Index i = coarsest; i >= 0; --i) {
        Real *here = w.coarse_flows.data() + i * plane + margin;
        const bool onto_flow = i > 0 && task.term->flux_weights[fine + i - 1] != 0;
        smooth_coarse(here, i ? here - plane : w.sampled.data() + margin, s, (*task.coarse)[i],
                      onto_flow, *task.team);
    }
    task.team->rows(s.channels * s.height, [&](Index first, Index last) {
        Resampler<Real> resampler(s.width);
        std::vector<Real> change(padded_width<Real>(s.width));
        for (Index n = first; n < last; ++n) {
            const Index c = n / s.height, y = n % s.height;
            resampler.interpolate(w.sampled.data() + c * coarse_plane_size<Real>(s) + margin, s, 0, y,
                                  kernel, change.data());
            Real *out = w.next.data() + n * padded_width<Real>(s.width) + margin;
            for (Index x = 0; x < s.width; ++x) out[x] += tau * change[x];
        }
    });
}

}  // namespace

template <class Real>
void step_fused(const FusedStep<Real> &task, const Real *in, Real *out, const Real *original) {
    const Shape &s = task.shape;
    const Index stride = padded_width<Real>(s.width), rows = s.channels * s.height;
    const Index coarse = static_cast<Index>(task.coarse->size());
    Workspace<Real> &w = *task.workspace;
    const Tiling tiling(s, Tile<Real>::halo(task), task.team->size());
    w.rings.resize(tiling.count());
    w.image.resize(rows * stride);
    w.next.resize(rows * stride);
    w.sampled.resize(coarse ? s.channels * coarse_plane_size<Real>(s) : 0);
    w.coarse.resize(coarse * w.sampled.size());
    w.coarse_flows.resize(coarse * w.sampled.size());
    if (in) {
        task.team->rows(rows, [&](Index first, Index last) {
            for (Index n = first; n < last; ++n)
                std::copy(in + n * s.width, in + (n + 1) * s.width,
                          w.image.data() + n * stride + margin);
        });
        if (const Real *local = task.local.cells) {
            w.sensitivity.assign((s.height + 1) * padded_width<Real>(s.width), Real(0));
            for (Index y = 0; y <= s.height; ++y, local += s.width + 1)
                std::copy(local, local + s.width + 1, w.sensitivity.data() + y * stride + margin);
        }
    }

    if (coarse) to_coarse_scales(task);
    task.team->pieces(tiling.count(), [&](Index piece) {
        const Tiling::Part part = tiling.part(piece);
        Tile<Real> tile(task, part.left, part.width, w.rings[piece]);
        tile.run(part.first, part.last, part.from, part.to, original);
    });
    if (coarse) add_coarse_flows(task);

    w.image.swap(w.next);
    if (out)
        task.team->rows(rows, [&](Index first, Index last) {
            for (Index n = first; n < last; ++n) {
                const Real *row = w.image.data() + n * stride + margin;
                std::copy(row, row + s.width, out + n * s.width);
            }
        });
}

template void step_fused(const FusedStep<float> &, const float *, float *, const float *);
template void step_fused(const FusedStep<double> &, const double *, double *, const double *);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
