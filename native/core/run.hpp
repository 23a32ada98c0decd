// An evolution on one image, as the steps offer it to their callers.
#pragma once

#include <memory>

#include "executor.hpp"
#include "memory.hpp"

namespace integrodiff {

// An image inside the engine. Constructing a run takes all its memory.
template <class Real>
class Run {
  public:
    virtual ~Run() = default;

    // Advance the image by one step, whose number decides on the terms. Allocates nothing.
    virtual void advance(std::size_t step) = 0;

    // Write channels x height x width numbers; tangents follow, if the run has them.
    virtual void read(Real *out) const = 0;
};

// Exact evaluation: kernels from each scale to the next, or the polynomials that take their place for
// images with invalid pixels.
struct ExactProcess {
    Taps taps;
    double theta;
    bool cells;  // the Haar scheme; otherwise the nonnegativity scheme
};

// Exact evaluation in three dimensions. Axes are in the order slices, rows, columns.
struct VolumeProcess {
    Taps taps[3];  // kernels along each axis, from each scale to the next, or polynomials
    double theta;
    double spacing[3];
};

// Longest kernels that the fused step takes: radius of odd ones, half of even ones.
constexpr Index longest_radius = 26, longest_half_kernel = 20;

// Evaluation with shortcuts, for the Haar scheme: a term of order one, and possibly one of order two
// with a tensor gate, whose integration is on the coarse grid. Its numbers are for the fine and then
// the coarse scales.
struct FusedProcess {
    Taps fine;                          // from each scale to the next, on the pixels
    std::vector<double> sampling;       // half of the even kernel to the coarse grid
    Taps coarse;                        // from there to the first coarse scale, and to each next
    std::vector<double> interpolation;  // half of the even kernel from a coarse scale to the pixels
    double theta;
};

// The same with shortcuts: scales on the voxels, each from the volume itself, and others on a coarse
// grid. Its numbers are for the fine and then the coarse scales. An axis with thick slices is not
// halved, and has no kernels to the coarse grid and from there.
struct FusedVolumeProcess {
    Taps fine[3];
    bool halved[3];
    std::vector<double> sampling[3];
    Taps coarse[3];
    std::vector<double> interpolation[3];
    double theta;
    double spacing[3];
};

// What a run starts from. Image, sensitivity and distances are copied; the rest outlives the run.
template <class Real>
struct Start {
    Shape shape;
    const Real *image;
    const Schedule *schedule;
    double tau;
    std::vector<double> pulls;  // one for all steps, or one for each
    Sensitivity<Real> local;
    Executor *executor;
    Buffer<Real> *memory;
    Invalid<Real> invalid = {};
};

// What a run in three dimensions starts from. Each entry of the schedule has one term, of order one.
template <class Real>
struct VolumeStart {
    VolumeShape shape;
    const Real *image;
    const Schedule *schedule;
    double tau;
    std::vector<double> pulls;  // one for all steps, or one for each
    const Real *local;  // factors of J at the cells, or nullptr
    Executor *executor;
    Buffer<Real> *memory;
    // One at valid voxels and zero at others, or nullptr. With it, kernels are coefficients of
    // polynomials, the same for all axes, and shortcuts are not for it.
    const Real *valid = nullptr;
};

// Derivatives of all numbers of a process in some parameters.
struct ParameterSlopes {
    Index parameters;
    // [entry of the schedule][term][scale]
    std::vector<std::vector<std::vector<Slopes>>> terms;
    std::vector<double> tau, pull;
    // Of the variance by which each scale is smoothed from the one before: [scale][parameter], or
    // empty if the scales do not depend on the parameters.
    std::vector<std::vector<double>> variances;
};

}  // namespace integrodiff
