// Steps in three dimensions with shortcuts, in one sweep through the slices. Beside the volume, a step
// holds an eighth of it for each coarse scale and its flow, and some slices. Reading order:
// FusedVolumeRun::advance() and tick().

#include "volume.hpp"

#include "../core/instruction_sets.hpp"
#include "resample.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

// An axis of the volume, and its coarse grid.
struct Axis {
    Index size;
    bool halved;
    Index coarse() const { return halved ? (size + 1) / 2 : size; }
    Index reflected(Index j) const { return halved ? reflect_coarse(j, size) : reflect(j, size); }
    // The samples of a part of the voxels: parts of all voxels have all samples.
    Index first_sample(Index voxel) const { return halved ? (voxel + 1) / 2 : voxel; }
};

template <class Real>
class FusedVolumeRun final : public Run<Real> {
  public:
    FusedVolumeRun(const FusedVolumeProcess &process, const VolumeStart<Real> &start)
        : s_(start.shape),
          axes_{{s_.slices, process.halved[0]},
                {s_.height, process.halved[1]},
                {s_.width, process.halved[2]}},
          // A neighbour on both sides of a row: two numbers, even where a vector is a single one.
          stride_(whole_vectors<Real>(s_.width) + std::max<Index>(lanes<Real>, 2)),
          slice_(s_.height * stride_),
          kept_(s_.channels * slice_ + lanes<Real>),
          coarse_stride_(whole_vectors<Real>(axes_[2].coarse())),
          coarse_slice_(axes_[1].coarse() * coarse_stride_),
          coarse_volume_(axes_[0].coarse() * coarse_slice_),
          fine_(static_cast<Index>(process.fine[0].size())),
          coarse_(static_cast<Index>(process.coarse[0].size())),
          theta_(process.theta),
          tau_(static_cast<Real>(start.tau)),
          pulls_(start.pulls),
          schedule_(*start.schedule),
          integration_(schedule_),
          // A layer of cells is ready for its fluxes that many slices after its structure tensor.
          delay_(integration_.used() ? integration_.radius(0) + 2 : 0),
          kept_slices_(3 + delay_),
          executor_(*start.executor),
          smoothed_(fine_ + coarse_),
          flows_(fine_ + coarse_),
          coarse_smoothed_(coarse_),
          coarse_flows_(coarse_),
          scratch_(executor_.workers()) {
        for (int axis = 0; axis < 3; ++axis) {
            spacing_[axis] = process.spacing[axis];
            kernels_[axis] = kernels_of<Real>(process.fine[axis]);
            coarse_kernels_[axis] = kernels_of<Real>(process.coarse[axis]);
            sampling_.emplace_back(process.sampling[axis]);
            interpolation_.emplace_back(process.interpolation[axis]);
        }
        for (int axis = 0; axis < 2; ++axis)
            for (const Kernel<Real> &kernel : kernels_[axis])
                reach_[axis] = std::max(reach_[axis], kernel.radius);
        sum_slices_ = std::min(s_.slices, 2 * reach_[0] + 1);
        numbers_.reserve(fine_ + coarse_);
        for (Scratch &scratch : scratch_) {
            scratch.rings.resize(fine_);
            scratch.flow_rows.resize(fine_);
            scratch.pairs.resize(reach_[0] + 1);
            scratch.sources.resize(std::max(reach_[0] + 1, fine_));
            scratch.taps.resize(fine_);
            scratch.rows.resize(4 * (fine_ + coarse_) * s_.channels);
        }
        lay_out(*start.memory, [&](Arena<Real> &arena) { take_memory(arena, start); });
        const Index numbers = s_.channels * s_.slices * s_.height * s_.width;
        std::copy(start.image, start.image + numbers, image_);
        if (original_) std::copy(start.image, start.image + numbers, original_);
        if (local_)
            for (Index n = 0; n < (s_.slices + 1) * (s_.height + 1); ++n)
                std::copy(start.local + n * (s_.width + 1), start.local + (n + 1) * (s_.width + 1),
                          local_ + n * stride_);
    }

    void advance(std::size_t step) override {
        step_ = step;
        pull_ = static_cast<Real>(pull_at(pulls_, step));
        term_ = &terms_at(schedule_, step)[0];
        numbers_.clear();
        for (Index i = 0; i < fine_ + coarse_; ++i)
            numbers_.emplace_back(term_->contrasts[i], term_->flux_weights[i], theta_, spacing_);
        if (coarse_) to_coarse_scales();
        // At the same time, each of the stages at a slice that nobody else needs then.
        for (Index t = 0; t < s_.slices + reach_[0] + 3 + delay_; ++t)
            executor_.rows(s_.height, [&](Index first, Index last, Index worker) {
                tick(t, first, last, scratch_[worker]);
            });
        if (coarse_) add_coarse_flows();
    }

    void read(Real *out) const override {
        std::copy(image_, image_ + s_.channels * s_.slices * s_.height * s_.width, out);
    }

  private:
    // Of one thread.
    struct Scratch {
        const Real *pointers[2 * longest_radius + 2];
        Real *mixed, *row;          // with margins
        Real *slice, *lines;        // all rows of a slice, or all slices of a coarse row
        Real *frame[frame_numbers];
        Real *tensor[tensor_entries];
        Real signed_taps[2 * longest_radius + 1];
        std::vector<Real *> rings;      // for each fine scale, rows that are smoothed across slices
        std::vector<Real *> flow_rows;  // for each fine scale, a row that is smoothed in its slice
        std::vector<Real *> pairs;      // sums of rows of two slices at the same distance
        std::vector<const Real *> sources, taps, rows;
        Resampler<Real> resampler;
    };

    void take_memory(Arena<Real> &arena, const VolumeStart<Real> &start) {
        const Index numbers = s_.channels * s_.slices * s_.height * s_.width;
        const Index spare = 4 * lanes<Real>;  // whole vectors that begin in the last row
        image_ = arena.take(numbers + spare);
        if (pulls_at_all(pulls_)) original_ = arena.take(numbers + spare);
        if (start.local) local_ = arena.take((s_.slices + 1) * (s_.height + 1) * stride_ + spare);
        Real *const begin = arena.take(0);
        // A vector before the first row: cells look at the voxels on their left.
        const auto take = [&](Index count) { return arena.take(count + spare, lanes<Real>); };
        for (Real *&smoothed : smoothed_) smoothed = take(kept_slices_ * kept_);
        for (Real *&flow : flows_) flow = take(3 * kept_);
        sums_ = take(sum_slices_ * s_.channels * slice_);
        if (integration_.used()) {
            tensors_ = take(2 * tensor_entries * layer());
            integrated_ = take(integrated_layers() * tensor_entries * layer());
        }
        if (coarse_) {
            sampled_ = arena.take(s_.channels * coarse_volume_ + spare);
            for (Real *&smoothed : coarse_smoothed_)
                smoothed = arena.take(s_.channels * coarse_volume_ + spare);
            for (Real *&flow : coarse_flows_)
                flow = arena.take(s_.channels * coarse_volume_ + spare);
        }
        for (Scratch &scratch : scratch_) {
            scratch.mixed = take_rows(arena, s_.width);
            scratch.row = take_rows(arena, s_.width);
            for (Index i = 0; i < fine_; ++i) {
                scratch.rings[i] = arena.take((2 * kernels_[1][i].radius + 1) * stride_ + spare);
                scratch.flow_rows[i] = take_rows(arena, s_.width);
            }
            for (Real *&pair : scratch.pairs) pair = take_rows(arena, s_.width);
            for (Real *&row : scratch.frame) row = arena.take(stride_ + spare);
            for (Real *&row : scratch.tensor)
                row = integration_.used() ? arena.take(stride_ + spare) : nullptr;
            if (!coarse_) continue;
            scratch.slice = arena.take(slice_ + spare);
            scratch.lines = arena.take(axes_[0].coarse() * coarse_stride_ + spare);
            if (axes_[2].halved) scratch.resampler = Resampler<Real>(arena, s_.width);
        }
        if (!begin) return;
        // What lies beyond the rows is read, and has to be a number. Sums begin with zero.
        std::fill(image_ + numbers, image_ + numbers + spare, Real(0));
        if (local_) std::fill(local_, begin, Real(0));
        std::fill(begin, image_ + arena.used(), Real(0));
    }

    // Everything that can be done for the rows from `first` to `last`, from what is there since the
    // tick before: slice t at all scales, the layer of cells before slice t - 1, the way back of the
    // flow of slice t - 3, and the slice that no other flow reaches any more. With an integration
    // scale, the structure tensor of that layer, which the next tick smooths in its slice; fluxes
    // and all that follows wait for the layers that are averaged.
    void tick(Index t, Index first, Index last, Scratch &scratch) {
        if (t < s_.slices) {
            smooth(t, first, last, scratch);
            for (Index i = 0; i < coarse_; ++i) interpolate(i, t, first, last, scratch);
        }
        if (integration_.used()) {
            if (t >= 1 && t <= s_.slices + 1) find_tensors(t - 1, first, last, scratch);
            if (t >= 2 && t <= s_.slices + 2) smooth_tensors(t - 2, first, last, scratch);
        }
        const Index later = t - delay_, done = later - 3 - reach_[0];
        if (later >= 1 && later <= s_.slices + 1) add_layer(later - 1, first, last, scratch);
        if (later >= 3 && later < s_.slices + 3) {
            add_to_sums(later - 3, first, last, scratch);
            for (Index i = 0; i < coarse_; ++i)
                if (has_flow(fine_ + i)) add_to_samples(i, later - 3, first, last, scratch);
        }
        if (done >= 0 && done < s_.slices) finish(done, first, last);
    }

    bool has_flow(Index scale) const { return term_->flux_weights[scale] != 0; }

    // ---- places ----

    Real *image_row(Index channel, Index z, Index y) const {
        return image_ + ((channel * s_.slices + z) * s_.height + y) * s_.width;
    }

    // Of a smoothed slice. Whoever reads whole vectors of one, beyond its last row, does not meet who
    // writes the next.
    Real *smoothed_row(Index scale, Index channel, Index z, Index y) const {
        return smoothed_[scale] + (z % kept_slices_) * kept_ + channel * slice_ + y * stride_;
    }

    // Of its flow; three of them are kept.
    Real *flow_row(Index scale, Index channel, Index z, Index y) const {
        return flows_[scale] + (z % 3) * kept_ + channel * slice_ + y * stride_;
    }

    // Numbers of a layer of cells.
    Index layer() const { return (s_.height + 1) * stride_ + lanes<Real>; }

    // Layers that are averaged, and the one that is made at the same time.
    Index integrated_layers() const { return 2 * integration_.radius(0) + 2; }

    // Of the structure tensor, as it is found and smoothed in its slice.
    Real *tensor_row_at(int entry, Index z, Index y) const {
        return tensors_ + (z % 2 * tensor_entries + entry) * layer() + y * stride_;
    }

    Real *integrated_row(int entry, Index z, Index y) const {
        return integrated_ + (z % integrated_layers() * tensor_entries + entry) * layer() +
               y * stride_;
    }

    Real *sum_row(Index channel, Index z, Index y) const {
        return sums_ + ((z % sum_slices_) * s_.channels + channel) * slice_ + y * stride_;
    }

    Real *coarse_row(Real *volume, Index channel, Index z, Index y) const {
        return volume + channel * coarse_volume_ + z * coarse_slice_ + y * coarse_stride_;
    }

    // ---- fine scales ----

    // Slice z at all fine scales. Row y of the slices around it is needed for rows that are as far
    // away as a kernel reaches, and each scale is smoothed along rows as soon as it can be.
    void smooth(Index z, Index first, Index last, Scratch &scratch) {
        const Index reach = reach_[1];
        for (Index c = 0; c < s_.channels; ++c)
            for (Index y = std::max<Index>(first - reach, 0); y < last + reach; ++y) {
                if (y < s_.height) smooth_across_slices(c, z, y, first, last, scratch);
                for (Index i = 0; i < fine_; ++i) {
                    const Index radius = kernels_[1][i].radius, row = y - radius;
                    if (row < first || row >= last) continue;
                    for (Index k = -radius; k <= radius; ++k)
                        scratch.pointers[k + radius] = ring_row(i, reflect(row + k, s_.height), scratch);
                    Real *const out = smoothed_row(i, c, z, row);
                    smooth_in_slice(i, scratch, out);
                    reflect_margins(out, s_.width, 1);
                }
            }
    }

    Real *ring_row(Index i, Index y, const Scratch &scratch) const {
        return scratch.rings[i] + y % (2 * kernels_[1][i].radius + 1) * stride_;
    }

    void smooth_across_slices(Index c, Index z, Index y, Index first, Index last,
                              Scratch &scratch) const {
        const Index count = whole_vectors<Real>(s_.width);
        const auto needed = [&](Index i) {
            const Index radius = kernels_[1][i].radius;
            return y >= first - radius && y < last + radius;
        };
        Index furthest = 0;
        for (Index i = 0; i < fine_; ++i)
            if (needed(i)) furthest = std::max(furthest, kernels_[0][i].radius);
        scratch.sources[0] = image_row(c, z, y);
        for (Index k = 1; k <= furthest; ++k) {
            const Real *a = image_row(c, reflect(z - k, s_.slices), y);
            const Real *b = image_row(c, reflect(z + k, s_.slices), y);
            Real *const out = scratch.pairs[k];
            for (Index x = 0; x < count; x += lanes<Real>) store(out + x, load(a + x) + load(b + x));
            scratch.sources[k] = out;
        }
        for (Index i = 0; i < fine_; ++i)
            if (needed(i))
                add_up(scratch.sources.data(), kernels_[0][i].taps.data(), kernels_[0][i].radius,
                       count, ring_row(i, y, scratch));
    }

    // Along columns, of the rows in `pointers`, and along rows.
    void smooth_in_slice(Index i, Scratch &scratch, Real *out) const {
        const Index count = whole_vectors<Real>(s_.width);
        const Kernel<Real> &across = kernels_[1][i], &along = kernels_[2][i];
        const Real *const *center = scratch.pointers + across.radius;
        correlate(
            center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; },
            across.taps.data(), across.radius, count, scratch.mixed);
        reflect_margins(scratch.mixed, s_.width, along.radius);
        correlate_along(scratch.mixed, along.taps.data(), along.radius, count, out);
    }

    // The flow of slice z at all fine scales, smoothed, to the sums of all slices in reach.
    void add_to_sums(Index z, Index first, Index last, Scratch &scratch) {
        const Index count = whole_vectors<Real>(s_.width);
        for (Index c = 0; c < s_.channels; ++c)
            for (Index y = first; y < last; ++y) {
                for (Index i = 0; i < fine_; ++i) {
                    if (!has_flow(i)) continue;
                    const Index radius = kernels_[1][i].radius;
                    for (Index k = -radius; k <= radius; ++k)
                        scratch.pointers[k + radius] =
                            flow_row(i, c, z, reflect(y + k, s_.height));
                    smooth_in_slice(i, scratch, scratch.flow_rows[i]);
                }
                for (Index k = 0; k <= reach_[0]; ++k) {
                    Index terms = 0;
                    for (Index i = 0; i < fine_; ++i)
                        if (has_flow(i) && kernels_[0][i].radius >= k) {
                            scratch.taps[terms] = kernels_[0][i].taps.data() + k;
                            scratch.sources[terms++] = scratch.flow_rows[i];
                        }
                    if (!terms) break;
                    Real *const up = sum_row(c, reflect(z - k, s_.slices), y);
                    Real *const down = k ? sum_row(c, reflect(z + k, s_.slices), y) : nullptr;
                    for (Index x = 0; x < count; x += lanes<Real>) {
                        Packed<Real> sum = *scratch.taps[0] * load(scratch.sources[0] + x);
                        for (Index n = 1; n < terms; ++n)
                            sum = multiply_add(broadcast(*scratch.taps[n]),
                                               load(scratch.sources[n] + x), sum);
                        store(up + x, load(up + x) + sum);
                        if (down) store(down + x, load(down + x) + sum);
                    }
                }
            }
    }

    // The step itself, for a slice whose sum is complete.
    void finish(Index z, Index first, Index last) {
        for (Index c = 0; c < s_.channels; ++c)
            for (Index y = first; y < last; ++y) {
                Real *const image = image_row(c, z, y), *const sum = sum_row(c, z, y);
                const Real *original = original_ ? original_ + (image - image_) : nullptr;
                for (Index x = 0; x < s_.width; ++x) {
                    Real change = sum[x];
                    if (original) change = multiply_add(pull_, original[x] - image[x], change);
                    image[x] = multiply_add(tau_, change, image[x]);
                }
                std::fill(sum, sum + whole_vectors<Real>(s_.width), Real(0));
            }
    }

    // ---- cells ----

    // The layer of cells between the slices z - 1 and z. Only the rows of voxels from `first` to
    // `last` get its fluxes.
    void add_layer(Index z, Index first, Index last, Scratch &scratch) {
        const Index scales = fine_ + coarse_, planes = scales * s_.channels;
        if (z < s_.slices)
            for (Index n = 0; n < planes; ++n) {
                Real *const flow = flow_row(n / s_.channels, n % s_.channels, z, 0);
                std::fill(flow + first * stride_, flow + (last - 1) * stride_ +
                          whole_vectors<Real>(s_.width), Real(0));
            }
        for (Index y = first; y <= last; ++y) {
            point_to_rows(z, y, scratch);
            if (integration_.used())
                frame_of_integrated(z, y, scratch);
            else
                couple_row<Real>(*term_, scales, s_.channels, scratch.rows.data(), local_row(z, y),
                                 nullptr, s_.width, scratch.frame);
            for (Index n = 0; n < planes; ++n) {
                const Index i = n / s_.channels;
                if (!has_flow(i)) continue;
                Real *flows[4];
                for (int k = 0; k < 4; ++k) {
                    const Index slice = z - 1 + k / 2, row = y - 1 + k % 2;
                    const bool mine = slice >= 0 && slice < s_.slices && row >= first && row < last;
                    flows[k] = mine ? flow_row(i, n % s_.channels, slice, row) : nullptr;
                }
                const auto fluxes = term_->tensor ? volume_flux_row<Real, true, Accuracy::shortcut>
                                                  : volume_flux_row<Real, false, Accuracy::shortcut>;
                fluxes(scratch.rows.data() + 4 * n, scratch.frame, nullptr, s_.width, numbers_[i],
                       flows);
            }
        }
    }

    // The rows of voxels around the row of cells between the rows y - 1 and y of slices z - 1 and z.
    void point_to_rows(Index z, Index y, Scratch &scratch) const {
        const Index slices[2] = {reflect(z - 1, s_.slices), reflect(z, s_.slices)};
        const Index rows[2] = {reflect(y - 1, s_.height), reflect(y, s_.height)};
        for (Index n = 0; n < (fine_ + coarse_) * s_.channels; ++n)
            for (int k = 0; k < 4; ++k)
                scratch.rows[4 * n + k] =
                    smoothed_row(n / s_.channels, n % s_.channels, slices[k / 2], rows[k % 2]);
    }

    const Real *local_row(Index z, Index y) const {
        return local_ ? local_ + (z * (s_.height + 1) + y) * stride_ : nullptr;
    }

    // ---- the integration scale ----

    // Rows of cells that belong to rows of voxels: the last row of all has no voxels of its own.
    Index last_of_cells(Index last) const { return last == s_.height ? last + 1 : last; }

    void find_tensors(Index z, Index first, Index last, Scratch &scratch) {
        for (Index y = first; y < last_of_cells(last); ++y) {
            point_to_rows(z, y, scratch);
            Real *rows[tensor_entries];
            for (int n = 0; n < tensor_entries; ++n) rows[n] = tensor_row_at(n, z, y);
            tensor_row<Real>(*term_, fine_ + coarse_, s_.channels, scratch.rows.data(),
                             local_row(z, y), nullptr, s_.width, rows);
        }
    }

    // Along columns and rows.
    void smooth_tensors(Index z, Index first, Index last, Scratch &scratch) {
        const Index count = whole_vectors<Real>(s_.width + 1);
        const Kernel<Real> &across = integration_.at(step_, 1), &along = integration_.at(step_, 2);
        for (Index y = first; y < last_of_cells(last); ++y)
            for (int n = 0; n < tensor_entries; ++n) {
                smooth_across_cells(
                    across, y, s_.height + 1, is_odd[n][1],
                    [&](Index row) { return tensor_row_at(n, z, row); }, count, scratch.pointers,
                    scratch.signed_taps, scratch.mixed);
                smooth_along_cells(along, s_.width + 1, is_odd[n][2], count, scratch.mixed,
                                   integrated_row(n, z, y));
            }
    }

    // Across slices, and the frame.
    void frame_of_integrated(Index z, Index y, Scratch &scratch) {
        const Index count = whole_vectors<Real>(s_.width + 1);
        for (int n = 0; n < tensor_entries; ++n)
            smooth_across_cells(
                integration_.at(step_, 0), z, s_.slices + 1, is_odd[n][0],
                [&](Index layer) { return integrated_row(n, layer, y); }, count, scratch.pointers,
                scratch.signed_taps, scratch.tensor[n]);
        frame_row<Real>(term_->tensor, scratch.tensor, nullptr, s_.width, scratch.frame);
    }

    // ---- the coarse grid ----

    // From a coarse volume to the rows of slice z, which are given to `emit(y, row)`.
    template <class Emit>
    void spread(Real *volume, const std::vector<HalfKernel<Real>> &kernels, Index c, Index z,
                Index first, Index last, Scratch &scratch, const Emit &emit) {
        const Index count = whole_vectors<Real>(axes_[2].coarse()), rows = axes_[1].coarse();
        const Index reach = axes_[1].halved ? kernels[1].size() / 2 + 1 : 0;
        const Index half = axes_[1].halved ? 2 : 1;
        const Real *slice = coarse_row(volume, c, z, 0);
        if (axes_[0].halved) {
            // Beyond the border, reflection finds rows at the same distance.
            const Index from = std::max<Index>(first / half - reach, 0);
            const Index to = std::min((last - 1) / half + reach + 1, rows);
            for (Index y = from; y < to; ++y)
                Resampler<Real>::combine(
                    [&](Index k) {
                        const Index at = z / 2 + kernels[0].offset(k, z % 2 == 1);
                        return coarse_row(volume, c, reflect_coarse(at, s_.slices), y);
                    },
                    kernels[0], count, scratch.slice + y * coarse_stride_);
            slice = scratch.slice;
        }
        for (Index y = first; y < last; ++y) {
            const Real *samples = slice + y * coarse_stride_;
            if (axes_[1].halved) {
                Resampler<Real>::combine(
                    [&](Index k) {
                        const Index at = y / 2 + kernels[1].offset(k, y % 2 == 1);
                        return slice + reflect_coarse(at, s_.height) * coarse_stride_;
                    },
                    kernels[1], count, scratch.mixed);
                samples = scratch.mixed;
            }
            if (axes_[2].halved) {
                if (samples != scratch.mixed)
                    std::copy(samples, samples + axes_[2].coarse(), scratch.mixed);
                scratch.resampler.expand_row(scratch.mixed, kernels[2], scratch.row);
                samples = scratch.row;
            }
            emit(y, samples);
        }
    }

    // One row of samples from a slice of voxels, whose rows are `row_at(y)`: the adjoint in a slice.
    template <class RowAt>
    const Real *gather(const RowAt &row_at, const std::vector<HalfKernel<Real>> &kernels, Index y,
                       Scratch &scratch) {
        if (axes_[1].halved)
            decimate_columns(row_at, y, s_.height, kernels[1], whole_vectors<Real>(s_.width),
                             scratch.mixed);
        else
            std::copy(row_at(y), row_at(y) + s_.width, scratch.mixed);
        if (!axes_[2].halved) return scratch.mixed;
        reflect_margins(scratch.mixed, s_.width, Resampler<Real>::pixels_around(kernels[2]));
        scratch.resampler.decimate_row(scratch.mixed, kernels[2], scratch.row);
        return scratch.row;
    }

    // The volume on the coarse grid, at the scale of the first kernel, and from there at all scales.
    void to_coarse_scales() {
        const Index count = whole_vectors<Real>(s_.width), slices = axes_[0].coarse();
        executor_.pieces(s_.channels * slices, [&](Index n, Index worker) {
            Scratch &scratch = scratch_[worker];
            const Index c = n / slices, z = n % slices;
            for (Index y = 0; y < s_.height && axes_[0].halved; ++y)
                decimate_columns(
                    [&](Index slice) -> const Real * { return image_row(c, slice, y); }, z, s_.slices,
                    sampling_[0], count, scratch.slice + y * stride_);
            const auto row_at = [&](Index y) -> const Real * {
                return axes_[0].halved ? scratch.slice + y * stride_ : image_row(c, z, y);
            };
            for (Index y = 0; y < axes_[1].coarse(); ++y) {
                const Real *samples = gather(row_at, sampling_, y, scratch);
                std::copy(samples, samples + axes_[2].coarse(), coarse_row(sampled_, c, z, y));
            }
        });
        const Real *finer = sampled_;
        for (Index i = 0; i < coarse_; ++i) {
            blur_coarse(finer, nullptr, coarse_smoothed_[i], i);
            finer = coarse_smoothed_[i];
            Real *const flow = coarse_flows_[i];
            executor_.pieces(s_.channels * slices, [&](Index n, Index) {
                std::fill(flow + n * coarse_slice_, flow + (n + 1) * coarse_slice_, Real(0));
            });
        }
    }

    void interpolate(Index i, Index z, Index first, Index last, Scratch &scratch) {
        for (Index c = 0; c < s_.channels; ++c)
            spread(coarse_smoothed_[i], interpolation_, c, z, first, last, scratch,
                   [&](Index y, const Real *row) {
                       Real *const out = smoothed_row(fine_ + i, c, z, y);
                       std::copy(row, row + s_.width, out);
                       reflect_margins(out, s_.width, 1);
                   });
    }

    // The flow of slice z on the coarse grid.
    void add_to_samples(Index i, Index z, Index first, Index last, Scratch &scratch) {
        const Index to = axes_[1].first_sample(last);
        for (Index c = 0; c < s_.channels; ++c)
            for (Index y = axes_[1].first_sample(first); y < to; ++y) {
                const Real *samples = gather(
                    [&](Index row) -> const Real * { return flow_row(fine_ + i, c, z, row); },
                    interpolation_, y, scratch);
                for (Index k = 0; k < (axes_[0].halved ? interpolation_[0].size() : 1); ++k) {
                    Index at = z;
                    Real tap = 1;
                    if (axes_[0].halved) {
                        at = reflect_coarse(z / 2 + interpolation_[0].offset(k, z % 2 == 1), s_.slices);
                        tap = interpolation_[0].taps()[k];
                        // The sample on the border gets the same from both of its sides.
                        if (s_.slices % 2 == 1 && at == s_.slices / 2) tap *= 2;
                    }
                    Real *const out = coarse_row(coarse_flows_[i], c, at, y);
                    for (Index x = 0; x < coarse_stride_; x += lanes<Real>)
                        store(out + x, multiply_add(broadcast(tap), load(samples + x), load(out + x)));
                }
            }
    }

    // Back from the coarse scales, and to the volume.
    void add_coarse_flows() {
        const Real *total = nullptr;
        for (Index i = coarse_ - 1; i >= 0; --i) {
            const Real *here = has_flow(fine_ + i) ? coarse_flows_[i] : nullptr;
            if (!here && !total) continue;
            blur_coarse(here ? here : total, here ? total : nullptr, sampled_, i);
            total = sampled_;
        }
        if (!total) return;
        executor_.pieces(s_.channels * s_.slices, [&](Index n, Index worker) {
            const Index c = n / s_.slices, z = n % s_.slices;
            spread(sampled_, sampling_, c, z, 0, s_.height, scratch_[worker],
                   [&](Index y, const Real *row) {
                       Real *const image = image_row(c, z, y);
                       for (Index x = 0; x < s_.width; ++x)
                           image[x] = multiply_add(tau_, row[x], image[x]);
                   });
        });
    }

    // Smooth `in`, to which `more` is added if there is any; `out` may be one of them.
    void blur_coarse(const Real *in, const Real *more, Real *out, Index scale) {
        const Index slices = axes_[0].coarse(), rows = axes_[1].coarse(), width = axes_[2].coarse();
        const Kernel<Real> &through = coarse_kernels_[0][scale], &across = coarse_kernels_[1][scale];
        const Kernel<Real> &along = coarse_kernels_[2][scale];
        const auto correlate_lines = [&](const Real *const *center, const Kernel<Real> &kernel,
                                         Real *to) {
            correlate(
                center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; },
                kernel.taps.data(), kernel.radius, coarse_stride_, to);
        };
        executor_.pieces(s_.channels * slices, [&](Index n, Index worker) {
            Scratch &scratch = scratch_[worker];
            const Index from = n * coarse_slice_;
            for (Index x = 0; x < coarse_slice_; x += lanes<Real>)
                store(scratch.slice + x, more ? load(in + from + x) + load(more + from + x)
                                              : load(in + from + x));
            for (Index y = 0; y < rows; ++y) {
                for (Index k = -across.radius; k <= across.radius; ++k)
                    scratch.pointers[k + across.radius] =
                        scratch.slice + axes_[1].reflected(y + k) * coarse_stride_;
                correlate_lines(scratch.pointers + across.radius, across, scratch.mixed);
                if (axes_[2].halved)
                    reflect_coarse_margins(scratch.mixed, s_.width, along.radius);
                else
                    reflect_margins(scratch.mixed, width, along.radius);
                correlate_along(scratch.mixed, along.taps.data(), along.radius, coarse_stride_,
                                out + from + y * coarse_stride_);
            }
        });
        executor_.pieces(s_.channels * rows, [&](Index n, Index worker) {
            Scratch &scratch = scratch_[worker];
            Real *const first = coarse_row(out, n / rows, 0, n % rows);
            for (Index z = 0; z < slices; ++z)
                std::copy(first + z * coarse_slice_, first + z * coarse_slice_ + coarse_stride_,
                          scratch.lines + z * coarse_stride_);
            for (Index z = 0; z < slices; ++z) {
                for (Index k = -through.radius; k <= through.radius; ++k)
                    scratch.pointers[k + through.radius] =
                        scratch.lines + axes_[0].reflected(z + k) * coarse_stride_;
                correlate_lines(scratch.pointers + through.radius, through, first + z * coarse_slice_);
            }
        });
    }

    const VolumeShape s_;
    const Axis axes_[3];
    // Numbers from one row to the next, and so on; the volume itself has no gaps.
    const Index stride_, slice_, kept_, coarse_stride_, coarse_slice_, coarse_volume_;
    const Index fine_, coarse_;
    const double theta_;
    double spacing_[3];
    const Real tau_;
    const std::vector<double> pulls_;
    const Schedule &schedule_;
    const VolumeIntegration<Real> integration_;
    const Index delay_, kept_slices_;
    Executor &executor_;
    std::vector<Kernel<Real>> kernels_[3], coarse_kernels_[3];  // along slices, rows and columns
    std::vector<HalfKernel<Real>> sampling_, interpolation_;    // along each axis that is halved
    Index reach_[2] = {0, 0};  // of the fine kernels, in slices and in rows
    Index sum_slices_ = 0;
    std::size_t step_ = 0;
    const Term *term_ = nullptr;
    Real pull_ = 0;
    Real *image_ = nullptr, *original_ = nullptr, *local_ = nullptr;
    std::vector<Real *> smoothed_, flows_;  // some slices of each scale
    Real *tensors_ = nullptr, *integrated_ = nullptr;  // some layers of cells
    Real *sums_ = nullptr;                  // of the flows of all fine scales, in slices to be finished
    Real *sampled_ = nullptr;
    std::vector<Real *> coarse_smoothed_, coarse_flows_;
    std::vector<VolumeNumbers<Real>> numbers_;
    std::vector<Scratch> scratch_;
};

}  // namespace

template <class Real>
std::unique_ptr<Run<Real>> fused_volume_run(const FusedVolumeProcess &process,
                                            const VolumeStart<Real> &start) {
    return std::make_unique<FusedVolumeRun<Real>>(process, start);
}

template std::unique_ptr<Run<float>> fused_volume_run(const FusedVolumeProcess &,
                                                      const VolumeStart<float> &);
template std::unique_ptr<Run<double>> fused_volume_run(const FusedVolumeProcess &,
                                                       const VolumeStart<double> &);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
