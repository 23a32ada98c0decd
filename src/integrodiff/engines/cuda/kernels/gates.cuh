// From a structure tensor to gates, for all orders in two dimensions.
#pragma once
#include "block.cuh"

// Where the arguments of terms are: numbers of all scales from these on. Rates are those of powers
// of two, -1 / (2 lambda^2 log 2).
constexpr int MIX = 0, TWIST = 1, COUPLING = 16, FLUX = 32, RATE = 48, CLEAR = 64;

// What is known at places, which are cells or pixels, in extra: inverse relative noise variances, or
// null; in MASKED images, how far the next invalid pixel is, and, where J is smoothed, the inverse
// share of known places around each.
constexpr int LOCAL = 0, DISTANCE = 4, SHARE = 5;

// The factor of the sum over some channels of their structure. It is zero where the stencil, which
// reaches that far, touches an invalid pixel.
INLINE real factor_of_structure(const Arguments& args, long long place, int reach, int channels) {
  if (MASKED && fetch(args.extra[DISTANCE] + place) <= reach) return 0;
  const real mean = real(1) / channels;
  return args.extra[LOCAL] ? mean * fetch(args.extra[LOCAL] + place) : mean;
}

// The factor of J that was smoothed together with the zeros of unknown places.
INLINE real factor_of_smoothed(const Arguments& args, long long place) {
  return MASKED && args.extra[SHARE] ? fetch(args.extra[SHARE] + place) : real(1);
}

// The weight of the flux of a scale at a place of some distance from invalid pixels, which switch the
// flux off unless they are farther away than numbers[CLEAR + scale].
INLINE real distance_at(const Arguments& args, long long place) {
  return MASKED ? fetch(args.extra[DISTANCE] + place) : real(0);
}

INLINE real weight_of_flux(const Arguments& args, int scale, real distance) {
  return MASKED && distance <= args.numbers[CLEAR + scale] ? real(0) : args.numbers[FLUX + scale];
}

// What the gates of all scales need of J: its smaller eigenvalue, how far the other one is, and
// twice the angle of the eigenvector of the larger one. An energy has the distance zero.
struct Eigen {
  real smaller, distance, cosine, sine;
};

INLINE Eigen eigen_of(real xx, real xy, real yy, real mix) {
  const real mixed_xx = xx + mix * yy, mixed_yy = yy + mix * xx, mixed_xy = (1 - mix) * xy;
  const real mean = (mixed_xx + mixed_yy) / 2, deviation = (mixed_xx - mixed_yy) / 2;
  const real square = deviation * deviation + mixed_xy * mixed_xy;
  // Below the smallest normal number there is no direction.
  const bool apart = square > real(1.2e-38);
  const real inverse = apart ? inverse_root(square) : real(0), half = square * inverse;
  const real smaller = mean - half;
  return {smaller > 0 ? smaller : real(0), 2 * half, deviation * inverse, mixed_xy * inverse};
}

INLINE Eigen eigen_of_energy(real energy) { return {energy, 0, 0, 0}; }

// Twice the weight times 2^(rate J), where the rate is negative: the sum of its eigenvalues times I,
// minus their difference times the reflection that the angle belongs to.
struct Gate {
  real sum, difference;
};

INLINE Gate gate_of(const Eigen& eigen, real weight, real rate) {
  const real larger = weight * power_of_two(rate * eigen.smaller), other = larger * power_of_two(rate * eigen.distance);
  return {larger + other, larger - other};
}
