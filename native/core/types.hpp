// Plain data that describe a process and an image.
#pragma once

#include <cstddef>
#include <vector>

namespace integrodiff {

using Index = std::ptrdiff_t;

struct Shape {
    Index channels, height, width;
};

struct VolumeShape {
    Index channels, slices, height, width;
};

// One half of a symmetric kernel, centre first, for each step of the scale cascade.
using Taps = std::vector<std::vector<double>>;

// What the derivatives of one order contribute; one value for each scale.
struct Term {
    int order = 1;
    bool tensor = true;  // anisotropic; only for orders 1 and 2
    std::vector<double> coupling_weights;
    std::vector<double> flux_weights;
    std::vector<double> contrasts;
    std::vector<double> integration;  // half of the kernel that smooths the coupling; may be empty
    double mix = 0;  // of the other eigenvalue of J that each gets; for tensors
    // In volumes, along slices, rows and columns: these kernels, or none; the lengths by which
    // derivatives are divided in J; the shares of the twists across an axis in J.
    Taps volume_integration = {};
    double units[3] = {1, 1, 1}, twists[3] = {0, 0, 0};
};

// The terms of each step; a single entry holds for all steps.
using Schedule = std::vector<std::vector<Term>>;

inline const std::vector<Term> &terms_at(const Schedule &schedule, std::size_t step) {
    return schedule[schedule.size() == 1 ? 0 : step];
}

// The fidelity weight of a step; a single one holds for all steps.
inline double pull_at(const std::vector<double> &pulls, std::size_t step) {
    return pulls[pulls.size() == 1 ? 0 : step];
}

inline bool pulls_at_all(const std::vector<double> &pulls) {
    for (const double pull : pulls)
        if (pull != 0) return true;
    return false;
}

// Factors of J and of energies at each pixel and at each cell, where the noise varies.
template <class Real>
struct Sensitivity {
    const Real *pixels = nullptr, *cells = nullptr;
};

// Of an image with invalid pixels: distances of the pixels and of the cells to the next of them, and
// how far the fluxes of orders above one keep from them, at each scale.
template <class Real>
struct Invalid {
    const Real *pixels = nullptr, *cells = nullptr;
    std::vector<double> reach;
};

// Derivatives of the numbers of one term at one scale, one for each parameter.
struct Slopes {
    std::vector<double> coupling, flux, contrast;
};

}  // namespace integrodiff
