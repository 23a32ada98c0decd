// Runs all steps on small images of many shapes with every instruction set of this processor,
// without Python, for the sanitizers: see native/checks/run. It checks that
// - results are finite, and do not depend on threads or on how steps are divided;
// - steps allocate nothing;
// - work that is shared is done once, whether helpers come in time, too late or not at all;
// - ordinary images make no subnormal numbers, even where the processor does not flush them.
// That results are right is checked by the tests in Python.

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "../core/instruction_sets.hpp"
#include "../core/subnormals.hpp"
#include "../threads/team.hpp"

using namespace integrodiff;

// ---- allocations ----

#if defined(__GNUC__) && !defined(__clang__)
// GCC takes the pairs of operators below for mismatched once they are inlined.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace {
std::atomic<long> allocations{0};

void *counted(std::size_t size, std::size_t alignment) {
    ++allocations;
    void *memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (!memory) throw std::bad_alloc();
    return memory;
}
}  // namespace

void *operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
void *operator new(std::size_t size, std::align_val_t line) {
    return counted(size, static_cast<std::size_t>(line));
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

// ---- images and processes ----

// One half of a Gaussian, sampled at 0, 1, ... or at 1/2, 3/2, ...
std::vector<double> gaussian(double width, double first) {
    std::vector<double> taps;
    double sum = 0;
    for (double x = first; x <= 3 * width + 1; ++x) {
        taps.push_back(std::exp(-x * x / (2 * width * width)));
        sum += x == 0 ? taps.back() : 2 * taps.back();
    }
    for (double &tap : taps) tap /= sum;
    return taps;
}

Taps kernels(int count) {
    Taps taps;
    for (int i = 0; i < count; ++i) taps.push_back(gaussian(0.4 + 0.4 * i, 0));
    return taps;
}

Term term_of(int order, bool tensor, int scales, double contrast = 5.0) {
    const std::vector<double> weights(scales, 0.2);
    return {order, tensor, weights, weights, std::vector<double>(scales, contrast), {}};
}

template <class Real>
using Pixels = std::vector<Real>;

template <class Real>
Pixels<Real> noise(const Shape &s, double level = 25) {
    std::mt19937 generator(0);
    std::normal_distribution<double> normal(128, level);
    Pixels<Real> image(s.channels * s.height * s.width);
    for (Real &pixel : image) pixel = static_cast<Real>(normal(generator));
    return image;
}

// Factors of J, twice as large on one side as on the other.
template <class Real>
Pixels<Real> plane(Index height, Index width) {
    Pixels<Real> values(height * width);
    for (Index k = 0; k < height * width; ++k)
        values[k] = Real(1) + Real(k % width) / static_cast<Real>(width);
    return values;
}

struct Case {
    const InstructionSet *isa;
    Shape shape;
    int scales, coarse;
    bool tensor;
    double contrast = 5.0;
};

constexpr std::size_t steps = 2;

template <class Real>
using Begin = std::function<std::unique_ptr<Run<Real>>(const Case &, const Start<Real> &)>;

template <class Real>
std::unique_ptr<Run<Real>> begin_fused(const Case &c, const Start<Real> &start) {
    return c.isa->steps(Real()).fused({kernels(c.scales), gaussian(2.5, 0.5),
                                       Taps(c.coarse, gaussian(1.5, 0)), gaussian(1.2, 0.5), 0.25},
                                      start);
}

template <class Real>
std::unique_ptr<Run<Real>> begin_exact(const Case &c, const Start<Real> &start) {
    return c.isa->steps(Real()).exact({kernels(c.scales), 0.25, true}, start);
}

template <class Real>
std::unique_ptr<Run<Real>> begin_nonnegativity(const Case &c, const Start<Real> &start) {
    return c.isa->steps(Real()).exact({kernels(c.scales), 0.25, false}, start);
}

ParameterSlopes slopes_of(int terms, int scales) {
    const std::vector<double> two{0.1, 0.2};
    const std::vector<Slopes> of_term(scales, Slopes{two, two, two});
    return {2, {std::vector<std::vector<Slopes>>(terms, of_term)}, two, two, Taps(scales, two)};
}

template <class Real>
std::unique_ptr<Run<Real>> begin_tangents(const Case &c, const Start<Real> &start) {
    static const ParameterSlopes slopes = slopes_of(3, 4);
    return c.isa->steps(Real()).tangents({kernels(c.scales), 0.25, true}, slopes, start);
}

// ---- one case ----

// The image after all steps, and whether they allocated anything.
template <class Real>
struct Outcome {
    Pixels<Real> image;
    long allocated = 0;
};

template <class Real>
Outcome<Real> run(const Case &c, const Schedule &schedule, const Begin<Real> &begin, int stack,
                  Executor &executor, const Pixels<Real> &image, Buffer<Real> &memory) {
    const Shape &s = c.shape;
    const Pixels<Real> pixels = plane<Real>(s.height, s.width);
    const Pixels<Real> cells = plane<Real>(s.height + 1, s.width + 1);
    const Start<Real> start{s,    image.data(), &schedule, 0.01, {0.01}, {pixels.data(), cells.data()},
                            &executor, &memory};
    const auto found = begin(c, start);
    Outcome<Real> outcome;
    outcome.allocated = -allocations;
    for (std::size_t k = 0; k < steps; ++k) found->advance(k);
    outcome.allocated += allocations;
    outcome.image.resize(stack * image.size());
    found->read(outcome.image.data());
    return outcome;
}

// Run one process with one and with several threads, and from two callers at once.
template <class Real>
bool check(const char *name, const Case &c, const Schedule &schedule, const Begin<Real> &begin,
           int stack = 1) {
    const Pixels<Real> image = noise<Real>(c.shape);
    Serial serial;
    Buffer<Real> memory;
    const Outcome<Real> alone = run(c, schedule, begin, stack, serial, image, memory);
    Pixels<Real> other;
    std::thread caller([&] {
        Team three(3);
        Buffer<Real> own;
        other = run(c, schedule, begin, stack, three, image, own).image;
    });
    Team two(2);
    const Pixels<Real> shared = run(c, schedule, begin, stack, two, image, memory).image;
    caller.join();
    bool good = alone.allocated == 0;
    for (std::size_t k = 0; k < shared.size(); ++k)
        good = good && std::isfinite(shared[k]) && alone.image[k] == shared[k] &&
               alone.image[k] == other[k];
    if (!good)
        std::printf("%s, %s, %zu bytes fails on %td x %td x %td; %ld allocations\n", c.isa->name,
                    name, sizeof(Real), c.shape.channels, c.shape.height, c.shape.width,
                    alone.allocated);
    return good;
}

template <class Real>
bool check_all(const Case &c) {
    const Schedule first{{term_of(1, c.tensor, c.scales + c.coarse)}};
    bool good = check<Real>("fused", c, first, begin_fused<Real>);
    if (c.coarse) return good;
    Schedule all{{first[0][0]}};
    for (int order = 2; order <= 4; ++order) all[0].push_back(term_of(order, false, c.scales));
    all[0][0].integration = gaussian(0.8, 0);
    all[0][1].integration = gaussian(2.0, 0);
    good &= check<Real>("exact", c, all, begin_exact<Real>);
    good &= check<Real>("nonnegativity", c, first, begin_nonnegativity<Real>);
    all[0].resize(3);
    good &= check<Real>("tangents", c, all, begin_tangents<Real>, 3);
    return good;
}

// ---- volumes ----

enum class VolumeKind { exact, masked, fused, thick };

// Kernels with shortcuts: two fine scales and two coarse ones, the slices halved or not.
FusedVolumeProcess fused_volume(bool halved) {
    FusedVolumeProcess process{};
    process.theta = 0.15;
    for (int axis = 0; axis < 3; ++axis) {
        process.spacing[axis] = axis == 0 && !halved ? 3.0 : 1.0;
        process.fine[axis] = {gaussian(0.4, 0), gaussian(2.0, 0)};
        process.coarse[axis] = kernels(2);
        process.halved[axis] = halved || axis > 0;
        if (!process.halved[axis]) continue;
        process.sampling[axis] = gaussian(2.5, 0.5);
        process.interpolation[axis] = gaussian(1.0, 0.5);
    }
    return process;
}

// A volume after all steps, and whether they allocated anything.
template <class Real>
Outcome<Real> run_volume(const InstructionSet *isa, VolumeKind kind, const VolumeShape &s,
                         const Schedule &schedule, Executor &executor, const Pixels<Real> &image,
                         const Real *local, const Real *valid, Buffer<Real> &memory) {
    const VolumeProcess process{{kernels(4), kernels(4), kernels(4)}, 0.15, {2.0, 1.0, 1.3}};
    const FusedVolumeProcess fused = fused_volume(kind == VolumeKind::fused);
    const VolumeStart<Real> start{s,     image.data(), &schedule, 0.01, {0.01},
                                  local, &executor,    &memory,
                                  kind == VolumeKind::masked ? valid : nullptr};
    const Steps<Real> &with = isa->steps(Real());
    const bool shortcuts = kind == VolumeKind::fused || kind == VolumeKind::thick;
    const auto found = shortcuts ? with.fused_volume(fused, start) : with.volume(process, start);
    Outcome<Real> outcome;
    outcome.allocated = -allocations;
    for (std::size_t k = 0; k < steps; ++k) found->advance(k);
    outcome.allocated += allocations;
    outcome.image.resize(image.size());
    found->read(outcome.image.data());
    return outcome;
}

template <class Real>
bool check_volume(const InstructionSet *isa, VolumeKind kind, const VolumeShape &s, bool tensor,
                  bool integrated) {
    Schedule schedule{{term_of(1, tensor, 4)}};
    if (integrated) schedule[0][0].twists[0] = 0.5;
    if (integrated)
        schedule[0][0].volume_integration = {gaussian(0.5, 0.0), gaussian(1.0, 0.0), gaussian(0.8, 0.0)};
    const Pixels<Real> image = noise<Real>({s.channels * s.slices, s.height, s.width});
    const Pixels<Real> local = plane<Real>((s.slices + 1) * (s.height + 1), s.width + 1);
    Pixels<Real> valid(static_cast<std::size_t>(s.slices * s.height * s.width), Real(1));
    for (std::size_t k = 3; k < valid.size(); k += 7) valid[k] = 0;
    Serial serial;
    Team three(3);
    Buffer<Real> memory, other;
    const auto run = [&](Executor &executor, Buffer<Real> &of) {
        return run_volume(isa, kind, s, schedule, executor, image, local.data(), valid.data(), of);
    };
    const auto alone = run(serial, memory), shared = run(three, other);
    bool good = alone.allocated == 0;
    for (std::size_t k = 0; k < image.size(); ++k)
        good = good && std::isfinite(alone.image[k]) && alone.image[k] == shared.image[k];
    if (!good)
        std::printf("%s, volume %d, %zu bytes fails on %td x %td x %td x %td; %ld allocations\n",
                    isa->name, static_cast<int>(kind), sizeof(Real), s.channels, s.slices, s.height,
                    s.width, alone.allocated);
    return good;
}

// ---- subnormal numbers ----

#if defined(__x86_64__) && defined(__GNUC__)

// Whether steps compute with subnormal numbers, or would if the processor did not flush them.
template <class Real>
bool makes_subnormals(const Case &c, const Pixels<Real> &image) {
    const Schedule schedule{{term_of(1, c.tensor, c.scales + c.coarse, c.contrast)}};
    Serial serial;
    bool found = false;
    for (const auto begin : {begin_fused<Real>, begin_exact<Real>}) {
        Buffer<Real> memory;
        const Start<Real> start{c.shape, image.data(), &schedule, 0.1, {0.0}, {}, &serial, &memory};
        const auto run = begin(c, start);
        _mm_setcsr(_mm_getcsr() & ~0x3fu);
        for (std::size_t k = 0; k < steps; ++k) run->advance(k);
        found = found || (_mm_getcsr() & 0x12u) != 0;  // denormal operands, underflow
    }
    return found;
}

template <class Real>
bool check_subnormals(const InstructionSet *isa) {
    bool good = true;
    for (const bool tensor : {true, false})
        for (const double level : {0.0, 25.0, 200.0})
            for (const double contrast : {0.1, 1.0, 10.0}) {
                const Case c{isa, {1, 40, 70}, 4, 0, tensor, contrast};
                if (!makes_subnormals<Real>(c, noise<Real>(c.shape, level))) continue;
                good = false;
                std::printf("%s, %zu bytes: subnormal numbers for noise of level %g, contrast %g\n",
                            isa->name, sizeof(Real), level, contrast);
            }
    return good;
}

#else

template <class Real>
bool check_subnormals(const InstructionSet *) {
    return true;
}

#endif

// ---- sharing ----

// Work without any helper ends, and one that comes too late finds nothing to do.
bool check_late_helpers() {
    int done = 0;
    const auto count = [](const void *work, Index first, Index last, Index) {
        *static_cast<int *>(const_cast<void *>(work)) += static_cast<int>(last - first);
    };
    Bands bands;
    bands.open(10, 4, count, &done);
    bands.take(0);
    bands.close();
    const bool alone = bands.finished() && done == 10;
    bands.help(1);
    return alone && bands.finished() && done == 10;
}

// Helpers come at any time into rounds that follow each other: every row is done once in each.
bool check_rounds() {
    Team team(4);
    std::vector<std::atomic<int>> rows(37);
    for (int round = 1; round <= 2000; ++round) {
        team.rows(static_cast<Index>(rows.size()), [&](Index first, Index last, Index) {
            for (; first < last; ++first) ++rows[static_cast<std::size_t>(first)];
        });
        for (const std::atomic<int> &row : rows)
            if (row != round) return false;
        // Longer than helpers stay awake, now and then.
        if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    return true;
}

}  // namespace

// The argument, if there is one, is the largest number of pixels: an emulator is slow.
int main(int count, char **arguments) {
    const Index largest = count > 1 ? std::atol(arguments[1]) : 1000000;
    const Shape shapes[] = {{1, 1, 1},   {1, 1, 7},    {1, 9, 1},   {2, 2, 3},   {1, 300, 5},
                            {3, 9, 35},  {1, 66, 65},  {1, 4, 1030}};
    bool good = check_late_helpers() && check_rounds();
    std::printf("sharing: %s\n", good ? "all good" : "FAILED");
    for (const InstructionSet *isa : instruction_sets()) {
        for (const Shape &shape : shapes) {
            if (shape.channels * shape.height * shape.width > largest) continue;
            for (const bool tensor : {true, false})
                for (int coarse = 0; coarse < 3; ++coarse) {
                    const Case c{isa, shape, 4, coarse, tensor};
                    good &= check_all<float>(c);
                    good &= check_all<double>(c);
                }
        }
        for (const VolumeShape &shape : {VolumeShape{1, 1, 1, 1}, VolumeShape{1, 3, 1, 2},
                                         VolumeShape{2, 5, 9, 16}, VolumeShape{1, 31, 20, 33}})
            for (const bool tensor : {true, false})
                for (const VolumeKind kind : {VolumeKind::exact, VolumeKind::masked,
                                              VolumeKind::fused, VolumeKind::thick}) {
                    for (const bool integrated : {false, true}) {
                        good &= check_volume<float>(isa, kind, shape, tensor, integrated);
                        good &= check_volume<double>(isa, kind, shape, tensor, integrated);
                    }
                }
        good &= check_subnormals<float>(isa);
        good &= check_subnormals<double>(isa);
        std::printf("%s: %s\n", isa->name, good ? "all good" : "FAILED");
    }
    return good ? 0 : 1;
}
