// Steps in three dimensions, stage by stage for the blurs and slice by slice for the fluxes. Reading
// order: VolumeRun::advance().

#include "volume.hpp"

#include "../core/instruction_sets.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

template <class Real>
class VolumeRun final : public Run<Real> {
  public:
    VolumeRun(const VolumeProcess &process, const VolumeStart<Real> &start)
        : s_(start.shape),
          stride_(2 * lanes<Real> + whole_vectors<Real>(s_.width + 1) + lanes<Real>),
          slice_(s_.height * stride_),
          volume_(s_.slices * slice_),
          scales_(static_cast<Index>(process.taps[0].size())),
          theta_(process.theta),
          tau_(static_cast<Real>(start.tau)),
          pulls_(start.pulls),
          schedule_(*start.schedule),
          integration_(schedule_),
          executor_(*start.executor),
          smoothed_(scales_),
          present_(scales_),
          flows_(2 * scales_ * s_.channels),
          scratch_(executor_.workers()) {
        double rate = 0;
        for (const double h : process.spacing) rate += 2 / (h * h);
        for (int axis = 0; axis < 3; ++axis) {
            spacing_[axis] = process.spacing[axis];
            weights_[axis] = static_cast<Real>(1 / (rate * spacing_[axis] * spacing_[axis]));
            kernels_[axis] = kernels_of<Real>(process.taps[axis]);
            for (const Kernel<Real> &kernel : kernels_[axis])
                longest_ = std::max(longest_, kernel.radius);
        }
        for (int axis = 0; axis < 3; ++axis)
            longest_ = std::max(longest_, integration_.radius(axis));
        numbers_.reserve(scales_);
        for (Scratch &scratch : scratch_) {
            scratch.pointers.resize(2 * longest_ + 1);
            scratch.signed_taps.resize(2 * longest_ + 1);
            scratch.rows.resize(4 * scales_ * s_.channels);
        }
        lay_out(*start.memory, [&](Arena<Real> &arena) { take_memory(arena, start); });
        copy_in(start.image, s_.channels * s_.slices, s_.height, s_.width, image_);
        if (original_) copy_in(start.image, s_.channels * s_.slices, s_.height, s_.width, original_);
        if (local_) copy_in(start.local, s_.slices + 1, s_.height + 1, s_.width + 1, local_);
        if (valid_) copy_in(start.valid, s_.slices, s_.height, s_.width, valid_);
    }

    void advance(std::size_t step) override {
        const Term &term = terms_at(schedule_, step)[0];
        // Stage 1: the volume at every scale, each from the one before.
        for (Index i = 0; i < scales_; ++i)
            blur(i ? smoothed_[i - 1] : image_, nullptr, smoothed_[i], i);

        // Stages 2 to 5, one layer of cells after the other: the flow takes the place of the smoothed
        // volume, whose slices are needed for two layers.
        numbers_.clear();
        for (Index i = 0; i < scales_; ++i) {
            present_[i] = term.flux_weights[i] != 0;
            numbers_.emplace_back(term.contrasts[i], term.flux_weights[i], theta_, spacing_);
        }
        if (integration_.used()) integrate(term, step);
        for (Index z = 0; z <= s_.slices + 1; ++z)
            executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
                if (z > 1) keep_flows(z - 2, first, last);
                if (z > s_.slices) return;
                clear_flows(z, first, last);
                for (Index y = first; y <= last; ++y) add_fluxes(term, z, y, first, last, worker);
            });

        const Real pull = static_cast<Real>(pull_at(pulls_, step));

        // Stage 8: back to the finest scale, and the step itself.
        const Real *total = nullptr;
        for (Index i = scales_ - 1; i >= 0; --i) {
            if (!present_[i] && !total) continue;
            const Real *here = present_[i] ? smoothed_[i] : nullptr;
            blur(here ? here : total, here ? total : nullptr, change_, i);
            total = change_;
        }
        executor_.rows(s_.channels * s_.slices * s_.height, [&](Index first, Index last, Index) {
            for (Index n = first; n < last; ++n) {
                const Index row = n * stride_;
                for (Index x = row; x < row + s_.width; ++x) {
                    Real change = total ? change_[x] : Real(0);
                    if (original_) change = multiply_add(pull, original_[x] - image_[x], change);
                    image_[x] = multiply_add(tau_, change, image_[x]);
                }
            }
        });
    }

    void read(Real *out) const override {
        for (Index n = 0; n < s_.channels * s_.slices * s_.height; ++n)
            std::copy(image_ + n * stride_, image_ + n * stride_ + s_.width, out + n * s_.width);
    }

  private:
    struct Scratch {
        Real *lines = nullptr;  // a slice, or all slices of a row
        Real *mixed = nullptr;  // a row with margins
        Real *known = nullptr;  // one at the cells of a row whose voxels are all valid
        Real *frame[frame_numbers] = {};
        std::vector<const Real *> pointers, rows;
        std::vector<Real> signed_taps;
    };

    void take_memory(Arena<Real> &arena, const VolumeStart<Real> &start) {
        // A vector before the first row: cells look at the voxels on their left.
        const auto take = [&](Index rows) { return arena.take(rows * stride_, lanes<Real>); };
        const Index rows = s_.channels * s_.slices * s_.height;
        image_ = take(rows);
        change_ = take(rows);
        if (pulls_at_all(pulls_)) original_ = take(rows);
        for (Real *&smoothed : smoothed_) smoothed = take(rows);
        if (start.local) local_ = take((s_.slices + 1) * (s_.height + 1));
        if (start.valid) {
            valid_ = take(s_.slices * s_.height);
            here_ = take(rows);
            before_ = take(rows);
        }
        for (Real *&flow : flows_) flow = take(s_.height);
        if (integration_.used()) {
            for (Real *&entry : tensor_) entry = take((s_.slices + 1) * (s_.height + 1));
            if (start.valid) share_ = take((s_.slices + 1) * (s_.height + 1));
        }
        for (Scratch &scratch : scratch_) {
            scratch.lines = take(std::max(s_.slices, s_.height) + 1);
            const Index around = whole_vectors<Real>(longest_ + 1);
            scratch.mixed = arena.take(s_.width + around + 6 * lanes<Real>, around);
            scratch.known = arena.take(stride_);
            for (Real *&row : scratch.frame) row = arena.take(stride_);
        }
        if (!image_) return;
        // What lies beyond the rows is read, and has to be a number.
        std::fill(image_ - lanes<Real>, arena_end(arena), Real(0));
    }

    Real *arena_end(const Arena<Real> &arena) const { return image_ - lanes<Real> + arena.used(); }

    void copy_in(const Real *in, Index slices, Index height, Index width, Real *out) const {
        for (Index n = 0; n < slices * height; ++n)
            std::copy(in + n * width, in + (n + 1) * width, out + n * stride_);
    }

    // ---- blur ----

    // Smooth `in`, to which `more` is added if there is any; `out` may be one of them.
    void blur(const Real *in, const Real *more, Real *out, Index scale) {
        if (valid_) return walk(in, more, out, kernels_[0][scale].taps);
        const Index count = whole_vectors<Real>(s_.width);
        const Kernel<Real> &across = kernels_[1][scale], &along = kernels_[2][scale];
        executor_.pieces(s_.channels * s_.slices, [&](Index slice, Index worker) {
            Scratch &scratch = scratch_[worker];
            const Index from = slice * slice_;
            for (Index x = 0; x < slice_ - 2 * lanes<Real>; x += lanes<Real>)
                store(scratch.lines + x, more ? load(in + from + x) + load(more + from + x)
                                              : load(in + from + x));
            for (Index y = 0; y < s_.height; ++y) {
                for (Index k = -across.radius; k <= across.radius; ++k)
                    scratch.pointers[k + across.radius] =
                        scratch.lines + reflect(y + k, s_.height) * stride_;
                correlate_lines(scratch, across, count, scratch.mixed);
                reflect_margins(scratch.mixed, s_.width, along.radius);
                Real *row = out + from + y * stride_;
                correlate(
                    scratch.mixed, [&](Index k) { return scratch.mixed - k; },
                    [&](Index k) { return scratch.mixed + k; }, along.taps.data(), along.radius,
                    count, row);
            }
        });
        const Kernel<Real> &through = kernels_[0][scale];
        executor_.pieces(s_.channels * s_.height, [&](Index n, Index worker) {
            Scratch &scratch = scratch_[worker];
            Real *first = out + n / s_.height * volume_ + n % s_.height * stride_;
            for (Index z = 0; z < s_.slices; ++z)
                for (Index x = 0; x < count; x += lanes<Real>)
                    store(scratch.lines + z * stride_ + x, load(first + z * slice_ + x));
            for (Index z = 0; z < s_.slices; ++z) {
                for (Index k = -through.radius; k <= through.radius; ++k)
                    scratch.pointers[k + through.radius] =
                        scratch.lines + reflect(z + k, s_.slices) * stride_;
                Real *row = first + z * slice_;
                correlate_lines(scratch, through, count, row);
                reflect_margins(row, s_.width, 1);
            }
        });
    }

    static void correlate_lines(const Scratch &scratch, const Kernel<Real> &kernel, Index count,
                                Real *out) {
        const Real *const *center = scratch.pointers.data() + kernel.radius;
        correlate(
            center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; },
            kernel.taps.data(), kernel.radius, count, out);
    }

    // ---- invalid voxels ----

    // The blur around invalid voxels, as in integrodiff/stages/domain.py; `taps` are the coefficients
    // of the Chebyshev polynomials.
    void walk(const Real *in, const Real *more, Real *out, const std::vector<Real> &taps) {
        const Index rows = s_.channels * s_.slices * s_.height;
        executor_.rows(rows, [&](Index first, Index last, Index) {
            for (Index n = first * stride_; n < last * stride_; n += stride_)
                for (Index x = n; x < n + s_.width; ++x) {
                    here_[x] = more ? in[x] + more[x] : in[x];
                    out[x] = taps[0] * here_[x];
                }
        });
        for (std::size_t k = 1; k < taps.size(); ++k) {
            executor_.rows(rows, [&](Index first, Index last, Index) {
                for (Index n = first; n < last; ++n) walk_row(n, k == 1, taps[k], out + n * stride_);
            });
            std::swap(here_, before_);
        }
        executor_.rows(rows, [&](Index first, Index last, Index) {
            for (Index n = first; n < last; ++n) reflect_margins(out + n * stride_, s_.width, 1);
        });
    }

    // One row of the next polynomial, in place of the one before the last, added to `out`. Margins
    // are not valid, so that no edge leads there.
    void walk_row(Index n, bool first, Real tap, Real *out) {
        const Index y = n % s_.height, z = n / s_.height % s_.slices;
        const Real *row = here_ + n * stride_, *valid = valid_ + (z * s_.height + y) * stride_;
        const Index steps[3] = {slice_, stride_, 1};
        Real *const next = before_ + n * stride_;
        for (Index x = 0; x < s_.width; x += lanes<Real>) {
            const Packed<Real> here = load(row + x), mine = load(valid + x);
            Packed<Real> walked = here;
            const auto along = [&](Index to, Real weight) {
                const Packed<Real> edge = weight * (mine * load(valid + x + to));
                walked = multiply_add(edge, load(row + x + to) - here, walked);
            };
            for (int axis = 0; axis < 3; ++axis) {
                const bool begins = axis == 0 ? z == 0 : axis == 1 && y == 0;
                const bool ends = axis == 0 ? z + 1 == s_.slices : axis == 1 && y + 1 == s_.height;
                if (!begins) along(-steps[axis], weights_[axis]);
                if (!ends) along(steps[axis], weights_[axis]);
            }
            if (!first) walked = 2 * walked - load(next + x);
            store(next + x, walked);
            store(out + x, multiply_add(broadcast(tap), walked, load(out + x)));
        }
        // What was computed beyond the row is no part of the volume.
        std::fill(next + s_.width, next + whole_vectors<Real>(s_.width), Real(0));
    }

    // Which cells of a row have valid voxels alone. The first and the last lie on the border.
    void find_known(const Index *slices, const Index *rows, Real *known) const {
        std::fill(known, known + s_.width + 1, Real(1));
        for (int k = 0; k < 4; ++k) {
            const Real *valid = valid_ + slices[k / 2] * slice_ + rows[k % 2] * stride_;
            for (Index x = 0; x < s_.width; ++x) {
                known[x] *= valid[x];
                known[x + 1] *= valid[x];
            }
        }
    }

    // ---- the integration scale ----

    // The structure tensor of all cells, smoothed. With invalid voxels, also the inverse of the share
    // of known tensors in each mean.
    void integrate(const Term &term, std::size_t step) {
        executor_.pieces(s_.slices + 1, [&](Index z, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index y = 0; y <= s_.height; ++y) {
                const Real *known = point_to_rows(z, y, scratch);
                Real *rows[tensor_entries];
                for (int n = 0; n < tensor_entries; ++n) rows[n] = cell_row(tensor_[n], z, y);
                tensor_row(term, scales_, s_.channels, scratch.rows.data(), cell_row(local_, z, y),
                           known, s_.width, rows);
                if (known) std::copy(known, known + s_.width + 1, cell_row(share_, z, y));
            }
        });
        for (int n = 0; n < tensor_entries; ++n) integrate_field(tensor_[n], is_odd[n], step);
        if (!valid_) return;
        integrate_field(share_, is_odd[0], step);
        executor_.pieces(s_.slices + 1, [&](Index z, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index y = 0; y <= s_.height; ++y) {
                const Real *known = point_to_rows(z, y, scratch);
                Real *const share = cell_row(share_, z, y);
                for (Index x = 0; x <= s_.width; ++x) share[x] = known[x] > 0 ? 1 / share[x] : Real(0);
            }
        });
    }

    void integrate_field(Real *field, const bool *odd, std::size_t step) {
        const Index count = whole_vectors<Real>(s_.width + 1), rows = s_.height + 1;
        const auto row_of = [&](const Scratch &scratch, Index n) { return scratch.lines + n * stride_; };
        executor_.pieces(s_.slices + 1, [&](Index z, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index y = 0; y < rows; ++y)
                std::copy(cell_row(field, z, y), cell_row(field, z, y) + count, row_of(scratch, y));
            for (Index y = 0; y < rows; ++y) {
                smooth_across_cells(
                    integration_.at(step, 1), y, rows, odd[1],
                    [&](Index row) { return row_of(scratch, row); }, count, scratch.pointers.data(),
                    scratch.signed_taps.data(), scratch.mixed);
                smooth_along_cells(integration_.at(step, 2), s_.width + 1, odd[2], count,
                                   scratch.mixed, cell_row(field, z, y));
            }
        });
        executor_.pieces(rows, [&](Index y, Index worker) {
            Scratch &scratch = scratch_[worker];
            for (Index z = 0; z <= s_.slices; ++z)
                std::copy(cell_row(field, z, y), cell_row(field, z, y) + count, row_of(scratch, z));
            for (Index z = 0; z <= s_.slices; ++z)
                smooth_across_cells(
                    integration_.at(step, 0), z, s_.slices + 1, odd[0],
                    [&](Index layer) { return row_of(scratch, layer); }, count,
                    scratch.pointers.data(), scratch.signed_taps.data(), cell_row(field, z, y));
        });
    }

    // ---- fluxes ----

    // The flow of slice z is collected here while the layers on both of its sides are computed.
    Real *flow_of(Index scale, Index channel, Index z) {
        return flows_[((z & 1) * scales_ + scale) * s_.channels + channel];
    }

    void clear_flows(Index z, Index first, Index last) {
        for (Index i = 0; i < scales_; ++i)
            for (Index c = 0; c < s_.channels; ++c)
                std::fill(flow_of(i, c, z) + first * stride_, flow_of(i, c, z) + (last - 1) * stride_ +
                          whole_vectors<Real>(s_.width), Real(0));
    }

    // Both layers around slice z are done: nobody looks at the smoothed slice any more.
    void keep_flows(Index z, Index first, Index last) {
        for (Index i = 0; i < scales_; ++i)
            for (Index c = 0; present_[i] && c < s_.channels; ++c)
                for (Index y = first; y < last; ++y) {
                    const Real *flow = flow_of(i, c, z) + y * stride_;
                    std::copy(flow, flow + s_.width,
                              smoothed_[i] + c * volume_ + z * slice_ + y * stride_);
                }
    }

    // Of a field at the cells, if there is one.
    Real *cell_row(Real *field, Index z, Index y) const {
        return field ? field + (z * (s_.height + 1) + y) * stride_ : nullptr;
    }

    // The rows of voxels around the row of cells between the rows y - 1 and y of the slices z - 1 and
    // z; returns which of these cells have valid voxels alone, or null if all have.
    const Real *point_to_rows(Index z, Index y, Scratch &scratch) const {
        const Index slices[2] = {reflect(z - 1, s_.slices), reflect(z, s_.slices)};
        const Index rows[2] = {reflect(y - 1, s_.height), reflect(y, s_.height)};
        for (Index n = 0; n < scales_ * s_.channels; ++n)
            for (int k = 0; k < 4; ++k)
                scratch.rows[4 * n + k] = smoothed_[n / s_.channels] + n % s_.channels * volume_ +
                                          slices[k / 2] * slice_ + rows[k % 2] * stride_;
        if (!valid_) return nullptr;
        find_known(slices, rows, scratch.known);
        return scratch.known;
    }

    // Fluxes of that row of cells, for the rows of voxels from `first` to `last`.
    void add_fluxes(const Term &term, Index z, Index y, Index first, Index last, Index worker) {
        Scratch &scratch = scratch_[worker];
        const Index planes = scales_ * s_.channels;
        const Real *known = point_to_rows(z, y, scratch);
        if (integration_.used()) {
            const Real *tensor[tensor_entries];
            for (int n = 0; n < tensor_entries; ++n) tensor[n] = cell_row(tensor_[n], z, y);
            frame_row(term.tensor, tensor, share_ ? cell_row(share_, z, y) : nullptr, s_.width,
                      scratch.frame);
        } else {
            couple_row(term, scales_, s_.channels, scratch.rows.data(), cell_row(local_, z, y), known,
                       s_.width, scratch.frame);
        }
        for (Index n = 0; n < planes; ++n) {
            const Index i = n / s_.channels, c = n % s_.channels;
            if (!present_[i]) continue;
            Real *flows[4];
            for (int k = 0; k < 4; ++k) {
                const Index slice = z - 1 + k / 2, row = y - 1 + k % 2;
                const bool mine = slice >= 0 && slice < s_.slices && row >= first && row < last;
                flows[k] = mine ? flow_of(i, c, slice) + row * stride_ : nullptr;
            }
            const auto fluxes = term.tensor ? volume_flux_row<Real, true, Accuracy::full>
                                            : volume_flux_row<Real, false, Accuracy::full>;
            fluxes(scratch.rows.data() + 4 * n, scratch.frame, known, s_.width, numbers_[i], flows);
        }
    }

    const VolumeShape s_;
    const Index stride_, slice_, volume_, scales_;
    const double theta_;
    double spacing_[3];
    const Real tau_;
    const std::vector<double> pulls_;
    const Schedule &schedule_;
    const VolumeIntegration<Real> integration_;
    Executor &executor_;
    std::vector<Kernel<Real>> kernels_[3];  // along slices, rows and columns, for each scale
    Index longest_ = 0;
    Real weights_[3];  // of the edges along each axis
    Real *image_ = nullptr, *original_ = nullptr, *change_ = nullptr, *local_ = nullptr;
    // Of a volume with invalid voxels: one at the valid ones, and polynomials of the walk.
    Real *valid_ = nullptr, *here_ = nullptr, *before_ = nullptr;
    // Of the integration: entries of the structure tensor, and the inverse share of known ones.
    Real *tensor_[tensor_entries] = {}, *share_ = nullptr;
    std::vector<Real *> smoothed_;  // of each scale
    std::vector<bool> present_;     // scales that have a flow
    std::vector<Real *> flows_;     // of two slices, for each scale and channel
    std::vector<VolumeNumbers<Real>> numbers_;
    std::vector<Scratch> scratch_;
};

}  // namespace

template <class Real>
std::unique_ptr<Run<Real>> volume_run(const VolumeProcess &process, const VolumeStart<Real> &start) {
    return std::make_unique<VolumeRun<Real>>(process, start);
}

template std::unique_ptr<Run<float>> volume_run(const VolumeProcess &, const VolumeStart<float> &);
template std::unique_ptr<Run<double>> volume_run(const VolumeProcess &, const VolumeStart<double> &);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
