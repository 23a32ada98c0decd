// The thin layer between Python and the kernels: checks, and the release of the interpreter lock.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "dispatch.hpp"

namespace nb = nanobind;
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

int at_least_one(int threads) {
    if (threads < 1) throw std::invalid_argument("threads must be at least 1");
    return threads;
}

// Holds the memory that steps on images of one shape and precision need.
template <class Real>
class Plan {
  public:
    Plan(std::vector<std::vector<double>> taps, double theta, bool cells, int threads)
        : taps_(std::move(taps)), theta_(theta), cells_(cells), team_(at_least_one(threads)) {
        if (taps_.empty()) throw std::invalid_argument("there must be at least one scale");
        for (const auto &kernel : taps_)
            if (kernel.empty()) throw std::invalid_argument("a kernel must have at least one tap");
    }

    void step(Image<Real> image, Image<const Real> original, const std::vector<TermTuple> &tuples,
              double tau, double pull) {
        for (int axis = 0; axis < 3; ++axis)
            if (image.shape(axis) != original.shape(axis) || image.shape(axis) == 0)
                throw std::invalid_argument("image and original must have one shape, not empty");
        const std::vector<Term> terms = terms_from(tuples, taps_.size());
        const Shape shape{static_cast<std::ptrdiff_t>(image.shape(0)),
                          static_cast<std::ptrdiff_t>(image.shape(1)),
                          static_cast<std::ptrdiff_t>(image.shape(2))};
        const Step<Real> task{shape,  &taps_, &terms,   tau,        pull,
                              theta_, cells_, &team_, &workspace_};
        nb::gil_scoped_release unlocked;
        task.run(image.data(), original.data());
    }

  private:
    std::vector<std::vector<double>> taps_;
    double theta_;
    bool cells_;
    Team team_;
    Workspace<Real> workspace_;
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
              const std::vector<double> &pull_slopes) {
        const std::vector<Term> terms = terms_from(tuples, taps_.size());
        const std::size_t parameters = images.shape(0) - 1;
        for (int axis = 0; axis < 3; ++axis)
            if (images.shape(axis + 1) != original.shape(axis) || original.shape(axis) == 0)
                throw std::invalid_argument("images and original must have one shape, not empty");
        if (tau_slopes.size() != parameters || pull_slopes.size() != parameters ||
            slope_tuples.size() != terms.size())
            throw std::invalid_argument("every number needs a slope for each parameter");
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
        const TangentStep<Real> task{shape,      static_cast<std::ptrdiff_t>(parameters),
                                     &taps_,     &terms,
                                     &slopes,    tau,
                                     pull,       theta_,
                                     tau_slopes, pull_slopes,
                                     &workspace_};
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
             nb::arg("pull"), nb::arg("pull_slopes"));
}

template <class Real>
void bind(nb::module_ &m, const char *name) {
    nb::class_<Plan<Real>>(m, name)
        .def(nb::init<std::vector<std::vector<double>>, double, bool, int>(), nb::arg("taps"),
             nb::arg("theta"), nb::arg("cells"), nb::arg("threads"))
        .def("step", &Plan<Real>::step, nb::arg("image"), nb::arg("original"), nb::arg("terms"),
             nb::arg("tau"), nb::arg("pull"));
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
