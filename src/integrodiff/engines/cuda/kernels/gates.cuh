// From a structure tensor to gates, for all orders in two dimensions.
#pragma once
#include "block.cuh"

// Where the arguments of terms are: numbers of all scales from these on. Rates are those of powers
// of two, -1 / (2 lambda^2 log 2).
constexpr int MIX = 0, TWIST = 1, COUPLING = 16, FLUX = 32, RATE = 48;
constexpr int IN_FLUX = 1, ADDED = 2;

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
  real xx, xy, yy;
};

INLINE Gate gate_of(const Eigen& eigen, real weight, real rate) {
  const real larger = weight * power_of_two(rate * eigen.smaller), other = larger * power_of_two(rate * eigen.distance);
  const real sum = larger + other, difference = larger - other;
  return {sum - difference * eigen.cosine, -difference * eigen.sine, sum + difference * eigen.cosine};
}
