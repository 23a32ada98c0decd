// The integration scale: smooths the entries of a structure tensor on tiles. RADII is one radius;
// numbers[0] and on are half of its kernel. Planes are those of all entries in turn; flags[entry]
// is the sign of an entry beyond the border, count[0] the number of planes of one entry, and
// count[2] says whether they are at cells.
#include "smooth.cuh"

constexpr int RADIUS = RADII;
constexpr int PITCH = odd(TILE + 2 * RADIUS);

KERNEL(smooth_fields) {
  SHARED;
  constexpr int SIZE = TILE + 2 * RADIUS;
  real* tile = shared;
  real* rows = tile + SIZE * PITCH;
  const int left = BLOCK_X * TILE, top = BLOCK_Y * TILE, mirror = args.count[2];
  const int height = args.height, width = args.width;
  const int entry = BLOCK_Z / args.count[0];
  const long long plane = static_cast<long long>(BLOCK_Z % args.count[0]) * height * width;
  const real* field = args.input[entry] + plane;
  load_tile<RADIUS, PITCH>(field, tile, top, left, height, width, mirror, args.flags[entry] < 0);
  SYNC;
  FOR_EACH(task, tasks_of_rows(RADIUS)) smooth_row<RADIUS, RADIUS, PITCH>(tile, rows, args.numbers, task);
  SYNC;
  FOR_EACH(task, tasks_of_columns()) {
    const int column = task % TILE, first = task / TILE * RUN, x = left + column;
    real sum[RUN];
    smooth_column<RADIUS>(rows, sum, args.numbers, column, first);
    real* out = args.output[entry] + plane;
#pragma unroll
    for (int o = 0; o < RUN; ++o) {
      const int y = top + first + o;
      if (x < width && y < height) out[static_cast<long long>(y) * width + x] = sum[o];
    }
  }
}
