// Derivatives of order two to four in one dimension, as in integrodiff/stages/derivatives.py.
#pragma once

namespace integrodiff {

struct Stencil {
    int size;
    double taps[5];
};

// Derivatives 0 to 4 at the pixels, and 0 to 3 at the cells between them.
constexpr Stencil on_pixels[5] = {
    {1, {1}},
    {3, {-0.5, 0, 0.5}},
    {3, {1, -2, 1}},
    {5, {-0.5, 1, 0, -1, 0.5}},
    {5, {1, -4, 6, -4, 1}},
};
constexpr Stencil on_cells[4] = {
    {2, {0.5, 0.5}},
    {2, {-1, 1}},
    {4, {0.5, -0.5, -0.5, 0.5}},
    {4, {-1, 3, -3, 1}},
};

}  // namespace integrodiff
