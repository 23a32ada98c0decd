// The thin layer between Python and the kernels: checks, and the release of the interpreter lock.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "dispatch.hpp"

namespace nb = nanobind;
using integrodiff::FusedStep;
using integrodiff::Sensitivity;
using integrodiff::Shape;
using integrodiff::Slopes;
using integrodiff::Step;
using integrodiff::TangentStep;
using integrodiff::Team;
using integrodiff::Term;
using integrodiff::Workspace;

// Order, whether the coupling is a tensor, coupling weights, flux weights, contrasts.
using TermTuple = std::tuple<int, bool, std::vector<double>, std::vector<double>, std::vector<double>>;

template <class Real>
using Image = nb::ndarray<Real, nb::shape<-1, -1, -1>, nb::c_contig, nb::device::cpu>;

// At the pixels and at the cells.
template <class Real>
using Plane = nb::ndarray<const Real, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;
template <class Real>
using Planes = std::tuple<Plane<Real>, Plane<Real>>;

namespace {

std::vector<Term> terms_from(const std::vector<TermTuple> &tuples, std::size_t scales) {
    std::vector<Term> terms;
    for (const auto &[order, tensor, coupling, flux, contrasts] : tuples) {
        if (order < 1 || order > 4) throw std::invalid_argument("order must be from 1 to 4");
        if (coupling.size() != scales || flux.size() != scales || contrasts.size() != scales)
            throw std::invalid_argument("a term needs two weights and a contrast for each scale");
        terms.push_back({order, tensor, coupling, flux, contrasts});
    }
    return terms;
}

// Workspaces that no call uses at present, so that calls from several threads do not meet.
template <class Real>
class Workspaces {
  public:
    std::unique_ptr<Workspace<Real>> take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (idle_.empty()) return std::make_unique<Workspace<Real>>();
        std::unique_ptr<Workspace<Real>> last = std::move(idle_.back());
        idle_.pop_back();
        return last;
    }
    void give_back(std::unique_ptr<Workspace<Real>> workspace) {
        const std::lock_guard<std::mutex> lock(mutex_);
        idle_.push_back(std::move(workspace));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Workspace<Real>>> idle_;
};

void check_kernels(const std::vector<std::vector<double>> &taps, std::size_t longest) {
    for (const auto &kernel : taps)
        if (kernel.empty() || kernel.size() > longest)
            throw std::invalid_argument("a kernel has no taps, or too many");
}

// Holds kernels, and the memory that steps on images need.
template <class Real>
class Plan {
  public:
    // Every step as it is: `taps` are the kernels from each scale to the next.
    Plan(std::vector<std::vector<double>> taps, double theta, bool cells)
        : taps_(std::move(taps)), theta_(theta), cells_(cells) {
        if (taps_.empty()) throw std::invalid_argument("there must be at least one scale");
        check_kernels(taps_, 1u << 20);
    }

    // Steps with shortcuts: kernels of the fine scales, halves of the two even kernels between the
    // pixels and the coarse grid, kernels of the coarse scales.
    Plan(std::vector<std::vector<double>> fine, std::vector<double> sampling,
         std::vector<std::vector<double>> coarse, std::vector<double> interpolation, double theta)
        : taps_(std::move(fine)),
          sampling_(std::move(sampling)),
          coarse_(std::move(coarse)),
          interpolation_(std::move(interpolation)),
          theta_(theta),
          fused_(true) {
        if (taps_.empty()) throw std::invalid_argument("there must be at least one fine scale");
        check_kernels(taps_, integrodiff::longest_radius + 1);
        check_kernels(coarse_, integrodiff::longest_radius + 1);
        if (!coarse_.empty())
            check_kernels({sampling_, interpolation_}, integrodiff::longest_half_kernel);
    }

    // One step for each entry of `schedule`. An interrupt from the keyboard ends it after a step.
    void evolve(Image<Real> image, Image<const Real> original,
                const std::vector<std::vector<TermTuple>> &schedule, double tau, double pull,
                int threads, const std::optional<Planes<Real>> &planes) {
        for (int axis = 0; axis < 3; ++axis)
            if (image.shape(axis) != original.shape(axis) || image.shape(axis) == 0)
                throw std::invalid_argument("image and original must have one shape, not empty");
        if (threads < 1) throw std::invalid_argument("threads must be at least 1");
        const Shape shape{static_cast<std::ptrdiff_t>(image.shape(0)),
                          static_cast<std::ptrdiff_t>(image.shape(1)),
                          static_cast<std::ptrdiff_t>(image.shape(2))};
        Sensitivity<Real> local;
        if (planes) {
            const auto &[pixels, cells] = *planes;
            for (std::size_t axis = 0; axis < 2; ++axis)
                if (pixels.shape(axis) != image.shape(axis + 1) ||
                    cells.shape(axis) != image.shape(axis + 1) + 1)
                    throw std::invalid_argument("the sensitivity is for images of another shape");
            local = {pixels.data(), cells.data()};
        }
        std::vector<std::vector<Term>> steps;
        for (const auto &tuples : schedule) {
            steps.push_back(terms_from(tuples, taps_.size() + coarse_.size()));
            if (fused_ && (steps.back().size() != 1 || steps.back()[0].order != 1))
                throw std::invalid_argument("the fused step takes one term, of order one");
        }
        std::unique_ptr<Workspace<Real>> workspace = workspaces_.take();
        Real *const pixels = image.data();
        const Real *const start = original.data();
        bool interrupted = false;
        {
            nb::gil_scoped_release unlocked;
            Team team(threads);
            for (std::size_t k = 0; k < steps.size() && !interrupted; ++k) {
                if (fused_)
                    FusedStep<Real>{shape,  &taps_, &sampling_, &coarse_, &interpolation_,
                                    &steps[k][0], tau, pull, theta_, &team, workspace.get(), local}
                        .run(k == 0 ? pixels : nullptr, k + 1 == steps.size() ? pixels : nullptr, start);
                else
                    Step<Real>{shape,  &taps_, &steps[k], tau, pull,
                               theta_, cells_, &team, workspace.get(), local}
                        .run(pixels, start);
                nb::gil_scoped_acquire locked;
                interrupted = PyErr_CheckSignals() != 0;
            }
        }
        workspaces_.give_back(std::move(workspace));
        if (interrupted) throw nb::python_error();
    }

  private:
    std::vector<std::vector<double>> taps_;
    std::vector<double> sampling_;
    std::vector<std::vector<double>> coarse_;
    std::vector<double> interpolation_;
    double theta_;
    bool cells_ = true, fused_ = false;
    Workspaces<Real> workspaces_;
};

// Coupling, flux and contrast slopes of a term, each as [scale][parameter].
using Table = std::vector<std::vector<double>>;
using SlopeTuple = std::tuple<Table, Table, Table>;

// The same for an image with its derivatives in some parameters; for the Haar scheme.
template <class Real>
class TangentPlan {
  public:
    TangentPlan(std::vector<std::vector<double>> taps, double theta)
        : taps_(std::move(taps)), theta_(theta) {
        if (taps_.empty()) throw std::invalid_argument("there must be at least one scale");
    }

    void step(nb::ndarray<Real, nb::shape<-1, -1, -1, -1>, nb::c_contig, nb::device::cpu> images,
              Image<const Real> original, const std::vector<TermTuple> &tuples,
              const std::vector<SlopeTuple> &slope_tuples, double tau,
              const std::vector<double> &tau_slopes, double pull,
              const std::vector<double> &pull_slopes, const Table &variance_slopes) {
        const std::vector<Term> terms = terms_from(tuples, taps_.size());
        const std::size_t parameters = images.shape(0) - 1;
        for (int axis = 0; axis < 3; ++axis)
            if (images.shape(axis + 1) != original.shape(axis) || original.shape(axis) == 0)
                throw std::invalid_argument("images and original must have one shape, not empty");
        if (tau_slopes.size() != parameters || pull_slopes.size() != parameters ||
            slope_tuples.size() != terms.size())
            throw std::invalid_argument("every number needs a slope for each parameter");
        if (!variance_slopes.empty() && variance_slopes.size() != taps_.size())
            throw std::invalid_argument("every scale needs a slope for each parameter");
        for (const auto &of_scale : variance_slopes)
            if (of_scale.size() != parameters)
                throw std::invalid_argument("every scale needs a slope for each parameter");
        std::vector<std::vector<Slopes>> slopes;
        for (const auto &[coupling, flux, contrast] : slope_tuples) {
            std::vector<Slopes> of_term;
            for (std::size_t i = 0; i < taps_.size(); ++i) {
                of_term.push_back({coupling.at(i), flux.at(i), contrast.at(i)});
                const Slopes &last = of_term.back();
                if (last.coupling.size() != parameters || last.flux.size() != parameters ||
                    last.contrast.size() != parameters)
                    throw std::invalid_argument("every number needs a slope for each parameter");
            }
            slopes.push_back(std::move(of_term));
        }
        const Shape shape{static_cast<std::ptrdiff_t>(images.shape(1)),
                          static_cast<std::ptrdiff_t>(images.shape(2)),
                          static_cast<std::ptrdiff_t>(images.shape(3))};
        const TangentStep<Real> task{shape,       static_cast<std::ptrdiff_t>(parameters),
                                     &taps_,      &terms,
                                     &slopes,     tau,
                                     pull,        theta_,
                                     tau_slopes,  pull_slopes,
                                     &variance_slopes, &workspace_};
        nb::gil_scoped_release unlocked;
        task.run(images.data(), original.data());
    }

  private:
    std::vector<std::vector<double>> taps_;
    double theta_;
    Workspace<Real> workspace_;
};

template <class Real>
void bind_tangents(nb::module_ &m, const char *name) {
    nb::class_<TangentPlan<Real>>(m, name)
        .def(nb::init<std::vector<std::vector<double>>, double>(), nb::arg("taps"),
             nb::arg("theta"))
        .def("step", &TangentPlan<Real>::step, nb::arg("images"), nb::arg("original"),
             nb::arg("terms"), nb::arg("slopes"), nb::arg("tau"), nb::arg("tau_slopes"),
             nb::arg("pull"), nb::arg("pull_slopes"), nb::arg("variance_slopes"));
}

template <class Real>
void bind(nb::module_ &m, const char *name) {
    using Kernels = std::vector<std::vector<double>>;
    using Taps = std::vector<double>;
    nb::class_<Plan<Real>>(m, name)
        .def(nb::init<Kernels, double, bool>(), nb::arg("taps"), nb::arg("theta"), nb::arg("cells"))
        .def(nb::init<Kernels, Taps, Kernels, Taps, double>(), nb::arg("fine"), nb::arg("sampling"),
             nb::arg("coarse"), nb::arg("interpolation"), nb::arg("theta"))
        .def("evolve", &Plan<Real>::evolve, nb::arg("image"), nb::arg("original"),
             nb::arg("schedule"), nb::arg("tau"), nb::arg("pull"), nb::arg("threads"),
             nb::arg("sensitivity") = nb::none());
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled steps of diffusion processes";
    bind<float>(m, "PlanFloat32");
    bind<double>(m, "PlanFloat64");
    bind_tangents<float>(m, "TangentPlanFloat32");
    bind_tangents<double>(m, "TangentPlanFloat64");
    m.def("instruction_set", []() { return std::string(integrodiff::instruction_set()); });
}
