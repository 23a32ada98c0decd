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
constexpr int TILE_PITCH = TILE + 1;

INLINE constexpr int odd(int n) { return n | 1; }

// A blur along rows: lanes take different rows, whose pitch is odd, so that no two of them meet in
// a bank. Of the tile, with MARGIN values around it, RADIUS are used.
template <int RADIUS, int MARGIN, int PITCH>
INLINE void smooth_row(const real* tile, real* rows, const real* taps, int task) {
  constexpr int HEIGHT = TILE + 2 * RADIUS;
  const int row = task % HEIGHT, first = task / HEIGHT * RUN;
  const real* from = tile + (row + MARGIN - RADIUS) * PITCH + MARGIN - RADIUS + first;
  real sum[RUN] = {};
#pragma unroll
  for (int k = 0; k < RUN + 2 * RADIUS; ++k) {
    const real value = from[k];
#pragma unroll
    for (int o = 0; o < RUN; ++o) {
      const int distance = k - o - RADIUS < 0 ? o + RADIUS - k : k - o - RADIUS;
      if (distance <= RADIUS) sum[o] += tap_of(taps[distance]) * value;
    }
  }
#pragma unroll
  for (int o = 0; o < RUN; ++o) rows[row * TILE_PITCH + first + o] = sum[o];
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

INLINE constexpr int tasks_of_rows(int radius) { return (TILE + 2 * radius) * (TILE / RUN); }
INLINE constexpr int tasks_of_columns() { return TILE * (TILE / RUN); }

// Fill a tile with a margin from a plane that continues by reflection. An odd field changes its sign
// behind a mirror.
template <int MARGIN, int PITCH>
INLINE void load_tile(const real* plane, real* tile, int top, int left, int height, int width, int mirror = 0, bool is_odd = false) {
  constexpr int SIZE = TILE + 2 * MARGIN, LOADS = (SIZE + 31) / 32;
  // The last warp reads up to 31 values more than the tile has.
  const bool is_small = height - mirror < SIZE + 32 || width - mirror < SIZE + 32;
  FOR_EACH_LANE(lane) {
    int column[LOADS];
    bool is_flipped[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int place = left + lane + 32 * n - MARGIN;
      column[n] = is_small ? reflected(place, width, mirror) : reflected_once(place, width, mirror);
      is_flipped[n] = is_odd && is_mirrored(place, width, mirror);
    }
#pragma unroll 2
    FOR_EACH_ROW(y, SIZE) {
      const int line = top + y - MARGIN;
      const int row = is_small ? reflected(line, height, mirror) : reflected_once(line, height, mirror);
      const real* from = plane + static_cast<long long>(row) * width;
      const bool is_turned = is_odd && is_mirrored(line, height, mirror);
      // All loads of a row, and then all stores.
      real value[LOADS];
#pragma unroll
      for (int n = 0; n < LOADS; ++n) value[n] = fetch(from + column[n]);
#pragma unroll
      for (int n = 0; n < LOADS; ++n)
        if (lane + 32 * n < SIZE) tile[y * PITCH + lane + 32 * n] = is_turned != is_flipped[n] ? -value[n] : value[n];
    }
  }
}
