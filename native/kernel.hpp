// One time step of a diffusion process on one image. Knows nothing of Python.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "team.hpp"

namespace integrodiff {

// What the derivatives of one order contribute; one value for each scale.
struct Term {
    int order = 1;
    bool tensor = true;  // anisotropic; only for order 1
    std::vector<double> coupling_weights;
    std::vector<double> flux_weights;
    std::vector<double> contrasts;
};

// By what J and energies are multiplied at each pixel and at each cell, where the noise is not the
// same everywhere.
template <class Real>
struct Sensitivity {
    const Real *pixels = nullptr, *cells = nullptr;
};

// One half of a symmetric kernel, centre first, for each step of the scale cascade.
using Taps = std::vector<std::vector<double>>;

struct Shape {
    std::ptrdiff_t channels, height, width;
};

// Memory that begins where a line of the cache does.
template <class Real>
struct LineAllocator {
    using value_type = Real;
    static constexpr std::align_val_t line{64};
    LineAllocator() = default;
    template <class Other>
    LineAllocator(const LineAllocator<Other> &) {}
    Real *allocate(std::size_t count) {
        return static_cast<Real *>(::operator new(count * sizeof(Real), line));
    }
    void deallocate(Real *p, std::size_t) { ::operator delete(p, line); }
    bool operator==(const LineAllocator &) const { return true; }
    bool operator!=(const LineAllocator &) const { return false; }
};

template <class Real>
using Buffer = std::vector<Real, LineAllocator<Real>>;

template <class Real>
struct Workspace {
    std::vector<Real> smoothed;   // scales x channels x height x width
    std::vector<Real> couplings;  // J: three planes of cells; energies of higher orders
    std::vector<Real> flow;       // channels x height x width

    // Of the fused step, with margins: the image before and after the step; planes of a quarter of its size, smoothed by the
    // sampling kernel, and at the coarse scales; flows at the coarse scales.
    Buffer<Real> image, next, sampled, coarse, coarse_flows;
    Buffer<Real> sensitivity;  // of the cells, with margins
    std::vector<Buffer<Real>> rings;  // of each part of the image
};

// Advance `image` by one step; `original` is what it is pulled to.
template <class Real>
struct Step {
    Shape shape;
    const Taps *taps;
    const std::vector<Term> *terms;
    double tau, pull, theta;
    bool cells;  // the Haar scheme; otherwise the nonnegativity scheme
    Team *team;
    Workspace<Real> *workspace;
    Sensitivity<Real> local{};

    void run(Real *image, const Real *original) const;
};

// Longest kernels that the fused step takes: radius of odd ones, half of even ones.
constexpr std::ptrdiff_t longest_radius = 24, longest_half_kernel = 20;

// The same step with shortcuts, for the Haar scheme and a single term of order one.
template <class Real>
struct FusedStep {
    Shape shape;
    const Taps *fine;                  // from each scale to the next, on the pixels
    const std::vector<double> *sampling;  // halves of the even kernels: to the coarse grid
    const Taps *coarse;                // from there to the first coarse scale, and to each next
    const std::vector<double> *interpolation;  // from a coarse scale to the pixels
    const Term *term;                  // its numbers are for the fine and then the coarse scales
    double tau, pull, theta;
    Team *team;
    Workspace<Real> *workspace;
    Sensitivity<Real> local{};

    // The image is in the workspace, but for the first step, which finds it in `in`, and the last,
    // which leaves it in `out`.
    void run(const Real *in, Real *out, const Real *original) const;
};

// Derivatives of the numbers of one term at one scale, one for each parameter.
struct Slopes {
    std::vector<double> coupling, flux, contrast;
};

// Advance an image and its derivatives, which lie behind it, by one step.
template <class Real>
struct TangentStep {
    Shape shape;
    std::ptrdiff_t parameters;
    const Taps *taps;
    const std::vector<Term> *terms;
    const std::vector<std::vector<Slopes>> *slopes;  // of each term at each scale
    double tau, pull, theta;
    std::vector<double> tau_slopes, pull_slopes;
    // Of the variance by which each scale is smoothed from the one before: [scale][parameter], or
    // empty if the scales do not depend on the parameters.
    const std::vector<std::vector<double>> *variance_slopes;
    Workspace<Real> *workspace;

    void run(Real *images, const Real *original) const;
};

}  // namespace integrodiff
