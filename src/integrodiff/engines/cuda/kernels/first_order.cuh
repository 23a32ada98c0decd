// Order one on Haar cells: the structure tensor, and the flows of all scales.
//
// COUNT scales; TENSOR: whether J or its trace counts; GIVEN: whether it comes from extra[1] to
// extra[3] in place of being computed here; JOINT: whether there are several channels; ADDS: whether
// some flow is added to that of another term.
// input: the smoothed images of all scales; flags: whether a scale has a flow, and whether that is
// added to what is there. extra: see gates.cuh.
#include "gates.cuh"

// A warp goes down STRIP columns of pixels, whose cells are one column more, BLOCK_ROWS rows far. The
// pixels above a cell are those below the one before.
constexpr int STRIP = 31;

// Twice the coefficients of a cell. The weights of coupling and flow are a quarter and an eighth of
// what they are: for two coefficients, and for these and the gate.
struct Haar {
  real x, y, twist;
};

INLINE Haar haar(real upper_left, real upper_right, real lower_left, real lower_right) {
  const real falling = lower_right - upper_left, rising = upper_right - lower_left;
  return {falling + rising, falling - rising, (upper_left + lower_right) - (upper_right + lower_left)};
}

// A column of cells: where its pixels are, of which ghosts are their neighbours.
struct Column {
  int cell, left, right;
};

INLINE Column column_of(int x, int width) {
  const int cell = min(x, width);  // lanes beyond the image do what the last does
  return {cell, max(cell - 1, 0), min(cell, width - 1)};
}

// Pixels above the cell that is next in a column, for all scales.
struct Above {
  real left[COUNT], right[COUNT];
};

INLINE void read_row(const Arguments& args, long long first, int y, const Column& at, Above& row) {
  const unsigned line = static_cast<unsigned>(clamped(y, args.height)) * args.width;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const real* image = args.input[i] + first;
    row.left[i] = fetch(image + (line + at.left));
    row.right[i] = fetch(image + (line + at.right));
  }
}

// The coefficients of a cell, whose lower pixels are then those above the next.
INLINE void read_cell(const Arguments& args, long long first, int y, const Column& at, Above& above, Haar (&part)[COUNT]) {
  Above below;
  read_row(args, first, y, at, below);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) part[i] = haar(above.left[i], above.right[i], below.left[i], below.right[i]);
  above = below;
}

INLINE long long place_of_cell(const Arguments& args, int image, int y, int x) {
  return (static_cast<long long>(image) * (args.height + 1) + y) * (args.width + 1) + x;
}

struct Tensor {
  real xx, xy, yy;
};

INLINE void add_structure(const Arguments& args, const Haar (&part)[COUNT], Tensor& sum) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const real weight = args.numbers[COUPLING + i], x_part = weight * part[i].x;
    sum.xx += x_part * part[i].x;
    sum.xy += x_part * part[i].y;
    sum.yy += weight * part[i].y * part[i].y;
  }
}

// J at a cell, of its coefficients if there is one channel, and otherwise of all channels from
// `first` on.
INLINE Tensor structure_of_cell(const Arguments& args, long long first, int y, const Column& at, const Haar (&part)[COUNT]) {
  Tensor sum{0, 0, 0};
  if constexpr (JOINT) {
    const long long size = static_cast<long long>(args.height) * args.width;
#pragma unroll 1
    for (int c = 0; c < args.channels; ++c) {
      Above above;
      Haar each[COUNT];
      read_row(args, first + c * size, y - 1, at, above);
      read_cell(args, first + c * size, y, at, above, each);
      add_structure(args, each, sum);
    }
  } else {
    add_structure(args, part, sum);
  }
  const real factor = factor_of_structure(args, place_of_cell(args, 0, y, at.cell), 0, JOINT ? args.channels : 1);
  return {factor * sum.xx, factor * sum.xy, factor * sum.yy};
}

// Writes J, or its trace, for the integration scale. A warp has the cells of 32 columns.
KERNEL(structure) {
  const int height = args.height, width = args.width;
  const long long first = static_cast<long long>(BLOCK_Z) * args.channels * height * width;
  FOR_EACH_WARP(warp) {
    const int top = (BLOCK_Y * WARPS + warp) * BLOCK_ROWS, end = min(top + BLOCK_ROWS, height + 1);
    FOR_EACH_LANE(lane) {
      const int x = BLOCK_X * 32 + lane;
      const Column at = column_of(x, width);
      Above above;
      Haar part[COUNT];
      if (!JOINT) read_row(args, first, top - 1, at, above);
      for (int y = top; y < end; ++y) {
        if (!JOINT) read_cell(args, first, y, at, above, part);
        const Tensor found = structure_of_cell(args, first, y, at, part);
        const long long place = place_of_cell(args, BLOCK_Z, y, x);
        if (x > width) continue;
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
}

// What a cell of each scale gives to the pixels left and right of it, above and below.
struct Given {
  real left[COUNT], right[COUNT];
};

INLINE void flows_of_cell(const Arguments& args, int image, int y, const Column& at, const Haar (&part)[COUNT], Given& upper, Given& lower) {
  const int height = args.height, width = args.width;
  const long long place_in_image = place_of_cell(args, 0, y, at.cell);
  Tensor found;
  if constexpr (GIVEN) {
    const long long place = place_of_cell(args, image, y, at.cell);
    const real factor = factor_of_smoothed(args, place_in_image);
    found = {factor * fetch(args.extra[1] + place), 0, 0};
    if (TENSOR) found = {found.xx, factor * fetch(args.extra[2] + place), factor * fetch(args.extra[3] + place)};
  } else {
    const long long first = static_cast<long long>(image) * args.channels * height * width;
    found = structure_of_cell(args, first, y, at, part);
    if (!TENSOR) found.xx += found.yy;
  }
  // Odd across both borders, and so zero on them.
  if (y == 0 || at.cell == 0 || y == height || at.cell == width) found.xy = 0;
  const real distance = distance_at(args, place_in_image);
  const Eigen eigen = TENSOR ? eigen_of(found.xx, found.xy, found.yy, args.numbers[MIX]) : eigen_of_energy(found.xx);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (!(args.flags[i] & IN_FLUX)) continue;
    const Gate gate = gate_of(eigen, weight_of_flux(args, i, distance), args.numbers[RATE + i]);
    const real along = gate.xx * part[i].x + gate.xy * part[i].y;
    const real across = gate.xy * part[i].x + gate.yy * part[i].y;
    const real turned = (gate.xx + gate.yy - 2 * fabs(gate.xy)) * (args.numbers[TWIST] * part[i].twist);
    const real sum = along + across, difference = along - across;
    lower.right[i] = turned + sum;
    lower.left[i] = -difference - turned;
    upper.right[i] = difference - turned;
    upper.left[i] = turned - sum;
  }
}

// The state of a lane on its way down a column of cells.
struct Lane {
  Above above;
  Given before;  // by the cell before
  Given flow;    // of the pixels above the cell, from both cells of the column
};

KERNEL(flows) {
  const int height = args.height, width = args.width;
  const long long size = static_cast<long long>(height) * width;
  const int channels = JOINT ? args.channels : 1, left = BLOCK_X * STRIP;
  FOR_EACH_WARP(warp) {
    const int top = (BLOCK_Y * WARPS + warp) * BLOCK_ROWS, end = min(top + BLOCK_ROWS, height);
    if (top < height)
      for (int c = 0; c < channels; ++c) {
        const long long first = (static_cast<long long>(BLOCK_Z) * args.channels + c) * size;
        PER_LANE(Lane, state);
        FOR_EACH_LANE(lane) read_row(args, first, top - 1, column_of(left + lane, width), OWN(state).above);
        for (int y = top; y <= end; ++y) {
          FOR_EACH_LANE(lane) {
            const Column at = column_of(left + lane, width);
            Haar part[COUNT];
            Given upper, lower;
            read_cell(args, first, y, at, OWN(state).above, part);
            flows_of_cell(args, BLOCK_Z, y, at, part, upper, lower);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
              if (!(args.flags[i] & IN_FLUX)) continue;
              OWN(state).flow.left[i] = OWN(state).before.left[i] + upper.left[i];
              OWN(state).flow.right[i] = OWN(state).before.right[i] + upper.right[i];
            }
            OWN(state).before = lower;
          }
          if (y == top) continue;
          FOR_EACH_LANE(lane) {
            const int x = left + lane;
            const unsigned place = static_cast<unsigned>(y - 1) * width + x;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
              if (!(args.flags[i] & IN_FLUX)) continue;
              const real flow = OWN(state).flow.right[i] + FROM_NEXT(state, flow.left[i]);
              real* target = args.output[i] + first + place;
              if (lane < STRIP && x < width) *target = ADDS && args.flags[i] & ADDED ? *target + flow : flow;
            }
          }
        }
      }
  }
}
