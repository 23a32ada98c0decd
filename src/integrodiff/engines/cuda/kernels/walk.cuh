// Blurs on the valid pixels of a mask: sums of Chebyshev polynomials T_k of the walk Y from pixel to
// pixel, see stages/domain.py. All scales share one sequence of walks, and their adjoints another:
//
//   walk_there   T_k u = 2 Y T_(k-1) u - T_(k-2) u, and v_i += a_ki T_k u, for k upwards
//   walk_back    b_k = 2 Y b_(k+1) - b_(k+2) + sum_i a_ki q_i, for k downwards (Clenshaw)
//
// With Y in place of 2 Y where k is 1 in the first and 0 in the second; then b_0 is the sum of all
// K_i q_i.
//
// A launch takes up to STEPS walks. Its blocks have points for some pixels, or voxels, and for a margin
// of STEPS around them; each walk spoils one more point of the margin. A thread has a run of RUN points
// along the first axis in registers, and GROUPS runs lie one after the other, in each of HIGH rows of
// WIDE columns. An image is a volume whose slices have one row (HIGH = 1, args.height = 1).
//
// ACTIVE: number of scales. extra: the last two images of the sequence, or null where it begins; the
// diagonal of Y, or -1 at invalid pixels; and the input of the process, where there is a fidelity weight.
// output[LAST] and the next: where the last two images go, or null. count: number of walks, and which
// of them is by Y in place of 2 Y, or -1.
#include "block.cuh"

constexpr int LONG = RUN * GROUPS, LINE = HIGH * WIDE, POINTS = LONG * LINE;
constexpr int MARGIN = STEPS, BESIDE = HIGH > 1 ? STEPS : 0;
constexpr int CORE_LONG = LONG - 2 * MARGIN, CORE_HIGH = HIGH - 2 * BESIDE, CORE_WIDE = WIDE - 2 * MARGIN;
static_assert(THREADS == GROUPS * LINE, "a thread for each run");

// Where numbers are: weights of the edges along the three axes, taps of k = 0 for each scale, and those
// of the walks, for each walk and scale.
constexpr int EDGE = 2, START = 5, TAPS = START + PLANES;
constexpr int LAST = PLANES;

// The run of a thread: its first point, in the block and in the image.
struct Place {
  int point, along, z, row, y, column, x;
  long long plane, first, stride;  // in memory: where the image is, and where its values are in there
};

INLINE int blocks_of(int size, int core) { return (size + core - 1) / core; }

INLINE Place place_of(const Arguments& args, int block, int task) {
  const int wide = blocks_of(args.width, CORE_WIDE), high = blocks_of(args.height, CORE_HIGH), deep = blocks_of(args.depth, CORE_LONG);
  Place at;
  at.along = task / LINE * RUN;
  at.row = task % LINE / WIDE;
  at.column = task % WIDE;
  at.point = at.along * LINE + task % LINE;
  at.x = block % wide * CORE_WIDE + at.column - MARGIN;
  at.y = block / wide % high * CORE_HIGH + at.row - BESIDE;
  at.z = block / (wide * high) % deep * CORE_LONG + at.along - MARGIN;
  at.stride = static_cast<long long>(args.height) * args.width;
  at.plane = block / (wide * high * deep) * (args.depth * at.stride);
  at.first = at.z * at.stride + static_cast<long long>(at.y) * args.width + at.x;
  return at;
}

INLINE long long place_in_batch(const Place& at, int n) { return at.plane + at.first + n * at.stride; }

INLINE bool is_inside(const Arguments& args, const Place& at, int n) {
  return at.x >= 0 && at.x < args.width && at.y >= 0 && at.y < args.height && at.z + n >= 0 && at.z + n < args.depth;
}

// Whether a point is one of the pixels that the block is there for.
INLINE bool is_own(const Arguments& args, const Place& at, int n) {
  const int along = at.along + n - MARGIN, row = at.row - BESIDE, column = at.column - MARGIN;
  return is_inside(args, at, n) && along >= 0 && along < CORE_LONG && row >= 0 && row < CORE_HIGH && column >= 0 && column < CORE_WIDE;
}

struct Run {
  real here[RUN], before[RUN];
  real stay[RUN];
  real scale[RUN][ACTIVE];  // v_i or q_i
};

// What is there before the first walk. Beyond the image everything is as at invalid pixels.
INLINE void begin(const Arguments& args, const Place& at, Run& run, real* shared) {
#pragma unroll
  for (int n = 0; n < RUN; ++n) {
    const bool inside = is_inside(args, at, n);
    const long long place = place_in_batch(at, n);
    run.here[n] = inside && args.extra[0] ? fetch(args.extra[0] + place) : real(0);
    run.before[n] = inside && args.extra[1] ? fetch(args.extra[1] + place) : real(0);
    run.stay[n] = inside ? fetch(args.extra[2] + (place - at.plane)) : real(-1);
    shared[at.point + n * LINE] = run.here[n];
  }
}

// One walk of a run, whose neighbours are in `from`. Beyond the block, what is taken does not matter.
INLINE void walk(const Arguments& args, const Place& at, int step, Run& run, const real* from) {
  const real factor = step == args.count[1] ? 1 : 2;
  const int left = at.column > 0 ? -1 : 0, right = at.column < WIDE - 1 ? 1 : 0;
  const int up = at.row > 0 ? -WIDE : 0, down = at.row < HIGH - 1 ? WIDE : 0;
  const real after = at.along + RUN < LONG ? from[at.point + RUN * LINE] : run.here[RUN - 1];
  real previous = at.along > 0 ? from[at.point - LINE] : run.here[0];
#pragma unroll
  for (int n = 0; n < RUN; ++n) {
    const real* place = from + at.point + n * LINE;
    const real here = run.here[n], next = n + 1 < RUN ? run.here[n + 1] : after;
    real walked = run.stay[n] * here + args.numbers[EDGE] * (previous + next) + args.numbers[EDGE + 2] * (place[left] + place[right]);
    if (HIGH > 1) walked += args.numbers[EDGE + 1] * (place[up] + place[down]);
    run.here[n] = run.stay[n] < real(-0.5) ? real(0) : factor * walked - run.before[n];
    run.before[n] = previous = here;
  }
}

INLINE void leave(const Place& at, const Run& run, real* to) {
#pragma unroll
  for (int n = 0; n < RUN; ++n) to[at.point + n * LINE] = run.here[n];
}

INLINE void keep_last(const Arguments& args, long long place, const Run& run, int n) {
  if (!args.output[LAST]) return;
  args.output[LAST][place] = run.here[n];
  args.output[LAST + 1][place] = run.before[n];
}

// output: the smoothed images, to which the walks of this launch are added unless it is the first.
KERNEL(walk_there) {
  SHARED;
  Kept<Run, THREADS> kept;
  const bool is_first = args.count[1] >= 0;
  FOR_EACH(task, THREADS) {
    const Place at = place_of(args, BLOCK_X, task);
    Run& run = kept.of(task);
    begin(args, at, run, shared);
#pragma unroll
    for (int n = 0; n < RUN; ++n)
#pragma unroll
      for (int i = 0; i < ACTIVE; ++i) {
        run.scale[n][i] = is_first ? args.numbers[START + i] * run.here[n] : real(0);
        if (!is_first && is_own(args, at, n)) run.scale[n][i] = args.output[i][place_in_batch(at, n)];
      }
  }
  SYNC;
  for (int step = 0; step < args.count[0]; ++step) {
    const real* from = shared + step % 2 * POINTS;
    real* to = shared + (step + 1) % 2 * POINTS;
    FOR_EACH(task, THREADS) {
      const Place at = place_of(args, BLOCK_X, task);
      Run& run = kept.of(task);
      walk(args, at, step, run, from);
      leave(at, run, to);
#pragma unroll
      for (int i = 0; i < ACTIVE; ++i) {
        const real tap = args.numbers[TAPS + step * ACTIVE + i];
#pragma unroll
        for (int n = 0; n < RUN; ++n) run.scale[n][i] += tap * run.here[n];
      }
    }
    SYNC;
  }
  FOR_EACH(task, THREADS) {
    const Place at = place_of(args, BLOCK_X, task);
    const Run& run = kept.of(task);
#pragma unroll
    for (int n = 0; n < RUN; ++n) {
      if (!is_own(args, at, n)) continue;
      const long long place = place_in_batch(at, n);
#pragma unroll
      for (int i = 0; i < ACTIVE; ++i) args.output[i][place] = run.scale[n][i];
      keep_last(args, place, run, n);
    }
  }
}

// input: the flows. The last launch takes the step of the image in output[0],
// u <- u + tau (pull (f - u) - sum_i K_i q_i); tau and pull are numbers[0] and [1].
KERNEL(walk_back) {
  SHARED;
  Kept<Run, THREADS> kept;
  FOR_EACH(task, THREADS) {
    const Place at = place_of(args, BLOCK_X, task);
    Run& run = kept.of(task);
    begin(args, at, run, shared);
#pragma unroll
    for (int n = 0; n < RUN; ++n)
#pragma unroll
      for (int i = 0; i < ACTIVE; ++i) run.scale[n][i] = is_inside(args, at, n) ? fetch(args.input[i] + place_in_batch(at, n)) : real(0);
  }
  SYNC;
  for (int step = 0; step < args.count[0]; ++step) {
    const real* from = shared + step % 2 * POINTS;
    real* to = shared + (step + 1) % 2 * POINTS;
    FOR_EACH(task, THREADS) {
      const Place at = place_of(args, BLOCK_X, task);
      Run& run = kept.of(task);
      walk(args, at, step, run, from);
#pragma unroll
      for (int i = 0; i < ACTIVE; ++i) {
        const real tap = args.numbers[TAPS + step * ACTIVE + i];
#pragma unroll
        for (int n = 0; n < RUN; ++n) run.here[n] += tap * run.scale[n][i];
      }
      leave(at, run, to);
    }
    SYNC;
  }
  const bool is_last = args.count[1] >= 0;
  const real tau = args.numbers[0], pull = args.numbers[1];
  FOR_EACH(task, THREADS) {
    const Place at = place_of(args, BLOCK_X, task);
    const Run& run = kept.of(task);
#pragma unroll
    for (int n = 0; n < RUN; ++n) {
      if (!is_own(args, at, n)) continue;
      const long long place = place_in_batch(at, n);
      keep_last(args, place, run, n);
      if (!is_last) continue;
      const real value = args.output[0][place];
      real change = -run.here[n];
      if (pull != 0) change += pull * (args.extra[3][place] - value);
      args.output[0][place] = value + tau * change;
    }
  }
}
