// Numbers that carry TANGENTS derivatives through every formula: forward-mode differentiation of the
// kernels themselves, of which there is no second copy.
//
// In memory the value comes first, then its derivatives. Comparisons look at values alone, but for
// equality: a number is zero only if its derivatives are zero as well, so that nothing is left out
// for a value of zero that may become another one.
#pragma once

// As large as allows to move a number in as few instructions as there can be.
struct alignas((1 + TANGENTS) * sizeof(scalar) % 16 == 0  ? 16
               : (1 + TANGENTS) * sizeof(scalar) % 8 == 0 ? 8
                                                          : sizeof(scalar)) Dual {
  scalar value;
  scalar tangent[TANGENTS];

  Dual() = default;
  INLINE constexpr Dual(scalar constant) : value(constant), tangent{} {}
};

#define EACH_TANGENT(k) _Pragma("unroll") for (int k = 0; k < TANGENTS; ++k)

INLINE Dual operator-(const Dual& a) {
  Dual found(-a.value);
  EACH_TANGENT(k) found.tangent[k] = -a.tangent[k];
  return found;
}

INLINE Dual operator+(const Dual& a, const Dual& b) {
  Dual found(a.value + b.value);
  EACH_TANGENT(k) found.tangent[k] = a.tangent[k] + b.tangent[k];
  return found;
}
INLINE Dual operator+(const Dual& a, scalar b) {
  Dual found = a;
  found.value += b;
  return found;
}
INLINE Dual operator+(scalar a, const Dual& b) { return b + a; }

INLINE Dual operator-(const Dual& a, const Dual& b) {
  Dual found(a.value - b.value);
  EACH_TANGENT(k) found.tangent[k] = a.tangent[k] - b.tangent[k];
  return found;
}
INLINE Dual operator-(const Dual& a, scalar b) { return a + -b; }
INLINE Dual operator-(scalar a, const Dual& b) { return -b + a; }

INLINE Dual operator*(const Dual& a, const Dual& b) {
  Dual found(a.value * b.value);
  EACH_TANGENT(k) found.tangent[k] = a.value * b.tangent[k] + a.tangent[k] * b.value;
  return found;
}
INLINE Dual operator*(const Dual& a, scalar b) {
  Dual found(a.value * b);
  EACH_TANGENT(k) found.tangent[k] = a.tangent[k] * b;
  return found;
}
INLINE Dual operator*(scalar a, const Dual& b) { return b * a; }

INLINE Dual operator/(const Dual& a, scalar b) { return a * (1 / b); }

INLINE Dual& operator+=(Dual& a, const Dual& b) { return a = a + b; }
INLINE Dual& operator-=(Dual& a, const Dual& b) { return a = a - b; }
INLINE Dual& operator*=(Dual& a, const Dual& b) { return a = a * b; }
INLINE Dual& operator*=(Dual& a, scalar b) { return a = a * b; }

INLINE bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
INLINE bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }
INLINE bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
INLINE bool operator==(const Dual& a, const Dual& b) {
  bool same = a.value == b.value;
  EACH_TANGENT(k) same = same && a.tangent[k] == b.tangent[k];
  return same;
}
INLINE bool operator!=(const Dual& a, const Dual& b) { return !(a == b); }
