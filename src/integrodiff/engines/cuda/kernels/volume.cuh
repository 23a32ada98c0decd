// Order one on 2 x 2 x 2 cells of volumes: the structure tensor, the flows of all scales, and the
// step itself. input, flags and extra as in first_order.cuh. count: number of scales, whether J or
// its trace counts, whether it was computed before, and blocks across the slices. The entries of J, xx,
// xy, xz, yy, yz and zz, then come from input[FIELD] on.
#include "gates.cuh"

constexpr int TRIPLE = 2, SPACING = 4, UNITS = 7, SHARES = 10;
constexpr int ENTRIES = 6, FIELD = PLANES - ENTRIES;
constexpr int DEEP = BLOCK_SLICES, HIGH = BLOCK_ROWS, WIDE = BLOCK_COLUMNS;   // voxels of a block
constexpr int CELLS = (DEEP + 1) * (HIGH + 1) * (WIDE + 1);

struct Cell {
  int z, y, x;
};

INLINE Cell cell_of(int task, int front, int top, int left) {
  const int plane = (HIGH + 1) * (WIDE + 1);
  return {front + task / plane, top + task / (WIDE + 1) % (HIGH + 1), left + task % (WIDE + 1)};
}

INLINE bool is_inside(const Arguments& args, const Cell& cell) {
  return cell.z <= args.depth && cell.y <= args.height && cell.x <= args.width;
}

// Three derivatives, three twists xy, xz, yz, and the triple twist, in voxels.
struct Coefficients {
  real x, y, z, xy, xz, yz, xyz;
};

INLINE Coefficients coefficients(const real* volume, const Cell& cell, const Arguments& args) {
  const long long row = args.width, slice = row * args.height;
  const long long behind = (cell.z > 0 ? cell.z - 1 : 0) * slice, before = (cell.z < args.depth ? cell.z : args.depth - 1) * slice;
  const long long above = (cell.y > 0 ? cell.y - 1 : 0) * row, below = (cell.y < args.height ? cell.y : args.height - 1) * row;
  const int left = cell.x > 0 ? cell.x - 1 : 0, right = cell.x < args.width ? cell.x : args.width - 1;
  real change[2][2], sum[2][2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const real* from = volume + (k ? before : behind) + (j ? below : above);
      const real first = from[left], second = from[right];
      change[k][j] = second - first;
      sum[k][j] = second + first;
    }
  const real quarter = real(0.25);
  return {quarter * (change[0][0] + change[0][1] + change[1][0] + change[1][1]),
          quarter * (sum[0][1] - sum[0][0] + sum[1][1] - sum[1][0]),
          quarter * (sum[1][0] + sum[1][1] - sum[0][0] - sum[0][1]),
          quarter * (change[0][1] - change[0][0] + change[1][1] - change[1][0]),
          quarter * (change[1][0] + change[1][1] - change[0][0] - change[0][1]),
          quarter * (sum[1][1] - sum[1][0] - sum[0][1] + sum[0][0]),
          quarter * (change[1][1] - change[1][0] - change[0][1] + change[0][0])};
}

struct VolumeTensor {
  real xx, xy, xz, yy, yz, zz;
};

INLINE void add_outer(VolumeTensor& sum, real weight, real x, real y, real z) {
  sum.xx += weight * x * x;
  sum.xy += weight * x * y;
  sum.xz += weight * x * z;
  sum.yy += weight * y * y;
  sum.yz += weight * y * z;
  sum.zz += weight * z * z;
}

INLINE long long place_of(const Arguments& args, int batch, const Cell& cell) {
  return ((static_cast<long long>(batch) * (args.depth + 1) + cell.z) * (args.height + 1) + cell.y) * (args.width + 1) + cell.x;
}

INLINE VolumeTensor structure_of_cell(const Arguments& args, int batch, const Cell& cell) {
  const long long size = static_cast<long long>(args.depth) * args.height * args.width;
  const real per_z = 1 / args.numbers[UNITS], per_y = 1 / args.numbers[UNITS + 1], per_x = 1 / args.numbers[UNITS + 2];
  VolumeTensor sum{0, 0, 0, 0, 0, 0};
  for (int i = 0; i < args.count[0]; ++i) {
    const real weight = args.numbers[COUPLING + i];
    if (weight == 0) continue;
    for (int c = 0; c < args.channels; ++c) {
      const real* volume = args.input[i] + (static_cast<long long>(batch) * args.channels + c) * size;
      const Coefficients found = coefficients(volume, cell, args);
      add_outer(sum, weight, per_x * found.x, per_y * found.y, per_z * found.z);
      // Twists across slices, rows and columns.
      if (args.numbers[SHARES] != 0) add_outer(sum, weight * args.numbers[SHARES], per_x * found.xz, per_y * found.yz, 0);
      if (args.numbers[SHARES + 1] != 0) add_outer(sum, weight * args.numbers[SHARES + 1], per_x * found.xy, 0, per_z * found.yz);
      if (args.numbers[SHARES + 2] != 0) add_outer(sum, weight * args.numbers[SHARES + 2], 0, per_y * found.xy, per_z * found.xz);
    }
  }
  const real factor = factor_of_structure(args, place_of(args, 0, cell), 0, args.channels);
  return {factor * sum.xx, factor * sum.xy, factor * sum.xz, factor * sum.yy, factor * sum.yz, factor * sum.zz};
}

KERNEL(structure) {
  const int batch = BLOCK_Z / args.count[3];
  const int front = BLOCK_Z % args.count[3] * (DEEP + 1), top = BLOCK_Y * (HIGH + 1), left = BLOCK_X * (WIDE + 1);
  FOR_EACH(task, CELLS) {
    const Cell cell = cell_of(task, front, top, left);
    if (is_inside(args, cell)) {
      const VolumeTensor found = structure_of_cell(args, batch, cell);
      const long long place = place_of(args, batch, cell);
      if (args.count[1]) {
        args.output[0][place] = found.xx;
        args.output[1][place] = found.xy;
        args.output[2][place] = found.xz;
        args.output[3][place] = found.yy;
        args.output[4][place] = found.yz;
        args.output[5][place] = found.zz;
      } else {
        args.output[0][place] = found.xx + found.yy + found.zz;
      }
    }
  }
}

struct Vector {
  real x, y, z;
};

INLINE real dot(const Vector& a, const Vector& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
INLINE Vector cross(const Vector& a, const Vector& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

// Eigenvalues, and the eigenvectors of the second and the third: stages/eigenframe.py, line by line.
struct Frame {
  real value[3];
  Vector second, third;
};

INLINE Frame frame_of(const VolumeTensor& tensor) {
  const real tiny = sizeof(real) == 4 ? real(1.1754944e-38) : real(2.2250738585072014e-308);
  const real epsilon = sizeof(real) == 4 ? real(1.1920929e-7) : real(2.220446049250313e-16);
  const real mean = (tensor.xx + tensor.yy + tensor.zz) / 3;
  real size = fabs(tensor.xx);
  size = fabs(tensor.xy) > size ? fabs(tensor.xy) : size;
  size = fabs(tensor.xz) > size ? fabs(tensor.xz) : size;
  size = fabs(tensor.yy) > size ? fabs(tensor.yy) : size;
  size = fabs(tensor.yz) > size ? fabs(tensor.yz) : size;
  size = fabs(tensor.zz) > size ? fabs(tensor.zz) : size;
  const bool scaled = size > 4 * tiny;
  const real unit = 1 / (scaled ? size : real(1));
  real xx = (tensor.xx - mean) * unit, yy = (tensor.yy - mean) * unit, zz = (tensor.zz - mean) * unit;
  real xy = tensor.xy * unit, xz = tensor.xz * unit, yz = tensor.yz * unit;
  const real square = (xx * xx + yy * yy + zz * zz + 2 * (xy * xy + xz * xz + yz * yz)) / 6;
  const bool differs = scaled && square > epsilon * epsilon;
  const real spread = sqrt(differs ? square : real(1)), inverse = 1 / spread;
  xx *= inverse, xy *= inverse, xz *= inverse, yy *= inverse, yz *= inverse, zz *= inverse;
  const real half_determinant = (xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)) / 2;
  const real ratio = half_determinant < -1 ? real(-1) : half_determinant > 1 ? real(1) : half_determinant;
  real isolated = 2 * cos(acos(fabs(ratio)) / 3);
  isolated = ratio < 0 ? -isolated : isolated;

  // The longest of three cross products of rows is the direction that goes to zero.
  const Vector rows[3] = {{xx - isolated, xy, xz}, {xy, yy - isolated, yz}, {xz, yz, zz - isolated}};
  Vector w = cross(rows[0], rows[1]);
  real longest = dot(w, w);
  Vector other = cross(rows[0], rows[2]);
  real length = dot(other, other);
  if (length > longest) w = other, longest = length;
  other = cross(rows[1], rows[2]);
  length = dot(other, other);
  if (length > longest) w = other, longest = length;
  const real shrink = 1 / sqrt(differs ? longest : real(1));
  w = differs ? Vector{w.x * shrink, w.y * shrink, w.z * shrink} : Vector{1, 0, 0};

  const real sign = w.z < 0 ? real(-1) : real(1), a = -1 / (sign + w.z), b = w.x * w.y * a;
  const Vector u{1 + sign * w.x * w.x * a, sign * b, -sign * w.x}, v{b, sign + w.y * w.y * a, -w.y};
  const Vector full[3] = {{xx, xy, xz}, {xy, yy, yz}, {xz, yz, zz}};
  const Vector of_u{dot(full[0], u), dot(full[1], u), dot(full[2], u)}, of_v{dot(full[0], v), dot(full[1], v), dot(full[2], v)};
  const real uu = dot(u, of_u), uv = dot(u, of_v), vv = dot(v, of_v);
  const real middle = (uu + vv) / 2, deviation = (uu - vv) / 2, apart_square = deviation * deviation + uv * uv;
  const bool apart = apart_square > tiny;
  const real root = sqrt(apart ? apart_square : real(1)), distance = apart ? root : real(0);
  const real cosine = apart ? deviation / root : real(1), sine = apart ? uv / root : real(0);
  const real large = sqrt((1 + fabs(cosine)) / 2), small = sine / (2 * large);
  const real c = cosine < 0 ? small : large, s = cosine < 0 ? large : small;
  const real back = differs ? spread * size : real(0);
  return {{mean + back * (middle - distance), mean + back * (middle + distance), mean + back * isolated},
          {c * u.x + s * v.x, c * u.y + s * v.y, c * u.z + s * v.z},
          w};
}

KERNEL(flows) {
  SHARED;
  // Nine numbers of the frame, and what each cell gives to its eight voxels.
  real* frames = shared;
  real* given = frames + 9 * CELLS;
  const int batch = BLOCK_Z / args.count[3];
  const int front = BLOCK_Z % args.count[3] * DEEP, top = BLOCK_Y * HIGH, left = BLOCK_X * WIDE;
  const long long size = static_cast<long long>(args.depth) * args.height * args.width;
  FOR_EACH(task, CELLS) {
    const Cell cell = cell_of(task, front, top, left);
    if (is_inside(args, cell)) {
      VolumeTensor found;
      if (args.count[2]) {
        const long long place = place_of(args, batch, cell);
        const real factor = factor_of_smoothed(args, place_of(args, 0, cell));
        found.xx = factor * args.input[FIELD][place];
        if (args.count[1])
          found = {found.xx, factor * args.input[FIELD + 1][place], factor * args.input[FIELD + 2][place],
                   factor * args.input[FIELD + 3][place], factor * args.input[FIELD + 4][place], factor * args.input[FIELD + 5][place]};
      } else {
        found = structure_of_cell(args, batch, cell);
        if (!args.count[1]) found.xx += found.yy + found.zz;
      }
      Frame frame{{found.xx, found.xx, found.xx}, {0, 1, 0}, {1, 0, 0}};
      if (args.count[1]) frame = frame_of(found);
#pragma unroll
      for (int n = 0; n < 3; ++n) frames[n * CELLS + task] = frame.value[n] > 0 ? frame.value[n] : real(0);
      frames[3 * CELLS + task] = frame.second.x;
      frames[4 * CELLS + task] = frame.second.y;
      frames[5 * CELLS + task] = frame.second.z;
      frames[6 * CELLS + task] = frame.third.x;
      frames[7 * CELLS + task] = frame.third.y;
      frames[8 * CELLS + task] = frame.third.z;
    }
  }
  SYNC;
  const real dz = 1 / args.numbers[SPACING], dy = 1 / args.numbers[SPACING + 1], dx = 1 / args.numbers[SPACING + 2];
  for (int i = 0; i < args.count[0]; ++i) {
    if (!args.output[i]) continue;
    const real rate = args.numbers[RATE + i];
    for (int c = 0; c < args.channels; ++c) {
      const long long plane = (static_cast<long long>(batch) * args.channels + c) * size;
      const real* volume = args.input[i] + plane;
      FOR_EACH(task, CELLS) {
        const Cell cell = cell_of(task, front, top, left);
        if (is_inside(args, cell)) {
          const real weight = weight_of_flux(args, i, distance_at(args, place_of(args, 0, cell))) / 4;
          const real first = power_of_two(rate * frames[task]);
          const real a = power_of_two(rate * frames[CELLS + task]) - first, b = power_of_two(rate * frames[2 * CELLS + task]) - first;
          const real ax = dx * frames[3 * CELLS + task], ay = dy * frames[4 * CELLS + task], az = dz * frames[5 * CELLS + task];
          const real bx = dx * frames[6 * CELLS + task], by = dy * frames[7 * CELLS + task], bz = dz * frames[8 * CELLS + task];
          const real xx = first * dx * dx + a * ax * ax + b * bx * bx, yy = first * dy * dy + a * ay * ay + b * by * by;
          const real zz = first * dz * dz + a * az * az + b * bz * bz;
          const real xy = a * ax * ay + b * bx * by, xz = a * ax * az + b * bx * bz, yz = a * ay * az + b * by * bz;
          const Coefficients part = coefficients(volume, cell, args);
          const real of_xy = xx + yy - 2 * fabs(xy), of_xz = xx + zz - 2 * fabs(xz), of_yz = yy + zz - 2 * fabs(yz);
          const real damping = weight * args.numbers[TWIST];
          real x = weight * (xx * part.x + xy * part.y + xz * part.z);
          real y = weight * (xy * part.x + yy * part.y + yz * part.z);
          real z = weight * (xz * part.x + yz * part.y + zz * part.z);
          const real twist_xy = damping * of_xy * part.xy, twist_xz = damping * of_xz * part.xz, twist_yz = damping * of_yz * part.yz;
          const real triple = weight * args.numbers[TRIPLE] * (of_xy + of_xz + of_yz) * part.xyz;
          // Nothing flows through the border; twists are zero there by themselves.
          if (cell.x == 0 || cell.x == args.width) x = 0;
          if (cell.y == 0 || cell.y == args.height) y = 0;
          if (cell.z == 0 || cell.z == args.depth) z = 0;
#pragma unroll
          for (int corner = 0; corner < 8; ++corner) {
            const real sx = corner & 1 ? 1 : -1, sy = corner & 2 ? 1 : -1, sz = corner & 4 ? 1 : -1;
            given[corner * CELLS + task] = sx * x + sy * y + sz * z + sx * sy * twist_xy + sx * sz * twist_xz + sy * sz * twist_yz + sx * sy * sz * triple;
          }
        }
      }
      SYNC;
      FOR_EACH(task, DEEP * HIGH * WIDE) {
        const int deep = task / (HIGH * WIDE), high = task / WIDE % HIGH, wide = task % WIDE;
        const int z = front + deep, y = top + high, x = left + wide;
        if (z < args.depth && y < args.height && x < args.width) {
          real flow = 0;
#pragma unroll
          for (int corner = 0; corner < 8; ++corner) {
            // The cell in which this voxel is that corner.
            const int right = corner & 1 ? 0 : 1, down = corner & 2 ? 0 : 1, on = corner & 4 ? 0 : 1;
            flow += given[corner * CELLS + ((deep + on) * (HIGH + 1) + high + down) * (WIDE + 1) + wide + right];
          }
          real* target = args.output[i] + plane + (static_cast<long long>(z) * args.height + y) * args.width + x;
          *target = args.flags[i] ? *target + flow : flow;
        }
      }
      SYNC;
    }
  }
}

// u <- u + tau (pull (f - u) - q), with `lines` numbers in all.
KERNEL(update) {
  const real tau = args.numbers[0], pull = args.numbers[1];
  FOR_EACH(lane, THREADS * 4) {
    const long long place = static_cast<long long>(BLOCK_X) * THREADS * 4 + lane;
    if (place < args.lines) {
      const real value = args.output[0][place];
      real change = -args.input[0][place];
      if (pull != 0) change += pull * (args.extra[0][place] - value);
      args.output[0][place] = value + tau * change;
    }
  }
}
