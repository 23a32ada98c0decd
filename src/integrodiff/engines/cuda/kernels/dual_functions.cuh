// The functions of block.cuh for numbers that carry derivatives.
#pragma once

#if defined(__CUDACC__)

// In words as long as the alignment of a number.
INLINE Dual fetch(const Dual* place) {
  Dual found;
  if constexpr (alignof(Dual) == 16) {
#pragma unroll
    for (int n = 0; n < int(sizeof(Dual) / 16); ++n) reinterpret_cast<int4*>(&found)[n] = __ldg(reinterpret_cast<const int4*>(place) + n);
  } else if constexpr (alignof(Dual) == 8 && sizeof(scalar) == 4) {
#pragma unroll
    for (int n = 0; n < int(sizeof(Dual) / 8); ++n) reinterpret_cast<int2*>(&found)[n] = __ldg(reinterpret_cast<const int2*>(place) + n);
  } else {
    found.value = __ldg(&place->value);
    EACH_TANGENT(k) found.tangent[k] = __ldg(&place->tangent[k]);
  }
  return found;
}

INLINE Dual from_next(const Dual& x) {
  Dual found(from_next(x.value));
  EACH_TANGENT(k) found.tangent[k] = from_next(x.tangent[k]);
  return found;
}

#else

INLINE Dual fetch(const Dual* place) { return *place; }

#endif

// The derivative is zero where the value is, as for PyTorch.
INLINE Dual fabs(const Dual& x) { return x.value < 0 ? -x : x.value > 0 ? x : Dual(0); }

INLINE Dual power_of_two(const Dual& x) {
  Dual found(power_of_two(x.value));
  const scalar slope = scalar(0.69314718055994531) * found.value;
  EACH_TANGENT(k) found.tangent[k] = slope * x.tangent[k];
  return found;
}

INLINE Dual inverse_root(const Dual& x) {
  Dual found(inverse_root(x.value));
  // From the left: the square of this root may be infinite where the products are not.
  EACH_TANGENT(k) found.tangent[k] = scalar(-0.5) * found.value * x.tangent[k] * found.value * found.value;
  return found;
}
