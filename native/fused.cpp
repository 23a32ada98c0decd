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

// Memory for all rows that a tile keeps, handed out piece by piece. The first round only counts.
template <class Real>
class Arena {
  public:
    explicit Arena(Buffer<Real> &memory) : memory_(memory) {}
    Real *take(Index count) {
        Real *piece = memory_.data() + used_;
        used_ += whole_vectors<Real>(count);
        return piece;
    }
    // Whether there was enough for all; otherwise there is now.
    bool enough() {
        const bool was = used_ <= static_cast<Index>(memory_.size());
        if (!was) memory_.assign(used_, Real(0));
        used_ = 0;
        return was;
    }

  private:
    Buffer<Real> &memory_;
    Index used_ = 0;
};

// The last rows of a plane; row y takes the place of row y - capacity.
template <class Real>
struct Ring {
    Real *memory = nullptr;
    Index capacity = 0, stride = 0;

    Ring() = default;
    Ring(Arena<Real> &arena, Index capacity_, Index width)
        : memory(arena.take(capacity_ * padded_width<Real>(width)) + margin),
          capacity(capacity_),
          stride(padded_width<Real>(width)) {}
    Real *row(Index y) const { return memory + (y % capacity) * stride; }
};

// A symmetric kernel with its taps in the precision of the computation.
template <class Real>
struct Kernel {
    std::vector<Real> taps;
    Index radius;
    explicit Kernel(const std::vector<double> &half)
        : taps(half.begin(), half.end()), radius(static_cast<Index>(half.size()) - 1) {}
};

// Two rows from the 2 radius + 2 rows that they need, each of them loaded once.
template <int radius, class Real>
void correlate_pair(const Real *const *rows, const Real *taps, Index count, Real *first,
                    Real *second) {
    for (Index x = 0; x < count; x += lanes<Real>) {
        Packed<Real> v[2 * radius + 2];
        for (int k = 0; k < 2 * radius + 2; ++k) v[k] = load(rows[k] + x);
        Packed<Real> above = taps[0] * v[radius], below = taps[0] * v[radius + 1];
        hold(above), hold(below);
        for (int k = 1; k <= radius; ++k) {
            above += taps[k] * (v[radius - k] + v[radius + k]);
            below += taps[k] * (v[radius + 1 - k] + v[radius + 1 + k]);
        }
        store(first + x, above);
        store(second + x, below);
    }
}

// Smooth row y and, if there is a `second` result, the next: `row_at` gives the rows of the plane,
// `mixed` two buffers with margins.
template <class Real, class RowAt>
void smooth_rows(const RowAt &row_at, Index y, Index height, Index width,
                 const Kernel<Real> &kernel, Real *const *mixed, Real *first, Real *second) {
    const Index count = whole_vectors<Real>(width), radius = kernel.radius;
    const Real *taps = kernel.taps.data(), *rows[2 * longest_radius + 2];
    for (Index k = 0; k < 2 * radius + 2; ++k) rows[k] = row_at(reflect(y - radius + k, height));
    const auto across = [&](const Real *const *center, Real *out) {
        correlate(
            center[0], [&](Index k) { return center[-k]; }, [&](Index k) { return center[k]; }, taps,
            radius, count, out);
    };
    const auto pair = [&](auto constant) {
        correlate_pair<decltype(constant)::value>(rows, taps, count, mixed[0], mixed[1]);
    };
    switch (second ? radius : -1) {
        case 1: pair(std::integral_constant<int, 1>()); break;
        case 2: pair(std::integral_constant<int, 2>()); break;
        case 3: pair(std::integral_constant<int, 3>()); break;
        case 4: pair(std::integral_constant<int, 4>()); break;
        case 5: pair(std::integral_constant<int, 5>()); break;
        case 6: pair(std::integral_constant<int, 6>()); break;
        case 7: pair(std::integral_constant<int, 7>()); break;
        case 8: pair(std::integral_constant<int, 8>()); break;
        default:
            across(rows + radius, mixed[0]);
            if (second) across(rows + radius + 1, mixed[1]);
    }
    for (int k = 0; k < (second ? 2 : 1); ++k) {
        reflect_margins(mixed[k], width, radius);
        correlate_along(mixed[k], taps, radius, count, k ? second : first);
    }
}

// Eigenvalues of J in a row of cells, and its direction as cosine and sine of twice the angle.
template <class Real>
struct EigenRow {
    Index count = 0;
    Real *smaller, *larger, *cosine, *sine;

    EigenRow() = default;
    EigenRow(Arena<Real> &arena, Index count_) : count(count_) {
        for (Real **row : {&smaller, &larger, &cosine, &sine}) *row = arena.take(count);
    }

    // From the sums of the squares and of the product of the two diagonal differences.
    void decompose(Index x, Packed<Real> falling, Packed<Real> rising, Packed<Real> product,
                   bool tensor) {
        using V = Packed<Real>;
        const V mean = falling + rising, deviation = 2 * product, xy = falling - rising;
        if (!tensor) {
            store(smaller + x, 2 * mean);
            return;
        }
        const V distance = square_root(deviation * deviation + xy * xy);
        const V inverse = distance > Real(1e-18) ? 1 / distance : V{};
        const V lower = mean - distance;
        store(smaller + x, lower > 0 ? lower : 0 * lower);
        store(larger + x, mean + distance);
        store(cosine + x, deviation * inverse);
        store(sine + x, xy * inverse);
    }
};

// The differences of a vector of cells along their diagonals, and E without its factor 1/2. Twice X
// and Y are sum and difference of the first two. `up` and `down` point to the pixels on the left.
template <class Real>
struct Cell {
    Packed<Real> falling, rising, e;
    Cell(const Real *up, const Real *down) {
        Packed<Real> ul = load(up), ur = load(up + 1), dl = load(down), dr = load(down + 1);
        hold(ul), hold(ur), hold(dl), hold(dr);
        falling = dr - ul;
        rising = ur - dl;
        e = (ul + dr) - (ur + dl);
    }
};

// What the cells of a vector give to their four pixels.
template <class Real>
struct Flux {
    Packed<Real> ul, ur, dl, dr;
    Flux(Packed<Real> falling, Packed<Real> rising, Packed<Real> e)
        : ul(e - falling), ur(rising - e), dl(-e - rising), dr(falling + e) {}
    Flux() : ul{}, ur{}, dl{}, dr{} {}
};

// What a scale needs for its fluxes.
template <class Real>
struct FluxNumbers {
    Real rate;      // minus log2(e) / (2 lambda^2)
    Real half;      // half the factor of the flow, negative
    Real twisting;  // 1 - 2 theta
};

template <class Real, bool tensor>
inline Flux<Real> flux_at(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x,
                          const FluxNumbers<Real> &n) {
    using V = Packed<Real>;
    const Cell<Real> cell(up + x, down + x);
    const V larger = power_of_two<Real>(n.rate * load(eigen.smaller + x));
    if (!tensor) {
        const V g = 2 * n.half * larger;
        return {g * cell.falling, g * cell.rising, n.twisting * g * cell.e};
    }
    const V smaller = power_of_two<Real>(n.rate * load(eigen.larger + x));
    const V sum = n.half * (larger + smaller), difference = n.half * (larger - smaller);
    // D = sum I - difference (cosine, sine; sine, -cosine), here in the basis of the diagonals.
    const V mixed = difference * load(eigen.cosine + x), sine = difference * load(eigen.sine + x);
    return {(sum - sine) * cell.falling - mixed * cell.rising,
            (sum + sine) * cell.rising - mixed * cell.falling,
            n.twisting * (sum + absolute<Real>(sine)) * cell.e};
}

// Fluxes of a row of cells, and the flow of the row of pixels above it, which `carry` has from the
// cells above; afterwards `carry` is for the row below. For the columns from `x` to `last`; `here`
// goes from one part of the row to the next.
template <class Real, bool tensor>
void flux_row(const Real *up, const Real *down, const EigenRow<Real> &eigen, Index x, Index last,
              const FluxNumbers<Real> &numbers, Flux<Real> &state, Real *carry, Real *flow) {
    Flux<Real> here = x ? state : flux_at<Real, tensor>(up, down, eigen, 0, numbers);
    for (; x < last; x += lanes<Real>) {
        const Flux<Real> next =
            flux_at<Real, tensor>(up, down, eigen, x + lanes<Real>, numbers);
        store(flow + x, load(carry + x) + (here.ur + shifted(here.ul, next.ul)));
        store(carry + x, here.dr + shifted(here.dl, next.dl));
        here = next;
    }
    state = here;
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
            decompose_structure(up, down, x ? x + lanes<Real> : 0, last + lanes<Real>);
            for (Index i : flowing_) add_fluxes(i, y, up, down, x, last);
        }
        for (Index i : flowing_)
            for (Index c = 0; i >= fine_ && started_ && c < s_.channels; ++c) {
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
    void decompose_structure(Index up, Index down, Index x, Index last) {
        const std::size_t count = coupled_.size();
        for (std::size_t k = 0; k < count; ++k) {
            above_[k] = smoothed_[coupled_[k]].row(up) - 1;
            below_[k] = smoothed_[coupled_[k]].row(down) - 1;
        }
        const bool tensor = task_.term->tensor;
        for (; x < last; x += lanes<Real>) {
            Packed<Real> falling{}, rising{}, product{};
            for (std::size_t k = 0; k < count; ++k) {
                const Cell<Real> cell(above_[k] + x, below_[k] + x);
                const Packed<Real> weighted = coupling_[k] * cell.falling;
                falling += weighted * cell.falling;
                product += weighted * cell.rising;
                rising += coupling_[k] * cell.rising * cell.rising;
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

    const FusedStep<Real> &task_;
    const Shape &s_;
    const Index left_, width_, half_width_, fine_, scales_;
    Index coarsest_ = 0;  // of the fine scales that have a flow
    std::vector<Kernel<Real>> kernels_;
    std::vector<FluxNumbers<Real>> numbers_;  // of each scale
    std::vector<Index> flowing_;              // scales
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
    for (Index n = 0; in && n < rows; ++n)
        std::copy(in + n * s.width, in + (n + 1) * s.width, w.image.data() + n * stride + margin);

    if (coarse) to_coarse_scales(task);
    task.team->pieces(tiling.count(), [&](Index piece) {
        const Tiling::Part part = tiling.part(piece);
        Tile<Real> tile(task, part.left, part.width, w.rings[piece]);
        tile.run(part.first, part.last, part.from, part.to, original);
    });
    if (coarse) add_coarse_flows(task);

    w.image.swap(w.next);
    for (Index n = 0; out && n < rows; ++n) {
        const Real *row = w.image.data() + n * stride + margin;
        std::copy(row, row + s.width, out + n * s.width);
    }
}

template void step_fused(const FusedStep<float> &, const float *, float *, const float *);
template void step_fused(const FusedStep<double> &, const double *, double *, const double *);

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
