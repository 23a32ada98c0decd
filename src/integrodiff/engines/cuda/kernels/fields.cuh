// The integration scale: smooths the entries of a structure tensor on tiles. RADII is one radius;
// numbers[0] and on are half of its kernel. Planes are those of all entries in turn; flags[entry]
// is the sign of an entry beyond the border, count[0] the number of planes of one entry, and
// count[2] says whether they are at cells.
#include "smooth.cuh"

constexpr int RADIUS = RADII;

// Turns the sign of values of a tile that lie behind an odd number of mirrors.
INLINE void flip_beyond(real* tile, int top, int left, int height, int width, int mirror) {
  constexpr int ROWS = rows_of_tile(RADIUS), COLUMNS = columns_of_tile(RADIUS);
  FOR_EACH(task, ROWS * COLUMNS) {
    const int row = task / COLUMNS, column = task % COLUMNS;
    const int y = top + row - RADIUS, x = left + column - packed(RADIUS);
    if (is_mirrored(y, height, mirror) != is_mirrored(x, width, mirror)) {
      real& value = tile[row * pitch_of_tile(RADIUS) + column];
      value = -value;
    }
  }
}

KERNEL(smooth_fields) {
  SHARED;
  real* tile = shared;
  real* rows = tile + rows_of_tile(RADIUS) * pitch_of_tile(RADIUS);
  const int left = BLOCK_X * TILE, top = BLOCK_Y * TILE, mirror = args.count[2];
  const int height = args.height, width = args.width;
  const int entry = BLOCK_Z / args.count[0];
  const long long plane = static_cast<long long>(BLOCK_Z % args.count[0]) * height * width;
  copy_tile<RADIUS>(args.input[entry] + plane, tile, top, left, height, width, mirror);
  WAIT_FOR_COPIES;
  SYNC;
  const bool is_within = top >= RADIUS && left >= RADIUS && top + TILE + RADIUS <= height && left + TILE + RADIUS <= width;
  if (args.flags[entry] < 0 && !is_within) {
    flip_beyond(tile, top, left, height, width, mirror);
    SYNC;
  }
  FOR_EACH(task, tasks_of_rows(RADIUS)) smooth_row<RADIUS, RADIUS>(tile, rows, args.numbers, task);
  SYNC;
  FOR_EACH(task, tasks_of_columns()) {
    const int column = task % TILE, first = task / TILE * RUN;
    real sum[RUN];
    smooth_column<RADIUS>(rows, sum, args.numbers, column, first);
    write_column(args.output[entry] + plane, sum, left + column, top + first, height, width);
  }
}
