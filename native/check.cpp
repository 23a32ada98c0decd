// Runs all kernels on small images of many shapes, without Python, for the sanitizers:
// see CONTRIBUTING.md. It checks that results are finite and do not depend on the threads; that
// they are right is checked by the tests in Python.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "dispatch.hpp"

using namespace integrodiff;

namespace {

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

struct Case {
    Shape shape;
    int scales, coarse;
    bool tensor;
};

template <class Real>
std::vector<Real> noise(const Shape &s) {
    std::mt19937 generator(0);
    std::normal_distribution<Real> normal(128, 25);
    std::vector<Real> image(s.channels * s.height * s.width);
    for (Real &pixel : image) pixel = normal(generator);
    return image;
}

Term term_of(int order, bool tensor, int scales) {
    const std::vector<double> weights(scales, 0.2);
    return {order, tensor, weights, weights, std::vector<double>(scales, 5.0)};
}

Taps kernels(int count) {
    Taps taps;
    for (int i = 0; i < count; ++i) taps.push_back(gaussian(0.4 + 0.4 * i, 0));
    return taps;
}

// Noise of different levels: twice as sensitive on one side as on the other.
template <class Real>
std::vector<Real> plane(std::ptrdiff_t height, std::ptrdiff_t width) {
    std::vector<Real> values(height * width);
    for (std::ptrdiff_t k = 0; k < height * width; ++k) values[k] = Real(1) + Real(k % width) / width;
    return values;
}

template <class Real>
std::vector<Real> run_fused(const Case &c, int threads) {
    const Taps fine = kernels(c.scales), coarse(c.coarse, gaussian(1.5, 0));
    const std::vector<double> sampling = gaussian(2.5, 0.5), interpolation = gaussian(1.2, 0.5);
    const Term term = term_of(1, c.tensor, c.scales + c.coarse);
    const std::vector<Real> original = noise<Real>(c.shape);
    std::vector<Real> image = original;
    Team team(threads);
    Workspace<Real> workspace;
    const std::vector<Real> cells = plane<Real>(c.shape.height + 1, c.shape.width + 1);
    const FusedStep<Real> step{c.shape, &fine, &sampling, &coarse, &interpolation, &term,
                               0.1,     0.01,  0.25,      &team,   &workspace,     {nullptr, cells.data()}};
    step.run(image.data(), nullptr, original.data());
    step.run(nullptr, image.data(), original.data());
    return image;
}

template <class Real>
std::vector<Real> run_exact(const Case &c, int threads) {
    const Taps taps = kernels(c.scales);
    const std::vector<Real> original = noise<Real>(c.shape);
    std::vector<Real> image = original;
    Team team(threads);
    Workspace<Real> workspace;
    std::vector<Term> terms{term_of(1, c.tensor, c.scales)};
    const std::vector<Real> at_pixels = plane<Real>(c.shape.height, c.shape.width);
    const std::vector<Real> at_cells = plane<Real>(c.shape.height + 1, c.shape.width + 1);
    for (const bool cells : {false, true}) {
        if (cells)
            for (int order = 2; order <= 4; ++order) terms.push_back(term_of(order, false, c.scales));
        const Step<Real> step{c.shape, &taps, &terms, 0.01, 0.01, 0.25, cells, &team, &workspace,
                              {at_pixels.data(), at_cells.data()}};
        step.run(image.data(), original.data());
    }
    return image;
}

template <class Real>
std::vector<Real> run_tangents(const Case &c, int) {
    const Taps taps = kernels(c.scales);
    const std::vector<Term> terms{term_of(1, c.tensor, c.scales), term_of(2, false, c.scales)};
    const std::vector<double> slopes{0.1, 0.2};
    const std::vector<std::vector<Slopes>> all(
        terms.size(), std::vector<Slopes>(c.scales, {slopes, slopes, slopes}));
    const std::vector<Real> original = noise<Real>(c.shape);
    std::vector<Real> images(3 * original.size());
    std::copy(original.begin(), original.end(), images.begin());
    const std::vector<std::vector<double>> variance_slopes(c.scales, slopes);
    Workspace<Real> workspace;
    const TangentStep<Real> step{c.shape, 2,      &taps,  &terms,           &all,      0.01, 0.01,
                                 0.25,    slopes, slopes, &variance_slopes, &workspace};
    step.run(images.data(), original.data());
    return images;
}

// Run one kernel with one and with several threads, and from two callers at once.
template <class Run>
bool check(const char *name, const Case &c, const Run &run) {
    const auto alone = run(c, 1);
    auto other = alone;
    std::thread caller([&] { other = run(c, 3); });
    const auto shared = run(c, 2);
    caller.join();
    bool good = true;
    for (std::size_t k = 0; k < alone.size(); ++k)
        good = good && std::isfinite(alone[k]) && alone[k] == shared[k] && alone[k] == other[k];
    if (!good)
        std::printf("%s fails on %td x %td x %td\n", name, c.shape.channels, c.shape.height,
                    c.shape.width);
    return good;
}

}  // namespace

int main() {
    const Shape shapes[] = {{1, 1, 1},   {1, 1, 7},    {1, 9, 1},   {2, 2, 3},
                            {3, 17, 70}, {1, 131, 34}, {1, 67, 65}, {1, 35, 2051}};
    bool good = true;
    for (const Shape &shape : shapes)
        for (const bool tensor : {true, false})
            for (int coarse = 0; coarse < 3; ++coarse) {
                const Case c{shape, 4, coarse, tensor};
                good &= check("the fused step in float", c, run_fused<float>);
                good &= check("the fused step in double", c, run_fused<double>);
                if (coarse) continue;
                good &= check("the exact step in float", c, run_exact<float>);
                good &= check("the exact step in double", c, run_exact<double>);
                good &= check("the tangents in float", c, run_tangents<float>);
                good &= check("the tangents in double", c, run_tangents<double>);
            }
    std::printf("%s, %s\n", instruction_set(), good ? "all good" : "FAILED");
    return good ? 0 : 1;
}
