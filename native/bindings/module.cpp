// The thin layer between Python and the steps: checks, threads, and the release of the interpreter
// lock.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "../core/instruction_sets.hpp"
#include "../core/subnormals.hpp"
#include "../threads/team.hpp"

namespace nb = nanobind;
using namespace integrodiff;

namespace {

// Order, whether the coupling is a tensor, mix of its eigenvalues, coupling weights, flux weights,
// contrasts, and half of the kernel of the integration scale, which may be empty.
using TermTuple = std::tuple<int, bool, double, std::vector<double>, std::vector<double>,
                             std::vector<double>, std::vector<double>>;
// Of a volume the kernel along each axis, or none; then lengths by which derivatives are divided, and
// shares of twists, in J.
using Three = std::tuple<double, double, double>;
using VolumeTermTuple = std::tuple<int, bool, double, std::vector<double>, std::vector<double>,
                                   std::vector<double>, Taps, Three, Three>;
// Coupling, flux and contrast slopes of a term, each as [scale][parameter].
using Table = std::vector<std::vector<double>>;
using SlopeTuple = std::tuple<Table, Table, Table>;

template <class Real>
using Image = nb::ndarray<const Real, nb::shape<-1, -1, -1>, nb::c_contig, nb::device::cpu>;
template <class Real>
using Result = nb::ndarray<Real, nb::c_contig, nb::device::cpu>;
template <class Real>
using Volume = nb::ndarray<const Real, nb::shape<-1, -1, -1, -1>, nb::c_contig, nb::device::cpu>;
template <class Real>
using CellVolume = nb::ndarray<const Real, nb::shape<-1, -1, -1>, nb::c_contig, nb::device::cpu>;
// At the pixels and at the cells.
template <class Real>
using Plane = nb::ndarray<const Real, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;
template <class Real>
using Planes = std::tuple<Plane<Real>, Plane<Real>>;

long process_id() {
#if defined(_WIN32)
    return 0;
#else
    return static_cast<long>(getpid());
#endif
}

// ---- checks ----

Schedule schedule_from(const std::vector<std::vector<TermTuple>> &entries, std::size_t scales) {
    if (entries.empty()) throw std::invalid_argument("the schedule has no entries");
    Schedule schedule;
    for (const auto &tuples : entries) {
        std::vector<Term> terms;
        for (const auto &[order, tensor, mix, coupling, flux, contrasts, integration] : tuples) {
            if (order < 1 || order > 4) throw std::invalid_argument("order must be from 1 to 4");
            if (tensor && order > 2)
                throw std::invalid_argument("tensor gates are for orders one and two");
            if (coupling.size() != scales || flux.size() != scales || contrasts.size() != scales)
                throw std::invalid_argument("a term needs two weights and a contrast for each scale");
            if (!(mix >= -1 && mix <= 1) || (mix != 0 && !tensor))
                throw std::invalid_argument("mix must be from -1 to 1, and zero without a tensor");
            terms.push_back({order, tensor, coupling, flux, contrasts, integration, mix});
        }
        schedule.push_back(std::move(terms));
    }
    return schedule;
}

void check_kernels(const Taps &taps, std::size_t longest) {
    for (const auto &kernel : taps)
        if (kernel.empty() || kernel.size() > longest)
            throw std::invalid_argument("a kernel has no taps, or too many");
}

const InstructionSet &instruction_set_of(const std::optional<std::string> &name) {
    if (const InstructionSet *found = find_instruction_set(name ? name->c_str() : nullptr))
        return *found;
    std::string known;
    for (const InstructionSet *set : instruction_sets()) known += std::string(" ") + set->name;
    throw std::invalid_argument("instruction set '" + *name + "' does not run here: expected one of" +
                                known);
}

template <class Real>
Shape shape_of(const Image<Real> &image) {
    for (int axis = 0; axis < 3; ++axis)
        if (image.shape(axis) == 0) throw std::invalid_argument("the image is empty");
    return {static_cast<Index>(image.shape(0)), static_cast<Index>(image.shape(1)),
            static_cast<Index>(image.shape(2))};
}

// ---- runs ----

// Memory that no run uses at present. Only touched under the interpreter lock.
template <class Real>
using Pool = std::vector<Buffer<Real>>;

// Everything that a run refers to.
template <class Real>
struct Started {
    Schedule schedule;
    ParameterSlopes slopes;
    Team team;
    Buffer<Real> memory;
    std::unique_ptr<Run<Real>> run;

    Started(Schedule schedule_, int threads) : schedule(std::move(schedule_)), team(threads) {}
};

// An image on its way. Its threads end, and its memory goes back, when it dies.
template <class Real>
class PyRun {
  public:
    PyRun(std::unique_ptr<Started<Real>> started, std::shared_ptr<Pool<Real>> pool,
          std::size_t steps, std::size_t numbers)
        : started_(std::move(started)),
          pool_(std::move(pool)),
          steps_(steps),
          numbers_(numbers),
          process_(process_id()) {}

    ~PyRun() {
        // After a fork the threads are gone, and nobody can wait for them.
        if (process_ != process_id()) {
            started_.release();
            return;
        }
        Buffer<Real> memory = std::move(started_->memory);
        {
            const nb::gil_scoped_release unlocked;
            started_.reset();
        }
        try {
            pool_->push_back(std::move(memory));
        } catch (const std::bad_alloc &) {
        }
    }

    // An interrupt from the keyboard ends it after a step.
    void advance(std::size_t steps) {
        check_process();
        bool interrupted = false;
        {
            const nb::gil_scoped_release unlocked;
            const std::lock_guard<std::mutex> lock(mutex_);
            if (steps > steps_ - done_) throw std::invalid_argument("there are not so many steps left");
            const FlushSubnormals flush;
            for (; steps > 0 && !interrupted; --steps) {
                started_->run->advance(done_++);
                const nb::gil_scoped_acquire locked;
                interrupted = PyErr_CheckSignals() != 0;
            }
        }
        if (interrupted) throw nb::python_error();
    }

    void read(Result<Real> out) {
        if (out.size() != numbers_)
            throw std::invalid_argument("the result has " + std::to_string(numbers_) + " numbers");
        check_process();
        const nb::gil_scoped_release unlocked;
        const std::lock_guard<std::mutex> lock(mutex_);
        started_->run->read(out.data());
    }

    Index threads() const { return started_->team.workers(); }
    std::size_t done() const { return done_; }
    std::size_t bytes() const { return started_->memory.size() * sizeof(Real); }

  private:
    void check_process() const {
        if (process_ != process_id())
            throw std::runtime_error("a run cannot go on in a forked process: start another");
    }

    std::unique_ptr<Started<Real>> started_;
    std::shared_ptr<Pool<Real>> pool_;
    const std::size_t steps_, numbers_;
    const long process_;
    std::size_t done_ = 0;
    std::mutex mutex_;  // calls from several threads take turns
};

// Threads and memory first: how many threads there are decides on the memory.
template <class Real, class Begin>
std::unique_ptr<PyRun<Real>> begin_run(const std::shared_ptr<Pool<Real>> &pool, Schedule schedule,
                                       int threads, std::size_t steps, std::size_t numbers,
                                       const Begin &begin) {
    if (threads < 1) throw std::invalid_argument("threads must be at least 1");
    Buffer<Real> memory;
    if (!pool->empty()) {
        memory = std::move(pool->back());
        pool->pop_back();
    }
    std::unique_ptr<Started<Real>> started;
    {
        const nb::gil_scoped_release unlocked;
        started = std::make_unique<Started<Real>>(std::move(schedule), threads);
        started->memory = std::move(memory);
        begin(*started);
    }
    return std::make_unique<PyRun<Real>>(std::move(started), pool, steps, numbers);
}

Schedule checked_schedule(const std::vector<std::vector<TermTuple>> &entries, std::size_t scales,
                          std::size_t steps) {
    Schedule schedule = schedule_from(entries, scales);
    if (schedule.size() != 1 && schedule.size() != steps)
        throw std::invalid_argument("the schedule needs one entry, or one for each step");
    return schedule;
}

// Kernels, and the memory of runs that have ended.
template <class Real>
class PyProcess {
  public:
    // Every step as it is: `taps` are the kernels from each scale to the next.
    PyProcess(Taps taps, double theta, bool cells, const std::optional<std::string> &isa)
        : exact_{std::move(taps), theta, cells},
          isa_(instruction_set_of(isa)),
          scales_(exact_.taps.size()) {
        if (scales_ == 0) throw std::invalid_argument("there must be at least one scale");
        check_kernels(exact_.taps, 1u << 20);
    }

    // Steps with shortcuts: kernels of the fine scales, halves of the two even kernels between the
    // pixels and the coarse grid, kernels of the coarse scales.
    PyProcess(Taps fine, std::vector<double> sampling, Taps coarse, std::vector<double> interpolation,
              double theta, const std::optional<std::string> &isa)
        : fused_(FusedProcess{std::move(fine), std::move(sampling), std::move(coarse),
                              std::move(interpolation), theta}),
          isa_(instruction_set_of(isa)),
          scales_(fused_->fine.size() + fused_->coarse.size()) {
        if (fused_->fine.empty())
            throw std::invalid_argument("there must be at least one fine scale");
        check_kernels(fused_->fine, longest_radius + 1);
        check_kernels(fused_->coarse, longest_radius + 1);
        if (!fused_->coarse.empty())
            check_kernels({fused_->sampling, fused_->interpolation}, longest_half_kernel);
    }

    std::unique_ptr<PyRun<Real>> start(Image<Real> image,
                                       const std::vector<std::vector<TermTuple>> &entries,
                                       std::size_t steps, double tau, const std::vector<double> &pulls,
                                       int threads,
                                       const std::optional<Planes<Real>> &sensitivity,
                                       const std::optional<Planes<Real>> &distances,
                                       const std::vector<double> &reach) {
        const Shape shape = shape_of(image);
        const auto [pixel_factors, cell_factors] = data_of(sensitivity, image);
        const auto [pixel_distances, cell_distances] = data_of(distances, image);
        const Sensitivity<Real> local{pixel_factors, cell_factors};
        if (distances && (fused_ || !exact_.cells || reach.size() != scales_))
            throw std::invalid_argument(
                "invalid pixels are for exact evaluation of the Haar scheme, with a reach for each "
                "scale");
        Schedule schedule = checked_schedule(entries, scales_, steps);
        if (pulls.size() != 1 && pulls.size() != steps)
            throw std::invalid_argument("there must be one fidelity weight, or one for each step");
        if (fused_)
            for (const std::vector<Term> &terms : schedule) check_fused(terms, schedule[0].size());
        return begin_run<Real>(pool_, std::move(schedule), threads, steps, image.size(),
                               [&](Started<Real> &started) {
            const Start<Real> begun{shape, image.data(),  &started.schedule, tau,
                                    pulls, local,         &started.team,     &started.memory,
                                    {pixel_distances, cell_distances, reach}};
            const Steps<Real> &with = isa_.steps(Real());
            started.run = fused_ ? with.fused(*fused_, begun) : with.exact(exact_, begun);
        });
    }

    // The image with its derivatives in some parameters; for the Haar scheme.
    std::unique_ptr<PyRun<Real>> start_tangents(
        Image<Real> image, const std::vector<std::vector<TermTuple>> &entries, std::size_t steps,
        double tau, double pull, const std::vector<std::vector<SlopeTuple>> &term_slopes,
        const std::vector<double> &tau_slopes, const std::vector<double> &pull_slopes,
        const Table &variance_slopes) {
        const Shape shape = shape_of(image);
        if (fused_ || !exact_.cells)
            throw std::invalid_argument("tangents are for exact evaluation of the Haar scheme");
        Schedule schedule = checked_schedule(entries, scales_, steps);
        for (const std::vector<Term> &terms : schedule)
            for (const Term &term : terms)
                if ((term.order > 1 && term.tensor) || term.mix != 0)
                    throw std::invalid_argument(
                        "tangents are for tensor gates of order one, whose eigenvalues do not mix");
        const std::size_t parameters = tau_slopes.size();
        const auto check = [&](bool right) {
            if (!right) throw std::invalid_argument("every number needs a slope for each parameter");
        };
        check(pull_slopes.size() == parameters && term_slopes.size() == schedule.size());
        check(variance_slopes.empty() || variance_slopes.size() == scales_);
        for (const auto &of_scale : variance_slopes) check(of_scale.size() == parameters);
        ParameterSlopes slopes{static_cast<Index>(parameters), {}, tau_slopes, pull_slopes,
                               variance_slopes};
        for (std::size_t k = 0; k < schedule.size(); ++k) {
            check(term_slopes[k].size() == schedule[k].size());
            slopes.terms.emplace_back();
            for (const auto &[coupling, flux, contrast] : term_slopes[k]) {
                check(coupling.size() == scales_ && flux.size() == scales_ &&
                      contrast.size() == scales_);
                std::vector<Slopes> of_term;
                for (std::size_t i = 0; i < scales_; ++i) {
                    check(coupling[i].size() == parameters && flux[i].size() == parameters &&
                          contrast[i].size() == parameters);
                    of_term.push_back({coupling[i], flux[i], contrast[i]});
                }
                slopes.terms.back().push_back(std::move(of_term));
            }
        }
        return begin_run<Real>(pool_, std::move(schedule), 1, steps, (parameters + 1) * image.size(),
                     [&](Started<Real> &started) {
                         started.slopes = std::move(slopes);
                         const Start<Real> begun{shape, image.data(), &started.schedule, tau, {pull},
                                                 {},    &started.team, &started.memory, {}};
                         started.run =
                             isa_.steps(Real()).tangents(exact_, started.slopes, begun);
                     });
    }

    std::string instruction_set() const { return isa_.name; }

  private:
    static std::pair<const Real *, const Real *> data_of(const std::optional<Planes<Real>> &planes,
                                                         const Image<Real> &image) {
        if (!planes) return {nullptr, nullptr};
        const auto &[pixels, cells] = *planes;
        for (std::size_t axis = 0; axis < 2; ++axis)
            if (pixels.shape(axis) != image.shape(axis + 1) ||
                cells.shape(axis) != image.shape(axis + 1) + 1)
                throw std::invalid_argument("sensitivity or distances are for images of another shape");
        return {pixels.data(), cells.data()};
    }

    static void check_fused(const std::vector<Term> &terms, std::size_t count) {
        const auto is_short = [](const Term &term) {
            return term.integration.size() <= static_cast<std::size_t>(longest_radius) + 1;
        };
        const bool first = !terms.empty() && terms[0].order == 1 && is_short(terms[0]);
        const bool second = terms.size() == 1 ||
                            (terms.size() == 2 && terms[1].order == 2 && terms[1].tensor &&
                             !terms[1].integration.empty() && is_short(terms[1]));
        if (!first || !second || terms.size() != count)
            throw std::invalid_argument(
                "the fused step takes a term of order one, and possibly one of order two with a "
                "tensor gate, both with a short integration");
    }

    ExactProcess exact_{};
    std::optional<FusedProcess> fused_;
    const InstructionSet &isa_;
    const std::size_t scales_;
    std::shared_ptr<Pool<Real>> pool_ = std::make_shared<Pool<Real>>();
};

// The same in three dimensions.
template <class Real>
class PyVolumeProcess {
  public:
    PyVolumeProcess(const std::tuple<Taps, Taps, Taps> &taps, double theta,
                    const std::tuple<double, double, double> &spacing,
                    const std::optional<std::string> &isa)
        : process_{{std::get<0>(taps), std::get<1>(taps), std::get<2>(taps)},
                   theta,
                   {std::get<0>(spacing), std::get<1>(spacing), std::get<2>(spacing)}},
          isa_(instruction_set_of(isa)),
          scales_(process_.taps[0].size()) {
        if (scales_ == 0) throw std::invalid_argument("there must be at least one scale");
        for (int axis = 0; axis < 3; ++axis) {
            check_kernels(process_.taps[axis], 1u << 20);
            if (process_.taps[axis].size() != scales_ || !(process_.spacing[axis] > 0))
                throw std::invalid_argument("every axis needs all scales, and a positive spacing");
        }
    }

    // With shortcuts. An axis without kernels to the coarse grid is not halved.
    PyVolumeProcess(const std::tuple<Taps, Taps, Taps> &fine, const Taps &sampling,
                    const std::tuple<Taps, Taps, Taps> &coarse, const Taps &interpolation,
                    double theta, const std::tuple<double, double, double> &spacing,
                    const std::optional<std::string> &isa)
        : process_{{}, theta, {std::get<0>(spacing), std::get<1>(spacing), std::get<2>(spacing)}},
          isa_(instruction_set_of(isa)),
          scales_(std::get<0>(fine).size() + std::get<0>(coarse).size()) {
        FusedVolumeProcess found{{std::get<0>(fine), std::get<1>(fine), std::get<2>(fine)},
                                 {},
                                 {},
                                 {std::get<0>(coarse), std::get<1>(coarse), std::get<2>(coarse)},
                                 {},
                                 theta,
                                 {}};
        if (sampling.size() != 3 || interpolation.size() != 3)
            throw std::invalid_argument("every axis needs kernels to the coarse grid, or none");
        for (int axis = 0; axis < 3; ++axis) {
            found.spacing[axis] = process_.spacing[axis];
            found.halved[axis] = !sampling[axis].empty();
            found.sampling[axis] = sampling[axis];
            found.interpolation[axis] = interpolation[axis];
            check_kernels(found.fine[axis], longest_radius + 1);
            check_kernels(found.coarse[axis], longest_radius + 1);
            if (found.fine[axis].empty() || found.fine[axis].size() != found.fine[0].size() ||
                found.coarse[axis].size() != found.coarse[0].size() || !(found.spacing[axis] > 0))
                throw std::invalid_argument("every axis needs all scales, and a positive spacing");
            if (sampling[axis].empty() != interpolation[axis].empty() ||
                sampling[axis].size() > static_cast<std::size_t>(longest_half_kernel) ||
                interpolation[axis].size() > static_cast<std::size_t>(longest_half_kernel))
                throw std::invalid_argument("kernels to the coarse grid are missing or too long");
        }
        fused_ = std::move(found);
    }

    std::unique_ptr<PyRun<Real>> start(Volume<Real> image,
                                       const std::vector<std::vector<VolumeTermTuple>> &entries,
                                       std::size_t steps, double tau,
                                       const std::vector<double> &pulls, int threads,
                                       const std::optional<CellVolume<Real>> &sensitivity,
                                       const std::optional<CellVolume<Real>> &valid) {
        for (int axis = 0; axis < 4; ++axis)
            if (image.shape(axis) == 0) throw std::invalid_argument("the volume is empty");
        for (int axis = 0; sensitivity && axis < 3; ++axis)
            if (sensitivity->shape(axis) != image.shape(axis + 1) + 1)
                throw std::invalid_argument("sensitivity is for volumes of another shape");
        for (int axis = 0; valid && axis < 3; ++axis)
            if (valid->shape(axis) != image.shape(axis + 1))
                throw std::invalid_argument("the mask is for volumes of another shape");
        if (valid && fused_) throw std::invalid_argument("masks are for exact evaluation");
        std::vector<std::vector<TermTuple>> flat;
        for (const auto &tuples : entries) {
            flat.emplace_back();
            for (const VolumeTermTuple &t : tuples)
                flat.back().push_back({std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t),
                                       std::get<4>(t), std::get<5>(t), {}});
        }
        Schedule schedule = checked_schedule(flat, scales_, steps);
        for (std::size_t k = 0; k < schedule.size(); ++k) {
            if (schedule[k].size() != 1 || schedule[k][0].order != 1 || schedule[k][0].mix != 0)
                throw std::invalid_argument("volumes take one term of order one, without a mix");
            Term &term = schedule[k][0];
            const auto &[z, y, x] = std::get<7>(entries[k][0]);
            const auto &[across_z, across_y, across_x] = std::get<8>(entries[k][0]);
            const double units[3] = {z, y, x}, twists[3] = {across_z, across_y, across_x};
            for (int axis = 0; axis < 3; ++axis) {
                if (!(units[axis] > 0) || !(twists[axis] >= 0 && twists[axis] <= 1))
                    throw std::invalid_argument("units are positive, shares of twists at most one");
                term.units[axis] = units[axis];
                term.twists[axis] = twists[axis];
            }
            Taps &integration = term.volume_integration;
            integration = std::get<6>(entries[k][0]);
            if (!integration.empty() && integration.size() != 3)
                throw std::invalid_argument("an integration needs a kernel along each axis");
            check_kernels(integration, fused_ ? longest_radius + 1 : 1u << 20);
        }
        if (pulls.size() != 1 && pulls.size() != steps)
            throw std::invalid_argument("there must be one fidelity weight, or one for each step");
        return begin_run<Real>(pool_, std::move(schedule), threads, steps, image.size(),
                               [&](Started<Real> &started) {
            const VolumeShape shape{
                static_cast<Index>(image.shape(0)), static_cast<Index>(image.shape(1)),
                static_cast<Index>(image.shape(2)), static_cast<Index>(image.shape(3))};
            const VolumeStart<Real> begun{shape, image.data(), &started.schedule, tau, pulls,
                                          sensitivity ? sensitivity->data() : nullptr,
                                          &started.team, &started.memory,
                                          valid ? valid->data() : nullptr};
            const Steps<Real> &with = isa_.steps(Real());
            started.run = fused_ ? with.fused_volume(*fused_, begun) : with.volume(process_, begun);
        });
    }

  private:
    const VolumeProcess process_;
    std::optional<FusedVolumeProcess> fused_;
    const InstructionSet &isa_;
    const std::size_t scales_;
    std::shared_ptr<Pool<Real>> pool_ = std::make_shared<Pool<Real>>();
};

template <class Real>
void bind(nb::module_ &m, const char *process, const char *volumes, const char *run) {
    nb::class_<PyRun<Real>>(m, run)
        .def("advance", &PyRun<Real>::advance, nb::arg("steps") = 1)
        .def("read", &PyRun<Real>::read, nb::arg("out").noconvert())
        .def_prop_ro("threads", &PyRun<Real>::threads)
        .def_prop_ro("done", &PyRun<Real>::done)
        .def_prop_ro("bytes", &PyRun<Real>::bytes);
    nb::class_<PyProcess<Real>>(m, process)
        .def(nb::init<Taps, double, bool, std::optional<std::string>>(), nb::arg("taps"),
             nb::arg("theta"), nb::arg("cells"), nb::arg("instruction_set") = nb::none())
        .def(nb::init<Taps, std::vector<double>, Taps, std::vector<double>, double,
                      std::optional<std::string>>(),
             nb::arg("fine"), nb::arg("sampling"), nb::arg("coarse"), nb::arg("interpolation"),
             nb::arg("theta"), nb::arg("instruction_set") = nb::none())
        .def("start", &PyProcess<Real>::start, nb::arg("image"), nb::arg("schedule"),
             nb::arg("steps"), nb::arg("tau"), nb::arg("pulls"), nb::arg("threads") = 1,
             nb::arg("sensitivity") = nb::none(), nb::arg("distances") = nb::none(),
             nb::arg("reach") = std::vector<double>(), nb::keep_alive<0, 1>())
        .def("start_tangents", &PyProcess<Real>::start_tangents, nb::arg("image"),
             nb::arg("schedule"), nb::arg("steps"), nb::arg("tau"), nb::arg("pull"),
             nb::arg("slopes"), nb::arg("tau_slopes"), nb::arg("pull_slopes"),
             nb::arg("variance_slopes"), nb::keep_alive<0, 1>())
        .def_prop_ro("instruction_set", &PyProcess<Real>::instruction_set);
    nb::class_<PyVolumeProcess<Real>>(m, volumes)
        .def(nb::init<std::tuple<Taps, Taps, Taps>, double, std::tuple<double, double, double>,
                      std::optional<std::string>>(),
             nb::arg("taps"), nb::arg("theta"), nb::arg("spacing"),
             nb::arg("instruction_set") = nb::none())
        .def(nb::init<std::tuple<Taps, Taps, Taps>, Taps, std::tuple<Taps, Taps, Taps>, Taps, double,
                      std::tuple<double, double, double>, std::optional<std::string>>(),
             nb::arg("fine"), nb::arg("sampling"), nb::arg("coarse"), nb::arg("interpolation"),
             nb::arg("theta"), nb::arg("spacing"), nb::arg("instruction_set") = nb::none())
        .def("start", &PyVolumeProcess<Real>::start, nb::arg("image"), nb::arg("schedule"),
             nb::arg("steps"), nb::arg("tau"), nb::arg("pulls"), nb::arg("threads") = 1,
             nb::arg("sensitivity") = nb::none(), nb::arg("valid") = nb::none(),
             nb::keep_alive<0, 1>());
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled steps of diffusion processes";
    // Processes that are kept in caches live until the interpreter ends; that is no leak.
    nb::set_leak_warnings(false);
    bind<float>(m, "ProcessFloat32", "VolumeProcessFloat32", "RunFloat32");
    bind<double>(m, "ProcessFloat64", "VolumeProcessFloat64", "RunFloat64");
    m.def("instruction_sets", []() {
        std::vector<std::string> names;
        for (const InstructionSet *set : instruction_sets()) names.push_back(set->name);
        return names;
    });
    m.def("instruction_set", []() { return std::string(find_instruction_set(nullptr)->name); });
}
