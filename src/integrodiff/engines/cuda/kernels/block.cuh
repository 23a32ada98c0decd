// One source for two machines: NVRTC compiles it for the GPU, and a C++17 compiler for the host,
// where the tests run it without a GPU.
//
// A kernel is a sequence of phases. In each, FOR_EACH deals out independent tasks to the threads of
// a block; SYNC ends a phase. Nothing but shared memory and what is Kept lasts from one phase to the
// next, so the host may run the tasks of a phase one after the other, in any order. A kernel that
// needs no shared memory is a sequence of loops over the lanes of a warp in the same way.
#pragma once

#ifndef REAL
#define REAL float
#endif
using scalar = REAL;

#if defined(__CUDACC__)
#define INLINE __device__ __forceinline__
#else
#define INLINE inline
#endif

// Numbers of the images and all that is computed from them: scalars, or with TANGENTS numbers that
// carry so many derivatives.
#ifdef TANGENTS
#include "dual.cuh"
using real = Dual;
#else
using real = scalar;
#endif

// What a kernel is told. The fields are those of arguments_type in launch.py, in this order.
constexpr int PLANES = 16;
constexpr int NUMBERS = 512;

struct Arguments {
  const real* input[PLANES];
  real* output[PLANES + 2];
  const real* extra[6];
  long long inner;      // distance of neighbours along the axis of a blur
  long long lines;      // number of lines that are smoothed, or of values
  int depth, height, width;
  int channels;
  int count[4];         // meaning by kernel
  int flags[PLANES];    // meaning by kernel, mostly one for each scale
  real numbers[NUMBERS];
};

#if defined(__CUDACC__)

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Arguments args)
#define SHARED extern __shared__ __align__(16) unsigned char shared_bytes[]; real* shared = reinterpret_cast<real*>(shared_bytes)
#define FOR_EACH(task, tasks) for (int task = threadIdx.x; task < (tasks); task += THREADS)
// The same for rows of values: a warp takes a row, and its lanes take neighbours.
#define FOR_EACH_ROW(row, rows) for (int row = threadIdx.x / 32; row < (rows); row += THREADS / 32)
#define FOR_EACH_LANE(lane) for (int lane = threadIdx.x % 32, once = 1; once; once = 0)
// A block has WARPS warps; each of them does the same with lanes that belong together.
#define FOR_EACH_WARP(warp) for (int warp = threadIdx.x / 32, once_a_warp = 1; once_a_warp; once_a_warp = 0)
// What a lane keeps while its warp goes on, and the same of the lane after it.
#define PER_LANE(type, name) type name
#define OWN(name) name
#define FROM_NEXT(name, member) from_next(name.member)
#define SYNC __syncthreads()
#define BLOCK_X static_cast<int>(blockIdx.x)
#define BLOCK_Y static_cast<int>(blockIdx.y)
#define BLOCK_Z static_cast<int>(blockIdx.z)

// A value that no thread of the kernel writes; reads may be moved across writes to other places.
INLINE scalar fetch(const scalar* place) { return __ldg(place); }
INLINE scalar from_next(scalar x) { return __shfl_down_sync(0xffffffffu, x, 1); }
INLINE scalar power_of_two(scalar x) { return exp2(x); }
INLINE scalar inverse_root(scalar x) { return rsqrt(x); }

// What the tasks of some number keep from one phase to the next, in registers.
template <typename Value, int TASKS>
struct Kept {
  static_assert(TASKS <= THREADS, "a thread keeps what one task needs");
  Value own;
  INLINE Value& of(int) { return own; }
};

#else

#include <cmath>
#include <vector>

struct Block { int x, y, z; };
#define KERNEL(name)                                                                             \
  static void name##_block(const Arguments& args, real* shared_memory, Block block);             \
  extern "C" void name(const Arguments* args, const int* grid, int shared_count) {               \
    for (int z = 0; z < grid[2]; ++z)                                                            \
      for (int y = 0; y < grid[1]; ++y)                                                          \
        for (int x = 0; x < grid[0]; ++x) {                                                      \
          /* Of its own for every block: whatever is read must have been written by it. */       \
          std::vector<real> memory(shared_count, std::nan(""));                                  \
          name##_block(*args, memory.data(), Block{x, y, z});                                    \
        }                                                                                        \
  }                                                                                              \
  static void name##_block([[maybe_unused]] const Arguments& args,                               \
                           [[maybe_unused]] real* shared_memory, [[maybe_unused]] Block block)
#define SHARED real* shared = shared_memory
#ifdef BACKWARDS
#define FOR_EACH(task, tasks) for (int task = (tasks) - 1; task >= 0; --task)
#else
#define FOR_EACH(task, tasks) for (int task = 0; task < (tasks); ++task)
#endif
#define FOR_EACH_ROW(row, rows) FOR_EACH(row, rows)
#define FOR_EACH_LANE(lane) FOR_EACH(lane, 32)
#define FOR_EACH_WARP(warp) FOR_EACH(warp, WARPS)
#define PER_LANE(type, name) type name[33] = {}
#define OWN(name) name[lane]
#define FROM_NEXT(name, member) name[lane + 1].member
#define SYNC ((void)0)
#define BLOCK_X block.x
#define BLOCK_Y block.y
#define BLOCK_Z block.z

inline scalar fetch(const scalar* place) { return *place; }
inline scalar power_of_two(scalar x) { return std::exp2(x); }
inline scalar inverse_root(scalar x) { return 1 / std::sqrt(x); }

template <typename Value, int TASKS>
struct Kept {
  Value all[TASKS];
  Value& of(int task) { return all[task]; }
};

using std::fabs;
using std::sqrt;
using std::cos;
using std::acos;
// What NVRTC has built in.
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

#endif

#ifdef TANGENTS
#include "dual_functions.cuh"
#endif

// Where a value is within a plane. Processors add 32 bits to the address of a plane for nothing.
#ifdef LARGE_PLANES
using Offset = unsigned long long;
#else
using Offset = unsigned;
#endif

template <typename Value>
INLINE Value& at(Value* plane, Offset place) {
  using Byte = const char;
  const Offset bytes = place * static_cast<Offset>(sizeof(Value));
  return *const_cast<Value*>(reinterpret_cast<const Value*>(reinterpret_cast<Byte*>(plane) + bytes));
}

template <int LENGTH>
struct alignas((LENGTH * sizeof(real)) % 16 == 0 ? 16 : alignof(real)) Pack {
  real of[LENGTH];
};

// Numbers in shared memory, 16 bytes of which are moved at once.
template <int LENGTH>
INLINE void read_pack(const real* from, real* values) {
#if defined(__CUDACC__)
  const Pack<LENGTH> found = *reinterpret_cast<const Pack<LENGTH>*>(from);
#pragma unroll
  for (int n = 0; n < LENGTH; ++n) values[n] = found.of[n];
#else
  for (int n = 0; n < LENGTH; ++n) values[n] = from[n];
#endif
}

template <int LENGTH>
INLINE void write_pack(real* to, const real* values) {
#if defined(__CUDACC__)
  Pack<LENGTH> made;
#pragma unroll
  for (int n = 0; n < LENGTH; ++n) made.of[n] = values[n];
  *reinterpret_cast<Pack<LENGTH>*>(to) = made;
#else
  for (int n = 0; n < LENGTH; ++n) to[n] = values[n];
#endif
}

INLINE bool is_aligned(const real* plane) { return reinterpret_cast<unsigned long long>(plane) % 16 == 0; }

// Begin to copy numbers into shared memory, which goes on while the threads do something else. A
// thread that meets WAIT_FOR_COPIES waits for what it began to copy itself.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define WAIT_FOR_COPIES asm volatile("cp.async.wait_all;" ::: "memory")
#else
#define WAIT_FOR_COPIES ((void)0)
#endif

template <int LENGTH>
INLINE void copy_numbers(real* to, const real* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr int BYTES = LENGTH * sizeof(real), UNIT = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : 4;
  const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(to));
#pragma unroll
  for (int n = 0; n < BYTES; n += UNIT)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target + n), "l"(reinterpret_cast<const char*>(from) + n), "n"(UNIT) : "memory");
#else
  real values[LENGTH];
#pragma unroll
  for (int n = 0; n < LENGTH; ++n) values[n] = fetch(from + n);
  write_pack<LENGTH>(to, values);
#endif
}

// A tap of a blur. Where the kernels of all blurs are constants, a product with their tangents,
// which are zero, is spared.
#if defined(TANGENTS) && defined(CONSTANT_TAPS)
INLINE scalar tap_of(const real& number) { return number.value; }
#else
INLINE const real& tap_of(const real& number) { return number; }
#endif

// Index of a place beyond the border, continued by reflection as often as it takes. The mirror is
// half a pixel outside of pixels (mirror = 0) and on the outermost cells (mirror = 1).
INLINE int reflected(int i, int n, int mirror = 0) {
  if (static_cast<unsigned>(i) < static_cast<unsigned>(n)) return i;
  const int period = 2 * (n - mirror);
  if (period == 0) return 0;
  i %= period;
  if (i < 0) i += period;
  return i < n ? i : period - 1 + mirror - i;
}

// The same for places that are no more than n beyond the border.
INLINE int reflected_once(int i, int n, int mirror = 0) {
  i = i < 0 ? mirror - 1 - i : i;
  return i < n ? i : 2 * n - 1 - mirror - i;
}

// Whether such a place lies behind an odd number of mirrors, where odd fields change their sign.
INLINE bool is_mirrored(int i, int n, int mirror) {
  if (static_cast<unsigned>(i) < static_cast<unsigned>(n)) return false;
  const int period = 2 * (n - mirror);
  if (period == 0) return false;
  i %= period;
  return (i < 0 ? i + period : i) >= n;
}

INLINE int clamped(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }
