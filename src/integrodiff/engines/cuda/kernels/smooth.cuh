// Blurs by symmetric kernels: of images and fields on tiles in shared memory, with radii that are
// known when the source is compiled; and along one axis with any radius.
#pragma once
#include "block.cuh"

#ifndef TILE
#define TILE 64
#endif
#ifndef RUN
#define RUN 8  // values that a task computes, next to each other along the blur
#endif
// Numbers are moved within shared memory in packs of 16 bytes, if so many have that size. Rows begin
// with a whole pack, and have an odd number of packs, so that lanes that read packs of different rows
// do not meet in a bank.
constexpr int PACK = 16 % sizeof(real) == 0 ? 16 / int(sizeof(real)) : 1;

INLINE constexpr int packed(int n) { return (n + PACK - 1) / PACK * PACK; }
INLINE constexpr int pitch_of(int n) { return packed(n) / PACK % 2 ? packed(n) : packed(n) + PACK; }

// Around its pixels a tile has margins of whole packs left and right.
constexpr int TILE_PITCH = pitch_of(TILE);
INLINE constexpr int columns_of_tile(int margin) { return TILE + 2 * packed(margin); }
INLINE constexpr int rows_of_tile(int margin) { return TILE + 2 * margin; }
INLINE constexpr int pitch_of_tile(int margin) { return pitch_of(columns_of_tile(margin)); }

// A blur along rows: lanes take different rows. Of the tile, with MARGIN values around it, RADIUS are
// used.
template <int RADIUS, int MARGIN>
INLINE void smooth_row(const real* tile, real* rows, const real* taps, int task) {
  constexpr int HEIGHT = rows_of_tile(RADIUS), SKIPPED = packed(RADIUS) - RADIUS;
  const int row = task % HEIGHT, first = task / HEIGHT * RUN;
  const real* from = tile + (row + MARGIN - RADIUS) * pitch_of_tile(MARGIN) + packed(MARGIN) - packed(RADIUS) + first;
  real sum[RUN] = {};
#pragma unroll
  for (int k = -SKIPPED; k < RUN + 2 * RADIUS; k += PACK) {
    real value[PACK];
    read_pack<PACK>(from + k + SKIPPED, value);
#pragma unroll
    for (int n = 0; n < PACK; ++n)
#pragma unroll
      for (int o = 0; o < RUN; ++o) {
        const int offset = k + n - o - RADIUS, distance = offset < 0 ? -offset : offset;
        if (distance <= RADIUS) sum[o] += tap_of(taps[distance]) * value[n];
      }
  }
#pragma unroll
  for (int o = 0; o < RUN; o += PACK) write_pack<PACK>(rows + row * TILE_PITCH + first + o, sum + o);
}

// The same along columns, of what smooth_row left; lanes take neighbouring columns.
template <int RADIUS>
INLINE void smooth_column(const real* rows, real (&sum)[RUN], const real* taps, int column, int first) {
  const real* from = rows + first * TILE_PITCH + column;
#pragma unroll
  for (int o = 0; o < RUN; ++o) sum[o] = 0;
#pragma unroll
  for (int k = 0; k < RUN + 2 * RADIUS; ++k) {
    const real value = from[k * TILE_PITCH];
#pragma unroll
    for (int o = 0; o < RUN; ++o) {
      const int distance = k - o - RADIUS < 0 ? o + RADIUS - k : k - o - RADIUS;
      if (distance <= RADIUS) sum[o] += tap_of(taps[distance]) * value;
    }
  }
}

INLINE constexpr int tasks_of_rows(int radius) { return rows_of_tile(radius) * (TILE / RUN); }
INLINE constexpr int tasks_of_columns() { return TILE * (TILE / RUN); }

// Write the values of a task of columns to a plane, as far as it goes.
INLINE void write_column(real* plane, const real (&sum)[RUN], int x, int first, int height, int width) {
  const int count = x < width ? height - first : 0;
  Offset place = static_cast<Offset>(first) * width + x;
#pragma unroll
  for (int o = 0; o < RUN; ++o) {
    if (o < count) at(plane, place) = sum[o];
    place += width;
  }
}

// Begin to copy a tile with a margin from a plane that continues by reflection; WAIT_FOR_COPIES and
// SYNC end it. What lies more than the margin beyond the border is not copied, and not needed.
template <int MARGIN>
INLINE void copy_tile(const real* plane, real* tile, int top, int left, int height, int width, int mirror = 0) {
  constexpr int PITCH = pitch_of_tile(MARGIN), PAD = packed(MARGIN), PACKS = columns_of_tile(MARGIN) / PACK;
  const int rows = min(TILE, height - top) + 2 * MARGIN;
  // The first and the last column that are copied, and those between them within the plane.
  const int from = left - MARGIN, to = min(left + TILE, width) + MARGIN;
  const bool is_small = min(height, width) - mirror < MARGIN, has_packs = width % PACK == 0 && is_aligned(plane);
  FOR_EACH_LANE(lane) {
    FOR_EACH_ROW(y, rows) {
      const int line = top + y - MARGIN;
      const int row = is_small ? reflected(line, height, mirror) : reflected_once(line, height, mirror);
      const Offset start = static_cast<Offset>(row) * width;
      real* target = tile + y * PITCH - (left - PAD);
      if (has_packs) {
#pragma unroll
        for (int n = 0; n < (PACKS + 31) / 32; ++n) {
          const int pack = lane + 32 * n, x = left - PAD + pack * PACK;
          if (pack < PACKS && x >= 0 && x < width) copy_numbers<PACK>(target + x, &at(plane, start + x));
        }
      }
      // Column by column: all, or what is beyond the border.
      for (int side = has_packs ? 0 : 1; side < 2; ++side) {
        const int end = side == 0 ? 0 : to;
        for (int x = (side == 0 || !has_packs ? from : width) + lane; x < end; x += 32) {
          const int column = is_small ? reflected(x, width, mirror) : reflected_once(x, width, mirror);
          copy_numbers<1>(target + x, &at(plane, start + column));
        }
      }
    }
  }
}
