// Derivatives of order two to four (ORDER), on pixels or cells: their structure tensor or energy,
// and the flows of all scales. Arguments as in first_order.cuh; the field always comes from
// extra[1] to extra[3], and places are pixels for even orders. TENSOR is for order two.
#include "gates.cuh"

#ifndef ORDER
#define ORDER 2
#endif

constexpr int ON_CELLS = ORDER % 2;
constexpr int PARTS = ORDER + 1;
constexpr int LENGTH = ON_CELLS ? 4 : 5;       // of the longest stencil
constexpr int REACH = 2;                       // values before the place of a stencil
constexpr int RADIUS = (ORDER - ON_CELLS) / 2;  // how far it reaches from a pixel, or those of a cell
// Values before and after those of a tile's pixels that its flow depends on.
constexpr int BEFORE = ON_CELLS ? 1 : ORDER / 2;
constexpr int AFTER = ON_CELLS ? 2 : ORDER / 2;
constexpr int ROWS = BLOCK_ROWS, COLUMNS = BLOCK_COLUMNS;
constexpr int POINT_ROWS = ROWS + BEFORE + AFTER, POINT_COLUMNS = COLUMNS + BEFORE + AFTER;
constexpr int POINTS = POINT_ROWS * POINT_COLUMNS;

// Stencils of the derivatives 0, 1, ... along one axis.
INLINE constexpr scalar stencil(int derivative, int k) {
  constexpr double on_pixels[5][5] = {
      {0, 0, 1, 0, 0}, {0, -0.5, 0, 0.5, 0}, {0, 1, -2, 1, 0}, {-0.5, 1, 0, -1, 0.5}, {1, -4, 6, -4, 1}};
  constexpr double on_cells[5][5] = {
      {0, 0.5, 0.5, 0, 0}, {0, -1, 1, 0, 0}, {0.5, -0.5, -0.5, 0.5, 0}, {-1, 3, -3, 1, 0}, {0, 0, 0, 0, 0}};
  return static_cast<scalar>(ON_CELLS ? on_cells[derivative][k] : on_pixels[derivative][k]);
}

// Square roots of binomial coefficients.
INLINE constexpr scalar root_of_binomial(int part) {
  constexpr double roots[5][5] = {{1, 0, 0, 0, 0},
                                  {1, 1, 0, 0, 0},
                                  {1, 1.4142135623730951, 1, 0, 0},
                                  {1, 1.7320508075688772, 1.7320508075688772, 1, 0},
                                  {1, 2, 2.4494897427831779, 2, 1}};
  return static_cast<scalar>(roots[ORDER][part]);
}

struct Parts {
  real part[PARTS];
};

// Where the values of the stencils around a place are, whose indices lie within the image or cells.
struct Neighbours {
  int row[LENGTH], column[LENGTH];
};

INLINE Neighbours neighbours_of(int y, int x, int height, int width) {
  Neighbours found;
#pragma unroll
  for (int k = 0; k < LENGTH; ++k) {
    found.row[k] = reflected(y + k - REACH, height) * width;
    found.column[k] = reflected(x + k - REACH, width);
  }
  return found;
}

INLINE Parts derivatives(const real* image, const Neighbours& at) {
  Parts found;
#pragma unroll
  for (int j = 0; j < PARTS; ++j) found.part[j] = 0;
#pragma unroll
  for (int k = 0; k < LENGTH; ++k) {
    real along[PARTS] = {};
#pragma unroll
    for (int l = 0; l < LENGTH; ++l) {
      const real value = fetch(image + static_cast<unsigned>(at.row[k] + at.column[l]));
#pragma unroll
      for (int a = 0; a < PARTS; ++a)
        if (stencil(a, l) != 0) along[a] += stencil(a, l) * value;
    }
#pragma unroll
    for (int j = 0; j < PARTS; ++j)
      if (stencil(j, k) != 0) found.part[j] += stencil(j, k) * along[ORDER - j];
  }
#pragma unroll
  for (int j = 0; j < PARTS; ++j) found.part[j] *= root_of_binomial(j);
  return found;
}

KERNEL(structure) {
  const int top = BLOCK_Y * ROWS, left = BLOCK_X * COLUMNS;
  const int rows = args.height + ON_CELLS, columns = args.width + ON_CELLS;
  const long long size = static_cast<long long>(args.height) * args.width, first = BLOCK_Z * args.channels * size;
  FOR_EACH(task, ROWS * COLUMNS) {
    const int y = top + task / COLUMNS, x = left + task % COLUMNS;
    if (y < rows && x < columns) {
      const Neighbours at = neighbours_of(y, x, args.height, args.width);
      real xx = 0, xy = 0, yy = 0;
#pragma unroll 1
      for (int c = 0; c < args.channels; ++c)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          const real weight = args.numbers[COUPLING + i];
          if (weight == 0) continue;
          const Parts found = derivatives(args.input[i] + first + c * size, at);
          if constexpr (TENSOR) {
            const real mixed = found.part[1] * real(0.70710678118654752), square = weight * mixed * mixed;
            xx += weight * found.part[0] * found.part[0] + square;
            xy += weight * mixed * (found.part[0] + found.part[2]);
            yy += square + weight * found.part[2] * found.part[2];
          } else {
            real energy = 0;
#pragma unroll
            for (int j = 0; j < PARTS; ++j) energy += found.part[j] * found.part[j];
            xx += weight * energy;
          }
        }
      const real factor = factor_of_structure(args, static_cast<long long>(y) * columns + x, RADIUS, args.channels);
      const long long place = (static_cast<long long>(BLOCK_Z) * rows + y) * columns + x;
      args.output[0][place] = factor * xx;
      if (TENSOR) {
        args.output[1][place] = factor * xy;
        args.output[2][place] = factor * yy;
      }
    }
  }
}

struct Matrix {
  real xx, xy, yy;
};

// The root of 2^(rate J), whose rate is half of that.
INLINE Matrix root_of_gate(const Eigen& eigen, real rate) {
  const Gate gate = gate_of(eigen, real(0.5), rate / 2);
  const real turned = gate.difference * eigen.cosine;
  return {gate.sum - turned, -gate.difference * eigen.sine, gate.sum + turned};
}

KERNEL(flows) {
  SHARED;
  const int top = BLOCK_Y * ROWS - BEFORE, left = BLOCK_X * COLUMNS - BEFORE;
  const int rows = args.height + ON_CELLS, columns = args.width + ON_CELLS;
  const long long size = static_cast<long long>(args.height) * args.width, first = BLOCK_Z * args.channels * size;
  for (int c = 0; c < args.channels; ++c) {
    FOR_EACH(task, POINTS) {
      // Beyond the border: at the mirrored place, where all but odd parts are the same.
      const int row = top + task / POINT_COLUMNS, column = left + task % POINT_COLUMNS;
      const int y = reflected(row, rows, ON_CELLS), x = reflected(column, columns, ON_CELLS);
      const bool behind_row = is_mirrored(row, rows, ON_CELLS), behind_column = is_mirrored(column, columns, ON_CELLS);
      const Neighbours at = neighbours_of(y, x, args.height, args.width);
      const long long place_in_image = static_cast<long long>(y) * columns + x;
      const long long place = static_cast<long long>(BLOCK_Z) * rows * columns + place_in_image;
      const real factor = factor_of_smoothed(args, place_in_image), distance = distance_at(args, place_in_image);
      Eigen eigen;
      if constexpr (TENSOR)
        eigen = eigen_of(factor * fetch(args.extra[1] + place), factor * fetch(args.extra[2] + place), factor * fetch(args.extra[3] + place), args.numbers[MIX]);
      else
        eigen = eigen_of_energy(factor * fetch(args.extra[1] + place));
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const real weight = weight_of_flux(args, i, distance), rate = args.numbers[RATE + i];
        Parts found = derivatives(args.input[i] + first + c * size, at);
        if constexpr (TENSOR) {
          // A H A, where A is the root of the gate; the rate is half of that of A^2.
          const Matrix a = root_of_gate(eigen, rate);
          const real xx = found.part[0], xy = found.part[1] * real(0.70710678118654752), yy = found.part[ORDER];
          const real across = a.xx * xx + a.xy * xy, along = a.xx * xy + a.xy * yy;
          const real other = a.xy * xx + a.yy * xy, last = a.xy * xy + a.yy * yy;
          found.part[0] = weight * (across * a.xx + along * a.xy);
          found.part[1] = weight * real(1.4142135623730951) * (across * a.xy + along * a.yy);
          found.part[ORDER] = weight * (other * a.xy + last * a.yy);
        } else {
          const real gate = weight * power_of_two(rate * eigen.smaller);
#pragma unroll
          for (int j = 0; j < PARTS; ++j) found.part[j] *= gate;
        }
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
          // Derivatives of odd order along an axis are odd across its border.
          const bool flipped = (behind_row && j % 2) != (behind_column && (ORDER - j) % 2);
          shared[(i * PARTS + j) * POINTS + task] = flipped ? -found.part[j] : found.part[j];
        }
      }
    }
    SYNC;
    FOR_EACH(task, ROWS * COLUMNS) {
      const int row = task / COLUMNS, column = task % COLUMNS, y = top + BEFORE + row, x = left + BEFORE + column;
      if (y < args.height && x < args.width) {
        const long long place = first + c * size + static_cast<long long>(y) * args.width + x;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          real flow = 0;
#pragma unroll
          for (int j = 0; j < PARTS; ++j) {
            real part = 0;
#pragma unroll
            for (int k = 0; k < LENGTH; ++k)
#pragma unroll
              for (int l = 0; l < LENGTH; ++l) {
                // The adjoint turns stencils around.
                const scalar factor = stencil(j, k) * stencil(ORDER - j, l);
                const int down = BEFORE + REACH - k, right = BEFORE + REACH - l;
                if (factor != 0) part += factor * shared[(i * PARTS + j) * POINTS + (row + down) * POINT_COLUMNS + column + right];
              }
            flow += root_of_binomial(j) * part;
          }
          real* target = args.output[i] + place;
          *target = ADDS && args.flags[i] ? *target + flow : flow;
        }
      }
    }
    SYNC;
  }
}
