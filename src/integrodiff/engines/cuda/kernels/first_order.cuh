// Order one on Haar cells: the structure tensor, and the flows of all scales.
//
// COUNT scales; TENSOR: whether J or its trace counts; GIVEN: whether it comes from extra[1] to
// extra[3] in place of being computed here; JOINT: whether there are several channels; ADDS: whether
// some flow is added to that of another term.
// input: the smoothed images of all scales; flags: whether a scale has a flow, and whether that is
// added to what is there. extra[0]: inverse relative noise variances at the cells, or null.
#include "gates.cuh"

constexpr int CELL_ROWS = BLOCK_ROWS + 1, CELL_COLUMNS = BLOCK_COLUMNS + 1;
constexpr int CELLS = CELL_ROWS * CELL_COLUMNS;

// Where the four pixels of a cell are, whose lower right one is (y, x). A ghost pixel is its
// neighbour.
struct Corners {
  unsigned upper_left, upper_right, lower_left, lower_right;
};

INLINE Corners corners_of(int y, int x, int height, int width) {
  const int above = (y > 0 ? y - 1 : 0) * width, below = (y < height ? y : height - 1) * width;
  const int left = x > 0 ? x - 1 : 0, right = x < width ? x : width - 1;
  return {static_cast<unsigned>(above + left), static_cast<unsigned>(above + right),
          static_cast<unsigned>(below + left), static_cast<unsigned>(below + right)};
}

// Twice the coefficients of a cell. The weights of coupling and flow are a quarter and an eighth of
// what they are: for two coefficients, and for these and the gate.
struct Haar {
  real x, y, twist;
};

INLINE Haar haar(const real* image, const Corners& at) {
  const real a = fetch(image + at.upper_left), b = fetch(image + at.upper_right);
  const real c = fetch(image + at.lower_left), d = fetch(image + at.lower_right);
  const real falling = d - a, rising = b - c;
  return {falling + rising, falling - rising, (a + d) - (b + c)};
}

struct Tensor {
  real xx, xy, yy;
};

// J at a cell of some images; the coefficients of the last channel are kept for the flows.
INLINE Tensor structure_of_cell(const Arguments& args, long long first, const Corners& at, int y, int x, Haar (&kept)[COUNT]) {
  const long long size = static_cast<long long>(args.height) * args.width;
  const int channels = JOINT ? args.channels : 1;
  Tensor sum{0, 0, 0};
#pragma unroll 1
  for (int c = 0; c < channels; ++c) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) kept[i] = haar(args.input[i] + first + c * size, at);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const real weight = args.numbers[COUPLING + i], x_part = weight * kept[i].x;
      sum.xx += x_part * kept[i].x;
      sum.xy += x_part * kept[i].y;
      sum.yy += weight * kept[i].y * kept[i].y;
    }
  }
  real factor = JOINT ? real(1) / channels : real(1);
  if (args.extra[0]) factor *= fetch(args.extra[0] + static_cast<long long>(y) * (args.width + 1) + x);
  return {factor * sum.xx, factor * sum.xy, factor * sum.yy};
}

// Writes J, or its trace, for the integration scale.
KERNEL(structure) {
  const int top = BLOCK_Y * CELL_ROWS, left = BLOCK_X * CELL_COLUMNS;
  const long long first = static_cast<long long>(BLOCK_Z) * args.channels * args.height * args.width;
  FOR_EACH(task, CELLS) {
    const int y = top + task / CELL_COLUMNS, x = left + task % CELL_COLUMNS;
    if (y <= args.height && x <= args.width) {
      Haar kept[COUNT];
      const Tensor found = structure_of_cell(args, first, corners_of(y, x, args.height, args.width), y, x, kept);
      const long long place = (static_cast<long long>(BLOCK_Z) * (args.height + 1) + y) * (args.width + 1) + x;
      if (TENSOR) {
        args.output[0][place] = found.xx;
        args.output[1][place] = found.xy;
        args.output[2][place] = found.yy;
      } else {
        args.output[0][place] = found.xx + found.yy;
      }
    }
  }
}

// A block has the flows of BLOCK_ROWS times BLOCK_COLUMNS pixels. What each cell gives to its four
// pixels goes through shared memory: of all scales in one phase, channel by channel.
KERNEL(flows) {
  SHARED;
  const int top = BLOCK_Y * BLOCK_ROWS, left = BLOCK_X * BLOCK_COLUMNS;
  const int height = args.height, width = args.width;
  const long long size = static_cast<long long>(height) * width, first = BLOCK_Z * args.channels * size;
  const int channels = JOINT ? args.channels : 1;
  for (int c = 0; c < channels; ++c) {
    FOR_EACH(task, CELLS) {
      const int y = top + task / CELL_COLUMNS, x = left + task % CELL_COLUMNS;
      if (y <= height && x <= width) {
        const Corners at = corners_of(y, x, height, width);
        Haar part[COUNT];
        Tensor found;
        if (GIVEN) {
          const long long place = (static_cast<long long>(BLOCK_Z) * (height + 1) + y) * (width + 1) + x;
          found = {fetch(args.extra[1] + place), 0, 0};
          if (TENSOR) found = {found.xx, fetch(args.extra[2] + place), fetch(args.extra[3] + place)};
        } else {
          found = structure_of_cell(args, first, at, y, x, part);
          if (!TENSOR) found.xx += found.yy;
        }
        if (GIVEN || JOINT)
#pragma unroll
          for (int i = 0; i < COUNT; ++i) part[i] = haar(args.input[i] + first + c * size, at);
        // Odd across both borders, and so zero on them.
        if (y == 0 || x == 0 || y == height || x == width) found.xy = 0;
        const Eigen eigen = TENSOR ? eigen_of(found.xx, found.xy, found.yy, args.numbers[MIX]) : eigen_of_energy(found.xx);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
          if (!(args.flags[i] & IN_FLUX)) continue;
          const Gate gate = gate_of(eigen, args.numbers[FLUX + i], args.numbers[RATE + i]);
          const real along = gate.xx * part[i].x + gate.xy * part[i].y;
          const real across = gate.xy * part[i].x + gate.yy * part[i].y;
          const real turned = (gate.xx + gate.yy - 2 * fabs(gate.xy)) * (args.numbers[TWIST] * part[i].twist);
          const real sum = along + across, difference = along - across;
          real* given = shared + i * 4 * CELLS + task;
          given[0] = turned + sum;                    // to the lower right pixel
          given[CELLS] = -difference - turned;        // to the lower left
          given[2 * CELLS] = difference - turned;     // to the upper right
          given[3 * CELLS] = turned - sum;            // to the upper left
        }
      }
    }
    SYNC;
    FOR_EACH_ROW(row, BLOCK_ROWS) {
      const int y = top + row;
      FOR_EACH_COLUMN(column, BLOCK_COLUMNS) {
        const int x = left + column;
        if (y < height && x < width) {
          const real* given = shared + row * CELL_COLUMNS + column;
          const unsigned place = y * width + x;
#pragma unroll
          for (int i = 0; i < COUNT; ++i) {
            if (!(args.flags[i] & IN_FLUX)) continue;
            const real* from = given + i * 4 * CELLS;
            const real flow = from[0] + from[CELLS + 1] + from[2 * CELLS + CELL_COLUMNS] + from[3 * CELLS + CELL_COLUMNS + 1];
            real* target = args.output[i] + first + c * size + place;
            *target = ADDS && args.flags[i] & ADDED ? *target + flow : flow;
          }
        }
      }
    }
    SYNC;
  }
}
