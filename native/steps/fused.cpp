// Steps of a process of order one on Haar cells, or of orders one and two, with shortcuts: parts of the image in one sweep each
// (tile.hpp), large scales on a grid of half the resolution (resample.hpp). Reading order:
// FusedRun::advance().

#include "../core/instruction_sets.hpp"
#include "tile.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

template <class Real>
class FusedRun final : public Run<Real> {
  public:
    FusedRun(const FusedProcess &process, const Start<Real> &start)
        : f_(process, start),
          s_(f_.s),
          turned_(is_turned(start.shape)),
          executor_(*start.executor),
          tiling_(s_, Tile<Real>::halo(f_), executor_.workers()),
          scratch_(executor_.workers()) {
        const Index fine = static_cast<Index>(process.fine.size());
        // An entry for each step if these differ in the terms, or in what pulls them to the input.
        const Schedule &schedule = *start.schedule;
        for (std::size_t k = 0; k < std::max(schedule.size(), start.pulls.size()); ++k)
            numbers_.emplace_back(terms_at(schedule, k), fine, s_.channels, process.theta,
                                  pull_at(start.pulls, k));
        tiles_.reserve(tiling_.count());
        for (Index k = 0; k < tiling_.count(); ++k) tiles_.emplace_back(f_, tiling_.part(k));
        lay_out(*start.memory, [&](Arena<Real> &arena) {
            take_memory(arena, pulls_at_all(start.pulls), start.local.cells != nullptr);
        });
        const Index plane = s_.height * s_.width, padded = s_.height * padded_width<Real>(s_.width);
        for (Index c = 0; c < s_.channels; ++c) {
            copy_in(start.image + c * plane, s_.height, s_.width, turned_, f_.image + c * padded);
            if (f_.original)
                copy_in(start.image + c * plane, s_.height, s_.width, turned_,
                        f_.original + c * padded);
        }
        if (f_.sensitivity)
            copy_in(start.local.cells, s_.height + 1, s_.width + 1, turned_, f_.sensitivity);
        if (f_.pixel_sensitivity)
            copy_in(start.local.pixels, s_.height, s_.width, turned_, f_.pixel_sensitivity);
    }

    void advance(std::size_t step) override {
        const StepNumbers<Real> &numbers = numbers_[numbers_.size() == 1 ? 0 : step];
        if (!f_.coarse.empty()) to_coarse_scales();
        if (numbers.second) find_hessians(numbers);
        executor_.pieces(tiling_.count(), [&](Index piece, Index) { tiles_[piece].run(numbers); });
        if (!f_.coarse.empty()) add_coarse_flows(numbers);
        std::swap(f_.image, f_.next);
    }

    void read(Real *out) const override {
        for (Index c = 0; c < s_.channels; ++c)
            copy_out(f_.image + c * s_.height * padded_width<Real>(s_.width), s_.height, s_.width,
                     turned_, out + c * s_.height * s_.width);
    }

  private:
    // Of one thread.
    struct Scratch {
        const Real *rows[2 * longest_radius + 2];
        BlurScratch<Real> blur;
        Real *pixels, *samples;
        Resampler<Real> resampler;
    };

    void take_memory(Arena<Real> &arena, bool pulled, bool local) {
        const Index rows = s_.channels * s_.height, scales = static_cast<Index>(f_.coarse.size());
        const Index coarse = s_.channels * f_.coarse_plane_size();
        f_.image = take_rows(arena, s_.width, rows);
        f_.next = take_rows(arena, s_.width, rows);
        if (pulled) f_.original = take_rows(arena, s_.width, rows);
        if (local) f_.sensitivity = take_rows(arena, s_.width + 1, s_.height + 1);
        if (local && f_.second) f_.pixel_sensitivity = take_rows(arena, s_.width, s_.height);
        for (Tile<Real> &tile : tiles_) tile.take_memory(arena);
        if (f_.second) {
            for (Real *&plane : f_.hessians) plane = arena.take(f_.coarse_plane_size(), margin);
            smoothed_hessians_ = arena.take(f_.coarse_plane_size(), margin);
        }
        if (!scales && !f_.second) return;
        f_.sampled = arena.take(coarse, margin);
        f_.coarse_smoothed = arena.take(scales * coarse, margin);
        f_.coarse_flows = arena.take(scales * coarse, margin);
        for (Scratch &scratch : scratch_) {
            const Index width = (s_.width + 1) / 2;
            scratch.blur = {scratch.rows, {take_rows(arena, width), take_rows(arena, width)}};
            scratch.pixels = take_rows(arena, s_.width);
            scratch.samples = take_rows(arena, width);
            scratch.resampler = Resampler<Real>(arena, s_.width);
        }
    }

    // The image on the coarse grid, at the scale of the first kernel, and from there at all scales.
    void to_coarse_scales() {
        const Index height = (s_.height + 1) / 2, width = (s_.width + 1) / 2;
        executor_.rows(s_.channels * height, [&](Index first, Index last, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index n = first; n < last; ++n) {
                const Index c = n / height, y = n % height;
                decimate_columns(
                    [&](Index r) -> const Real * {
                        return f_.image + (c * s_.height + r) * padded_width<Real>(s_.width);
                    },
                    y, s_.height, f_.sampling, whole_vectors<Real>(s_.width), scratch.pixels);
                reflect_margins(scratch.pixels, s_.width,
                                scratch.resampler.pixels_around(f_.sampling));
                scratch.resampler.decimate_row(scratch.pixels, f_.sampling, scratch.samples);
                std::copy(scratch.samples, scratch.samples + width,
                          f_.sampled + c * f_.coarse_plane_size() + y * padded_width<Real>(width));
            }
        });
        const Real *finer = f_.sampled;
        const Index plane = s_.channels * f_.coarse_plane_size();
        for (std::size_t i = 0; i < f_.coarse.size(); ++i) {
            Real *out = f_.coarse_smoothed + static_cast<Index>(i) * plane;
            smooth_coarse(finer, out, f_.coarse[i], false);
            finer = out;
        }
    }

    // J of the second order on the coarse grid.
    void find_hessians(const StepNumbers<Real> &numbers) {
        executor_.pieces(tiling_.count(),
                         [&](Index piece, Index) { tiles_[piece].find_hessians(numbers); });
        for (int part = 0; part < 3; ++part) {
            smooth_hessians(f_.hessians[part], smoothed_hessians_, numbers.hessian.integration,
                            part == 2);
            std::swap(f_.hessians[part], smoothed_hessians_);
        }
    }

    // Smooth a plane on the coarse grid; an `odd` one changes its sign where it is reflected.
    void smooth_hessians(const Real *in, Real *out, const Kernel<Real> &kernel, bool odd) {
        const Index height = (s_.height + 1) / 2, width = (s_.width + 1) / 2;
        const Index stride = padded_width<Real>(width), radius = kernel.radius;
        executor_.rows(height, [&](Index first, Index last, Index worker) {
            Real *const mixed = scratch_[worker].blur.mixed[0];
            for (Index y = first; y < last; ++y) {
                std::fill(mixed, mixed + whole_vectors<Real>(width), Real(0));
                for (Index k = -radius; k <= radius; ++k) {
                    const Real *row = in + reflect_coarse(y + k, s_.height) * stride;
                    const bool flipped = odd && is_flipped_coarse(y + k, s_.height);
                    const Real tap = kernel.taps[std::abs(k)] * (flipped ? Real(-1) : Real(1));
                    for (Index x = 0; x < width; x += lanes<Real>)
                        store(mixed + x, multiply_add(broadcast(tap), load(row + x), load(mixed + x)));
                }
                for (Index k = 1; k <= radius; ++k) {
                    const Index left = reflect_coarse(-k, s_.width);
                    const Index right = reflect_coarse(width - 1 + k, s_.width);
                    mixed[-k] = odd && is_flipped_coarse(-k, s_.width) ? -mixed[left] : mixed[left];
                    mixed[width - 1 + k] =
                        odd && is_flipped_coarse(width - 1 + k, s_.width) ? -mixed[right] : mixed[right];
                }
                correlate_along(mixed, kernel.taps.data(), radius, whole_vectors<Real>(width),
                                out + y * stride);
            }
        });
    }

    // Smooth the planes of one coarse scale on its grid; `add` to what is there.
    void smooth_coarse(const Real *in, Real *out, const Kernel<Real> &kernel, bool add) {
        const Index height = (s_.height + 1) / 2, width = (s_.width + 1) / 2;
        const Index stride = padded_width<Real>(width);
        executor_.rows(s_.channels * height, [&](Index first, Index last, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index n = first; n < last; ++n) {
                const Index plane = n / height * f_.coarse_plane_size(), y = n % height;
                smooth_rows(
                    [&](Index r) { return in + plane + reflect_coarse(r, s_.height) * stride; }, y,
                    width, kernel,
                    [&](Real *row, Index radius) { reflect_coarse_margins(row, s_.width, radius); },
                    scratch.blur, scratch.samples, static_cast<Real *>(nullptr));
                Real *row = out + plane + y * stride;
                for (Index x = 0; x < width; ++x)
                    row[x] = scratch.samples[x] + (add ? row[x] : Real(0));
            }
        });
    }

    // Add the flows of the coarse scales, from the coarsest to the pixels, to the new image.
    void add_coarse_flows(const StepNumbers<Real> &numbers) {
        const Index plane = s_.channels * f_.coarse_plane_size();
        const Index fine = static_cast<Index>(f_.fine.size());
        if (numbers.flowing.empty() || numbers.flowing.back() < fine) return;
        for (Index i = numbers.flowing.back() - fine; i >= 0; --i) {
            Real *here = f_.coarse_flows + i * plane;
            smooth_coarse(here, i ? here - plane : f_.sampled, f_.coarse[i],
                          i > 0 && numbers.flows[fine + i - 1]);
        }
        executor_.rows(s_.channels * s_.height, [&](Index first, Index last, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index n = first; n < last; ++n) {
                const Index c = n / s_.height, y = n % s_.height;
                scratch.resampler.interpolate(f_.sampled + c * f_.coarse_plane_size(), s_, 0, y,
                                              f_.sampling, scratch.pixels);
                Real *out = f_.next + n * padded_width<Real>(s_.width);
                for (Index x = 0; x < s_.width; ++x)
                    out[x] = multiply_add(f_.tau, scratch.pixels[x], out[x]);
            }
        });
    }

    FusedFields<Real> f_;
    Real *smoothed_hessians_ = nullptr;
    const Shape &s_;
    const bool turned_;
    Executor &executor_;
    const Tiling tiling_;
    std::vector<StepNumbers<Real>> numbers_;  // of each entry of the schedule
    std::vector<Tile<Real>> tiles_;
    std::vector<Scratch> scratch_;
};

}  // namespace

template <class Real>
std::unique_ptr<Run<Real>> fused_run(const FusedProcess &process, const Start<Real> &start) {
    return std::make_unique<FusedRun<Real>>(process, start);
}

template std::unique_ptr<Run<float>> fused_run(const FusedProcess &, const Start<float> &);
template std::unique_ptr<Run<double>> fused_run(const FusedProcess &, const Start<double> &);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
