// The scale space of an image and its adjoint, all scales at once: v_i = K_i u, and
// u <- u - tau sum_i K_i q_i + tau pull (f - u).
//
// RADII lists the radii of the scales; numbers[0] and [1] are tau and the fidelity weight, then come
// the halves of the kernels, one after the other. A radius of zero is no blur.
#include "smooth.cuh"

constexpr int RADIUS_OF[] = {RADII};
constexpr int SCALES = sizeof(RADIUS_OF) / sizeof(int);
constexpr int FIRST_TAP = 2;

INLINE constexpr int largest_radius() {
  int found = 0;
  for (int i = 0; i < SCALES; ++i) found = RADIUS_OF[i] > found ? RADIUS_OF[i] : found;
  return found;
}
INLINE constexpr int first_tap(int scale) {
  int found = FIRST_TAP;
  for (int i = 0; i < scale; ++i) found += RADIUS_OF[i] + 1;
  return found;
}

constexpr int MARGIN = largest_radius();

template <int SCALE>
INLINE void smooth_from(const Arguments& args, const real* tile, real* rows, int top, int left, long long plane) {
  if constexpr (SCALE < SCALES) {
    constexpr int RADIUS = RADIUS_OF[SCALE];
    const real* taps = args.numbers + first_tap(SCALE);
    FOR_EACH(task, tasks_of_rows(RADIUS)) smooth_row<RADIUS, MARGIN>(tile, rows, taps, task);
    SYNC;
    FOR_EACH(task, tasks_of_columns()) {
      const int column = task % TILE, first = task / TILE * RUN;
      real sum[RUN];
      smooth_column<RADIUS>(rows, sum, taps, column, first);
      write_column(args.output[SCALE] + plane, sum, left + column, top + first, args.height, args.width);
    }
    SYNC;
    smooth_from<SCALE + 1>(args, tile, rows, top, left, plane);
  }
}

KERNEL(scale_space) {
  SHARED;
  real* tile = shared;
  real* rows = tile + rows_of_tile(MARGIN) * pitch_of_tile(MARGIN);
  const int left = BLOCK_X * TILE, top = BLOCK_Y * TILE;
  const long long plane = static_cast<long long>(BLOCK_Z) * args.height * args.width;
  copy_tile<MARGIN>(args.input[0] + plane, tile, top, left, args.height, args.width);
  WAIT_FOR_COPIES;
  SYNC;
  smooth_from<0>(args, tile, rows, top, left, plane);
}

// What a task of columns adds up over all scales.
struct Sum {
  real of[RUN];
};
using Total = Kept<Sum, tasks_of_columns()>;

// The tile of a scale, unless it is not smoothed.
template <int SCALE>
INLINE void copy_flow(const Arguments& args, real* tile, int top, int left, long long plane) {
  if constexpr (SCALE < SCALES)
    if constexpr (RADIUS_OF[SCALE] > 0)
      copy_tile<RADIUS_OF[SCALE]>(args.input[SCALE] + plane, tile, top, left, args.height, args.width);
}

template <int SCALE>
INLINE void gather_from(const Arguments& args, real* tile, real* rows, Total& total, int top, int left, long long plane) {
  if constexpr (SCALE < SCALES) {
    constexpr int RADIUS = RADIUS_OF[SCALE];
    const real* taps = args.numbers + first_tap(SCALE);
    if constexpr (RADIUS > 0) {
      WAIT_FOR_COPIES;
      SYNC;
      FOR_EACH(task, tasks_of_rows(RADIUS)) smooth_row<RADIUS, RADIUS>(tile, rows, taps, task);
      SYNC;
    }
    // Columns do not read the tile: the next scale fills it meanwhile.
    copy_flow<SCALE + 1>(args, tile, top, left, plane);
    FOR_EACH(task, tasks_of_columns()) {
      const int column = task % TILE, first = task / TILE * RUN;
      real sum[RUN];
      if constexpr (RADIUS > 0) {
        smooth_column<RADIUS>(rows, sum, taps, column, first);
      } else {
        const int x = clamped(left + column, args.width);
#pragma unroll
        for (int o = 0; o < RUN; ++o)
          sum[o] = fetch(args.input[SCALE] + plane + static_cast<long long>(clamped(top + first + o, args.height)) * args.width + x);
      }
      Sum& kept = total.of(task);
#pragma unroll
      for (int o = 0; o < RUN; ++o) kept.of[o] = SCALE == 0 ? sum[o] : kept.of[o] + sum[o];
    }
    gather_from<SCALE + 1>(args, tile, rows, total, top, left, plane);
  }
}

// input: the flows of the scales; output[0]: the image, changed in place; extra[0]: the input of the
// process, where there is a fidelity weight.
KERNEL(gather) {
  SHARED;
  real* tile = shared;
  real* rows = tile + rows_of_tile(MARGIN) * pitch_of_tile(MARGIN);
  const int left = BLOCK_X * TILE, top = BLOCK_Y * TILE;
  const long long plane = static_cast<long long>(BLOCK_Z) * args.height * args.width;
  Total total;
  copy_flow<0>(args, tile, top, left, plane);
  gather_from<0>(args, tile, rows, total, top, left, plane);
  const real tau = args.numbers[0], pull = args.numbers[1];
  FOR_EACH(task, tasks_of_columns()) {
    const int x = left + task % TILE, first = top + task / TILE * RUN;
    const Sum& sum = total.of(task);
#pragma unroll
    for (int o = 0; o < RUN; ++o) {
      const int y = first + o;
      if (x >= args.width || y >= args.height) continue;
      const long long place = plane + static_cast<long long>(y) * args.width + x;
      const real value = args.output[0][place];
      real change = -sum.of[o];
      if (pull != 0) change += pull * (args.extra[0][place] - value);
      args.output[0][place] = value + tau * change;
    }
  }
}
