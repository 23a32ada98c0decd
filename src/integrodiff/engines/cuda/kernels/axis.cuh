// A blur along one axis with any radius, for kernels too long for tiles, and for volumes.
//
// extra[0] has the whole kernel with RUN zeros on both sides; count: length of the axis, radius,
// mirror (see reflected), sign beyond the border. flags[0]: add to what is there.
#include "smooth.cuh"

#define AXIS_SPAN 64

// Values that are `inner` apart; lanes take neighbours across the axis.
KERNEL(smooth_axis) {
  const int length = args.count[0], radius = args.count[1], mirror = args.count[2];
  const real sign = args.count[3];
  const long long inner = args.inner, lines = args.lines;
  const real* taps = args.extra[0] + RUN;
  FOR_EACH(lane, THREADS) {
    const long long line = static_cast<long long>(BLOCK_X) * THREADS + lane;
    const int first = BLOCK_Y * RUN;
    if (line < lines) {
      const long long start = line / inner * length * inner + line % inner;
      const real* from = args.input[0] + start;
      real sum[RUN] = {};
      real window[RUN] = {};
      for (int k = 0; k < RUN + 2 * radius; ++k) {
        const int position = first + k - radius;
        real value = from[reflected(position, length, mirror) * inner];
        if (is_mirrored(position, length, mirror)) value *= sign;
#pragma unroll
        for (int o = RUN - 1; o > 0; --o) window[o] = window[o - 1];
        window[0] = k <= 2 * radius ? taps[k] : 0;
#pragma unroll
        for (int o = 0; o < RUN; ++o) sum[o] += window[o] * value;
      }
      real* to = args.output[0] + start;
      for (int o = 0; o < RUN; ++o)
        if (first + o < length) {
          real* target = to + (first + o) * inner;
          *target = args.flags[0] ? *target + sum[o] : sum[o];
        }
    }
  }
}

// Values next to each other: 32 rows at a time by way of shared memory.
KERNEL(smooth_rows) {
  SHARED;
  const int length = args.count[0], radius = args.count[1], mirror = args.count[2];
  const real sign = args.count[3];
  const real* taps = args.extra[0] + RUN;
  const int size = AXIS_SPAN + 2 * radius, pitch = size | 1;
  real* tile = shared;
  real* result = tile + 32 * pitch;
  const long long rows = args.lines, top = static_cast<long long>(BLOCK_X) * 32;
  const int left = BLOCK_Y * AXIS_SPAN;
  FOR_EACH(task, 32 * size) {
    const int row = task / size, x = task % size, position = left + x - radius;
    real value = 0;
    if (top + row < rows) {
      const int index = reflected(position, length, mirror);
      value = args.input[0][(top + row) * length + index];
      if (is_mirrored(position, length, mirror)) value *= sign;
    }
    tile[row * pitch + x] = value;
  }
  SYNC;
  FOR_EACH(task, 32 * (AXIS_SPAN / RUN)) {
    const int row = task % 32, first = task / 32 * RUN;
    const real* from = tile + row * pitch + first;
    real sum[RUN] = {};
    real window[RUN] = {};
    for (int k = 0; k < RUN + 2 * radius; ++k) {
#pragma unroll
      for (int o = RUN - 1; o > 0; --o) window[o] = window[o - 1];
      window[0] = k <= 2 * radius ? taps[k] : 0;
      const real value = from[k];
#pragma unroll
      for (int o = 0; o < RUN; ++o) sum[o] += window[o] * value;
    }
    for (int o = 0; o < RUN; ++o) result[row * (AXIS_SPAN + 1) + first + o] = sum[o];
  }
  SYNC;
  FOR_EACH(task, 32 * AXIS_SPAN) {
    const int row = task / AXIS_SPAN, x = task % AXIS_SPAN;
    if (top + row < rows && left + x < length) {
      real* target = args.output[0] + (top + row) * length + left + x;
      const real value = result[row * (AXIS_SPAN + 1) + x];
      *target = args.flags[0] ? *target + value : value;
    }
  }
}
