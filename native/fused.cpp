// A step of a first-order process on Haar cells in one sweep over the rows, with shortcuts.
//
// Every stage keeps only the rows that a later one still needs, in rings that stay in the cache: the
// smoothed images, the fluxes, and the sums of the flows on their way back to the finest scale. A
// row is computed when somebody asks for it. Large scales live on a grid of half the resolution
// (resample.hpp). Reading order: step_fused(), Tile::run(), and from there upwards.

#include "dispatch.hpp"
#include "pieces.hpp"
#include "resample.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

namespace {

// The last rows of a plane; row y takes the place of row y - capacity.
template <class Real>
struct Ring {
    std::vector<Real> memory;
    Index capacity = 0, stride = 0;

    void shape(Index capacity_, Index width) {
        capacity = capacity_;
        stride = padded_width<Real>(width);
        memory.assign(capacity * stride, Real(0));
    }
    Real *row(Index y) { return memory.data() + (y % capacity) * stride + margin; }
};

// A symmetric kernel with its taps in the precision of the computation.
template <class Real>
struct Kernel {
    std::vector<Real> taps;
    Index radius;
    explicit Kernel(const std::vector<double> &half)
        : taps(half.begin(), half.end()), radius(static_cast<Index>(half.size()) - 1) {}
};

// Smooth one row: `row_at` gives the rows of the plane, `mixed` is a buffer with margins.
template <class Real, class RowAt>
void smooth_row(const RowAt &row_at, Index y, Index height, Index width, const Kernel<Real> &kernel,
                Real *mixed, Real *out) {
    const Index count = whole_vectors<Real>(width);
    if (kernel.radius == 0) {
        std::copy(row_at(y), row_at(y) + width, out);
        return;
    }
    const Real *above[longest_radius + 1], *below[longest_radius + 1];
    for (Index k = 1; k <= kernel.radius; ++k) {
        above[k] = row_at(reflect(y - k, height));
        below[k] = row_at(reflect(y + k, height));
    }
    correlate(
        row_at(y), [&](Index k) { return above[k]; }, [&](Index k) { return below[k]; },
        kernel.taps.data(), kernel.radius, count, mixed);
    reflect_margins(mixed, width, kernel.radius);
    correlate(
        static_cast<const Real *>(mixed), [&](Index k) { return mixed - k; },
        [&](Index k) { return mixed + k; }, kernel.taps.data(), kernel.radius, count, out);
}

// Eigenvalues of J in a row of cells, and its direction as cosine and sine of twice the angle.
template <class Real>
struct EigenRow {
    std::vector<Real> xx, xy, yy, smaller, larger, cosine, sine;

    explicit EigenRow(Index n) : xx(n), xy(n), yy(n), smaller(n), larger(n), cosine(n), sine(n) {}

    void decompose(bool tensor) {
        const Index count = static_cast<Index>(xx.size());
        if (!tensor) {
            for (Index x = 0; x < count; ++x) smaller[x] = xx[x] + yy[x];
            return;
        }
        const Real tiny = static_cast<Real>(1e-18);
        for (Index x = 0; x < count; ++x) {
            const Real mean = (xx[x] + yy[x]) / 2, deviation = (xx[x] - yy[x]) / 2;
            const Real distance = std::sqrt(deviation * deviation + xy[x] * xy[x]);
            const Real inverse = distance > tiny ? 1 / distance : Real(0);
            const Real lower = mean - distance;
            smaller[x] = lower > 0 ? lower : 0 * lower;
            larger[x] = mean + distance;
            cosine[x] = deviation * inverse;
            sine[x] = xy[x] * inverse;
        }
    }
};

// X, Y and E of a vector of cells, without their factor 1/2; `up` and `down` point to the pixels on
// the left of the cells.
template <class Real>
struct Cell {
    Packed<Real> x, y, e;
    Cell(const Real *up, const Real *down) {
        const Packed<Real> ul = load(up), ur = load(up + 1), dl = load(down), dr = load(down + 1);
        const Packed<Real> falling = dr - ul, rising = ur - dl;
        x = falling + rising;
        y = falling - rising;
        e = (ul + dr) - (ur + dl);
    }
};

// The fluxes of a vector of cells as the divergence takes them.
template <class Real>
struct Flux {
    Packed<Real> x, left, right;  // of the x-component; of y and E for the pixels on either side
};

// What a scale needs for its fluxes.
template <class Real>
struct FluxNumbers {
    Real rate;      // minus log2(e) / (2 lambda^2)
    Real half;      // half the factor of the flow
    Real twisting;  // 2 (1 - 2 theta)
};

template <class Real, bool tensor>
inline Flux<Real> flux_at(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x,
                          const FluxNumbers<Real> &n) {
    using V = Packed<Real>;
    const Cell<Real> cell(up + x, down + x);
    const V larger = power_of_two<Real>(n.rate * load(&eigen.smaller[x]));
    if (!tensor) {
        const V g = 2 * n.half * larger, fy = g * cell.y, fe = n.twisting * g * cell.e;
        return {g * cell.x, fy + fe, fy - fe};
    }
    const V smaller = power_of_two<Real>(n.rate * load(&eigen.larger[x]));
    const V sum = n.half * (larger + smaller), difference = n.half * (larger - smaller);
    const V cosine = load(&eigen.cosine[x]), sine = load(&eigen.sine[x]);
    const V xy = -difference * sine;
    const V fx = (sum - difference * cosine) * cell.x + xy * cell.y;
    const V fy = xy * cell.x + (sum + difference * cosine) * cell.y;
    const V fe = n.twisting * (sum - difference * absolute<Real>(sine)) * cell.e;
    return {fx, fy + fe, fy - fe};
}

// Fluxes of a row of cells, and the flow of the row of pixels above it, which `carry` has from the
// cells above; afterwards `carry` is for the row below.
template <class Real, bool tensor>
void flux_row(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index width,
              const FluxNumbers<Real> &numbers, Real *carry, Real *flow) {
    using V = Packed<Real>;
    Flux<Real> here = flux_at<Real, tensor>(up, down, eigen, 0, numbers);
    for (Index x = 0; x < width; x += lanes<Real>) {
        const Flux<Real> next =
            flux_at<Real, tensor>(up, down, eigen, x + lanes<Real>, numbers);
        const V across = here.x - shifted(here.x, next.x);
        const V along = here.left + shifted(here.right, next.right);
        store(flow + x, load(carry + x) + (across - along));
        store(carry + x, across + along);
        here = next;
    }
}

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
    Tile(const FusedStep<Real> &task, Index first_column, Index columns)
        : task_(task),
          s_(task.shape),
          left_(first_column),
          width_(columns),
          half_width_((columns + 1) / 2),
          fine_(static_cast<Index>(task.fine->size())),
          scales_(fine_ + static_cast<Index>(task.coarse->size())),
          eigen_(whole_vectors<Real>(columns) + lanes<Real>),
          mixed_(padded_width<Real>(columns)),
          changes_(padded_width<Real>(columns)),
          interpolation_(*task.interpolation),
          resampler_(columns) {
        for (const auto &half : *task.fine) kernels_.emplace_back(half);
        for (Index i = 0; i < scales_; ++i)
            if (task.term->flux_weights[i] != 0) {
                flowing_.push_back(i);
                if (i < fine_) coarsest_ = i;
            }
    }

    // Compute the rows from `first` to `last` and write the columns from `from` to `to`.
    void run(Index first, Index last, Index from, Index to, Real *image, const Real *original) {
        prepare(first, last);
        from_ = from;
        to_ = to;
        const Real tau = static_cast<Real>(task_.tau), pull = static_cast<Real>(task_.pull);
        const Kernel<Real> &kernel = kernels_[0];
        for (Index y = first; y < last; ++y) {
            total_to(0, y + kernel.radius);
            for (Index c = 0; c < s_.channels; ++c) {
                Real *change = changes_.data() + margin;
                smooth_row([&](Index row) { return total_[c].row(row); }, y, s_.height, width_,
                           kernel, mixed_.data() + margin, change);
                const Index start = (c * s_.height + y) * s_.width;
                const Real *old = padded_row(c, y);
                for (Index x = from; x < to; ++x) {
                    Real velocity = change[x - left_];
                    if (pull != 0) velocity += pull * (original[start + x] - old[x - left_]);
                    image[start + x] = old[x - left_] + tau * velocity;
                }
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
        above = next_flow_ - 1;
        next_smooth_.assign(scales_, std::max<Index>(0, above));
        for (Index i = fine_ - 2; i >= 0; --i) {
            above -= kernels_[i + 1].radius;
            next_smooth_[i] = std::max<Index>(0, above);
        }
        if (!smoothed_.empty()) {
            started_ = false;
            return;
        }
        smoothed_.resize(scales_ * s_.channels);
        total_.resize(fine_ * s_.channels);
        carry_.assign(scales_ * s_.channels, std::vector<Real>(whole_vectors<Real>(width_)));
        decimated_.resize((scales_ - fine_) * s_.channels);
        flow_.resize(padded_width<Real>(width_));
        Index later = 0, waiting = 0;
        for (Index i = scales_ - 1; i >= 0; --i) {
            const Index next = i + 1 < fine_ ? kernels_[i + 1].radius : 0;
            later += next;
            if (i < coarsest_) waiting += next;
            for (Index c = 0; c < s_.channels; ++c) {
                smoothed_[at(i, c)].shape(later + 2 * next + 4, width_);
                if (i < fine_) total_[at(i, c)].shape(waiting + 2 * kernels_[i].radius + 4, width_);
                else decimated_[at(i - fine_, c)].shape(2 * reach() + 4, half_width_);
            }
        }
    }

    // The image at scale i, up to row y.
    void smooth_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_smooth_[i] <= y; ++next_smooth_[i]) {
            const Index row = next_smooth_[i];
            if (i > 0 && i < fine_) smooth_to(i - 1, row + kernels_[i].radius);
            for (Index c = 0; c < s_.channels; ++c) {
                Real *out = smoothed_[at(i, c)].row(row);
                if (i >= fine_)
                    resampler_.interpolate(coarse_plane(task_.workspace->coarse, i, c), s_, left_, row,
                                           interpolation_, out);
                else
                    smooth_row(
                        [&](Index r) {
                            return i ? smoothed_[at(i - 1, c)].row(r) : padded_row(c, r);
                        },
                        row, s_.height, width_, kernels_[i], mixed_.data() + margin, out);
                reflect_margins(out, width_, 1);
            }
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
        add_up_structure(up, down);
        eigen_.decompose(task_.term->tensor);
        for (Index i : flowing_) {
            const double contrast = task_.term->contrasts[i];
            const FluxNumbers<Real> numbers{
                static_cast<Real>(-1.4426950408889634 / (2 * contrast * contrast)),
                static_cast<Real>(-task_.term->flux_weights[i] / 8),
                static_cast<Real>(2 * (1 - 2 * task_.theta))};
            for (Index c = 0; c < s_.channels; ++c) {
                Real *flow = i < fine_ && y > 0 ? total_[at(i, c)].row(y - 1) : flow_.data() + margin;
                const Real *above = smoothed_[at(i, c)].row(up) - 1;
                const Real *below = smoothed_[at(i, c)].row(down) - 1;
                Real *carry = carry_[at(i, c)].data();
                if (task_.term->tensor)
                    flux_row<Real, true>(above, below, eigen_, width_, numbers, carry, flow);
                else
                    flux_row<Real, false>(above, below, eigen_, width_, numbers, carry, flow);
                if (i >= fine_ && started_) {
                    reflect_margins(flow, width_, resampler_.pixels_around(interpolation_));
                    resampler_.decimate_row(flow, interpolation_,
                                            decimated_[at(i - fine_, c)].row(y - 1));
                }
            }
        }
    }

    void add_up_structure(Index up, Index down) {
        std::vector<const Real *> above, below;
        std::vector<Real> weights;
        for (Index i = 0; i < scales_; ++i) {
            const double weight = task_.term->coupling_weights[i];
            if (weight == 0) continue;
            for (Index c = 0; c < s_.channels; ++c) {
                above.push_back(smoothed_[at(i, c)].row(up) - 1);
                below.push_back(smoothed_[at(i, c)].row(down) - 1);
                weights.push_back(static_cast<Real>(weight / static_cast<double>(4 * s_.channels)));
            }
        }
        const std::size_t count = weights.size();
        for (Index x = 0; x < static_cast<Index>(eigen_.xx.size()); x += lanes<Real>) {
            Packed<Real> xx{}, xy{}, yy{};
            for (std::size_t k = 0; k < count; ++k) {
                const Cell<Real> cell(above[k] + x, below[k] + x);
                const Packed<Real> weighted = weights[k] * cell.x;
                xx += weighted * cell.x;
                xy += weighted * cell.y;
                yy += weights[k] * cell.y * cell.y;
            }
            store(&eigen_.xx[x], xx);
            store(&eigen_.xy[x], xy);
            store(&eigen_.yy[x], yy);
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
                        changes_.data());
                    Real *out = coarse_plane(task_.workspace->coarse_flows, i, c) +
                                row * padded_width<Real>((s_.width + 1) / 2);
                    std::copy(changes_.data() + (from_ - left_) / 2,
                              changes_.data() + (to_ - left_ + 1) / 2, out + from_ / 2);
                }
            }
        }
    }

    Real *coarse_plane(std::vector<Real> &planes, Index i, Index c) const {
        return planes.data() + at(i - fine_, c) * coarse_plane_size<Real>(s_) + margin;
    }

    // Flows of scale i and all coarser ones, added up at scale i.
    void total_to(Index i, Index y) {
        for (y = std::min(y, s_.height - 1); next_total_[i] <= y; ++next_total_[i]) {
            const Index row = next_total_[i];
            if (i < coarsest_) total_to(i + 1, row + kernels_[i + 1].radius);
            flow_to(row);
            if (i >= coarsest_) continue;
            for (Index c = 0; c < s_.channels; ++c) {
                Real *change = changes_.data() + margin, *sum = total_[at(i, c)].row(row);
                smooth_row([&](Index r) { return total_[at(i + 1, c)].row(r); }, row, s_.height,
                           width_, kernels_[i + 1], mixed_.data() + margin, change);
                if (task_.term->flux_weights[i] == 0)
                    std::copy(change, change + width_, sum);
                else
                    for (Index x = 0; x < width_; ++x) sum[x] += change[x];
            }
        }
    }

    const FusedStep<Real> &task_;
    const Shape &s_;
    const Index left_, width_, half_width_, fine_, scales_;
    Index coarsest_ = 0;  // of the fine scales that have a flow
    std::vector<Kernel<Real>> kernels_;
    std::vector<Index> flowing_;
    std::vector<Ring<Real>> smoothed_, total_, decimated_;
    std::vector<std::vector<Real>> carry_;
    EigenRow<Real> eigen_;
    std::vector<Real> flow_, mixed_, changes_;
    HalfKernel<Real> interpolation_;
    Resampler<Real> resampler_;
    bool started_ = false;
    Index from_ = 0, to_ = 0;  // columns to write
    Index next_flow_ = 0, next_coarse_ = 0, last_coarse_ = 0;
    std::vector<Index> next_smooth_, next_total_;
};

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
            correlate(
                static_cast<const Real *>(mixed), [&](Index k) { return mixed - k; },
                [&](Index k) { return mixed + k; }, kernel.taps.data(), kernel.radius, count,
                result.data());
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
void add_coarse_flows(const FusedStep<Real> &task, Real *image) {
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
            Real *out = image + n * s.width;
            for (Index x = 0; x < s.width; ++x) out[x] += tau * change[x];
        }
    });
}

}  // namespace

template <class Real>
void step_fused(const FusedStep<Real> &task, Real *image, const Real *original) {
    const Shape &s = task.shape;
    const Index stride = padded_width<Real>(s.width), rows = s.channels * s.height;
    const Index coarse = static_cast<Index>(task.coarse->size());
    Workspace<Real> &w = *task.workspace;
    w.image.resize(rows * stride);
    w.sampled.resize(coarse ? s.channels * coarse_plane_size<Real>(s) : 0);
    w.coarse.resize(coarse * w.sampled.size());
    w.coarse_flows.resize(coarse * w.sampled.size());
    task.team->rows(rows, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n)
            std::copy(image + n * s.width, image + (n + 1) * s.width,
                      w.image.data() + n * stride + margin);
    });
    if (coarse) to_coarse_scales(task);

    const Tiling tiling(s, Tile<Real>::halo(task), task.team->size());
    task.team->pieces(tiling.count(), [&](Index piece) {
        const Tiling::Part part = tiling.part(piece);
        Tile<Real> tile(task, part.left, part.width);
        tile.run(part.first, part.last, part.from, part.to, image, original);
    });
    if (coarse) add_coarse_flows(task, image);
}

template void step_fused(const FusedStep<float> &, float *, const float *);
template void step_fused(const FusedStep<double> &, double *, const double *);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
