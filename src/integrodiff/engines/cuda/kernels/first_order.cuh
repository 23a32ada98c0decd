// Order one on Haar cells: the structure tensor, and the flows of all scales.
//
// COUNT scales, the first FLUXES of which have a flow; TENSOR: whether J or its trace counts; GIVEN:
// whether it comes from extra[1] to extra[3] in place of being computed here; JOINT: whether there are
// several channels; ADDS: whether some flow is added to that of another term.
// input: the smoothed images of all scales; flags: whether a flow is added to what is there. extra: see
// gates.cuh.
#include "gates.cuh"

// A warp goes down STRIP columns of pixels, whose cells are one column more, BLOCK_ROWS rows far. The
// pixels above a cell are those below the one before.
constexpr int STRIP = 31;

// Twice the coefficients of a cell. The weights of coupling and flow are a quarter and an eighth of
// what they are: for two coefficients, and for these and the gate.
struct Haar {
  real x, y, twist;
};

// A column of cells: where its pixels are, of which ghosts are their neighbours.
struct Column {
  int cell, left, right;
};

INLINE Column column_of(int x, int width) {
  const int cell = min(x, width);  // lanes beyond the image do what the last does
  return {cell, max(cell - 1, 0), min(cell, width - 1)};
}

// Of two pixels next to each other, the right one minus the left one, and both, for all scales.
struct Pairs {
  real difference[COUNT], sum[COUNT];
};

INLINE void read_row(const Arguments& args, long long first, int y, const Column& column, Pairs& row) {
  const Offset line = static_cast<Offset>(clamped(y, args.height)) * args.width;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const real* image = args.input[i] + first;
    const real left = fetch(&at(image, line + column.left)), right = fetch(&at(image, line + column.right));
    row.difference[i] = right - left;
    row.sum[i] = right + left;
  }
}

// The coefficients of a cell, whose lower pixels are then those above the next.
INLINE void read_cell(const Arguments& args, long long first, int y, const Column& column, Pairs& above, Haar (&part)[COUNT]) {
  Pairs below;
  read_row(args, first, y, column, below);
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    part[i] = {above.difference[i] + below.difference[i], below.sum[i] - above.sum[i], below.difference[i] - above.difference[i]};
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
INLINE Tensor structure_of_cell(const Arguments& args, long long first, int y, const Column& column, const Haar (&part)[COUNT]) {
  Tensor sum{0, 0, 0};
  if constexpr (JOINT) {
    const long long size = static_cast<long long>(args.height) * args.width;
#pragma unroll 1
    for (int c = 0; c < args.channels; ++c) {
      Pairs above;
      Haar each[COUNT];
      read_row(args, first + c * size, y - 1, column, above);
      read_cell(args, first + c * size, y, column, above, each);
      add_structure(args, each, sum);
    }
  } else {
    add_structure(args, part, sum);
  }
  const real factor = factor_of_structure(args, place_of_cell(args, 0, y, column.cell), 0, JOINT ? args.channels : 1);
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
      const Column column = column_of(x, width);
      Pairs above;
      Haar part[COUNT];
      if (!JOINT) read_row(args, first, top - 1, column, above);
#pragma unroll 2
      for (int y = top; y < end; ++y) {
        if (!JOINT) read_cell(args, first, y, column, above, part);
        const Tensor found = structure_of_cell(args, first, y, column, part);
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

// What cells give to two pixels next to each other: the sum and the difference to the right one, the sum
// without the difference to the left one.
struct Given {
  real difference[FLUXES], sum[FLUXES];
};

INLINE void fluxes_of_cell(const Arguments& args, int image, int y, const Column& column, const Haar (&part)[COUNT], Given& upper, Given& lower) {
  const int height = args.height, width = args.width;
  const long long place_in_image = place_of_cell(args, 0, y, column.cell);
  Tensor found;
  if constexpr (GIVEN) {
    const long long place = place_of_cell(args, image, y, column.cell);
    const real factor = factor_of_smoothed(args, place_in_image);
    found = {factor * fetch(args.extra[1] + place), 0, 0};
    if (TENSOR) found = {found.xx, factor * fetch(args.extra[2] + place), factor * fetch(args.extra[3] + place)};
  } else {
    const long long first = static_cast<long long>(image) * args.channels * height * width;
    found = structure_of_cell(args, first, y, column, part);
    if (!TENSOR) found.xx += found.yy;
  }
  // Odd across both borders, and so zero on them.
  if (y == 0 || column.cell == 0 || y == height || column.cell == width) found.xy = 0;
  const real distance = distance_at(args, place_in_image);
  const Eigen eigen = TENSOR ? eigen_of(found.xx, found.xy, found.yy, args.numbers[MIX]) : eigen_of_energy(found.xx);
  const real slant = fabs(eigen.sine);
#pragma unroll
  for (int i = 0; i < FLUXES; ++i) {
    const Gate gate = gate_of(eigen, weight_of_flux(args, i, distance), args.numbers[RATE + i]);
    const real x = part[i].x, y_part = part[i].y;
    const real along = gate.sum * x - gate.difference * (eigen.cosine * x + eigen.sine * y_part);
    const real across = gate.sum * y_part - gate.difference * (eigen.sine * x - eigen.cosine * y_part);
    const real turned = (gate.sum - gate.difference * slant) * (2 * args.numbers[TWIST] * part[i].twist);
    upper.difference[i] = along - turned;
    upper.sum[i] = -across;
    lower.difference[i] = along + turned;
    lower.sum[i] = across;
  }
}

// What pixels get from the cells of one column.
struct Flow {
  real left[FLUXES], right[FLUXES];
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
        PER_LANE(Pairs, above);   // pixels above the next cell
        PER_LANE(Given, before);  // by the cell before
        FOR_EACH_LANE(lane) {
          const Column column = column_of(left + lane, width);
          Haar part[COUNT];
          Given upper;
          read_row(args, first, top - 1, column, OWN(above));
          read_cell(args, first, top, column, OWN(above), part);
          fluxes_of_cell(args, BLOCK_Z, top, column, part, upper, OWN(before));
        }
#pragma unroll 2
        for (int y = top + 1; y <= end; ++y) {
          PER_LANE(Flow, flow);
          FOR_EACH_LANE(lane) {
            const Column column = column_of(left + lane, width);
            Haar part[COUNT];
            Given upper, lower;
            read_cell(args, first, y, column, OWN(above), part);
            fluxes_of_cell(args, BLOCK_Z, y, column, part, upper, lower);
#pragma unroll
            for (int i = 0; i < FLUXES; ++i) {
              const real difference = OWN(before).difference[i] + upper.difference[i], sum = OWN(before).sum[i] + upper.sum[i];
              OWN(flow).left[i] = sum - difference;
              OWN(flow).right[i] = sum + difference;
            }
            OWN(before) = lower;
          }
          FOR_EACH_LANE(lane) {
            const int x = left + lane;
            const Offset place = static_cast<Offset>(y - 1) * width + x;
#pragma unroll
            for (int i = 0; i < FLUXES; ++i) {
              const real found = OWN(flow).right[i] + FROM_NEXT(flow, left[i]);
              if (lane < STRIP && x < width) {
                real& target = at(args.output[i] + first, place);
                target = ADDS && args.flags[i] ? target + found : found;
              }
            }
          }
        }
      }
  }
}
