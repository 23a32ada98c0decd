// Vectors of the instruction set that a file is compiled for, which INTEGRODIFF_ISA names.
//
// Files that include this are compiled with -ffp-contract=off, and sums of products are written as
// multiply_add(): the compiler cannot choose which product it joins with a sum, in one place so and
// in another so. Then the result of a row does not depend on how rows are shared among threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../core/types.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

namespace integrodiff {
namespace INTEGRODIFF_ISA {

#if defined(__AVX512F__)
constexpr Index vector_bytes = 64;
#elif defined(__AVX2__)
constexpr Index vector_bytes = 32;
#else
constexpr Index vector_bytes = 16;
#endif

// How many numbers a vector has; with compilers other than GCC and Clang it is a single number.
template <class Real>
#if defined(__GNUC__)
constexpr Index lanes = vector_bytes / static_cast<Index>(sizeof(Real));
#else
constexpr Index lanes = 1;
#endif

// The smallest multiple of the vectors' length that is not below `count`.
template <class Real>
constexpr Index whole_vectors(Index count) {
    return (count + lanes<Real> - 1) / lanes<Real> * lanes<Real>;
}

template <class Real>
struct IntegerOf;
template <>
struct IntegerOf<float> {
    using type = std::uint32_t;
};
template <>
struct IntegerOf<double> {
    using type = std::uint64_t;
};

#if defined(__GNUC__)

// At any address, and free to overlap with plain numbers.
template <class Real>
struct Vector {
    using Integer = typename IntegerOf<Real>::type;
    typedef Real type __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias));
    typedef Integer integers
        __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias));
};

#else

template <class Real>
struct Vector {
    using type = Real;
    using integers = typename IntegerOf<Real>::type;
};

#endif

template <class Real>
using Packed = typename Vector<Real>::type;
template <class Real>
using PackedIntegers = typename Vector<Real>::integers;

template <class Real>
inline Packed<Real> load(const Real *p) {
    return *reinterpret_cast<const Packed<Real> *>(p);
}

template <class Real>
inline void store(Real *p, Packed<Real> value) {
    *reinterpret_cast<Packed<Real> *>(p) = value;
}

// The same number in all lanes. (Adding it to zero would be an instruction: -0 becomes 0.)
template <class Real>
inline Packed<Real> broadcast(Real x) {
    return x - Packed<Real>{};
}

template <class Real>
inline PackedIntegers<Real> bits_of(Packed<Real> x) {
    PackedIntegers<Real> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

template <class Real>
inline Packed<Real> from_bits(PackedIntegers<Real> bits) {
    Packed<Real> x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

template <class Real>
inline Packed<Real> absolute(Packed<Real> x) {
    using Integer = typename IntegerOf<Real>::type;
    return from_bits<Real>(bits_of<Real>(x) & static_cast<Integer>(~Integer(0) >> 1));
}

// ---- a b + c, rounded once where the instruction set can ----

inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

inline double multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

#if defined(__GNUC__)

using Floats = Packed<float>;
using Doubles = Packed<double>;

#if defined(__AVX512F__)
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
inline Floats square_root(Floats x) { return _mm512_sqrt_ps(x); }
inline Doubles square_root(Doubles x) { return _mm512_sqrt_pd(x); }
// The larger and the smaller of two; NaN if the second is.
inline Floats larger_of(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats smaller_of(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Doubles larger_of(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
inline Doubles smaller_of(Doubles a, Doubles b) { return _mm512_min_pd(a, b); }
#elif defined(__AVX2__)
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
inline Floats square_root(Floats x) { return _mm256_sqrt_ps(x); }
inline Doubles square_root(Doubles x) { return _mm256_sqrt_pd(x); }
inline Floats larger_of(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller_of(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Doubles larger_of(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
inline Doubles smaller_of(Doubles a, Doubles b) { return _mm256_min_pd(a, b); }
#else
#if defined(__aarch64__)
inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
    return (Doubles)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return a * b + c; }
#endif
#if defined(__x86_64__)
inline Floats square_root(Floats x) { return _mm_sqrt_ps(x); }
inline Doubles square_root(Doubles x) { return _mm_sqrt_pd(x); }
inline Floats larger_of(Floats a, Floats b) { return _mm_max_ps(a, b); }
inline Floats smaller_of(Floats a, Floats b) { return _mm_min_ps(a, b); }
inline Doubles larger_of(Doubles a, Doubles b) { return _mm_max_pd(a, b); }
inline Doubles smaller_of(Doubles a, Doubles b) { return _mm_min_pd(a, b); }
#elif defined(__wasm_simd128__)
inline Floats square_root(Floats x) { return (Floats)wasm_f32x4_sqrt((v128_t)x); }
inline Doubles square_root(Doubles x) { return (Doubles)wasm_f64x2_sqrt((v128_t)x); }
// pmin(b, a) is a < b ? a : b.
inline Floats larger_of(Floats a, Floats b) { return (Floats)wasm_f32x4_pmax((v128_t)b, (v128_t)a); }
inline Floats smaller_of(Floats a, Floats b) { return (Floats)wasm_f32x4_pmin((v128_t)b, (v128_t)a); }
inline Doubles larger_of(Doubles a, Doubles b) {
    return (Doubles)wasm_f64x2_pmax((v128_t)b, (v128_t)a);
}
inline Doubles smaller_of(Doubles a, Doubles b) {
    return (Doubles)wasm_f64x2_pmin((v128_t)b, (v128_t)a);
}
#else
template <class V>
inline V square_root(V x) {
    for (std::size_t k = 0; k < sizeof(V) / sizeof(x[0]); ++k) x[k] = std::sqrt(x[k]);
    return x;
}
template <class V>
inline V larger_of(V a, V b) {
    return a > b ? a : b;
}
template <class V>
inline V smaller_of(V a, V b) {
    return a < b ? a : b;
}
#endif
#endif

// Keep values in registers where memory would be read again. Has no effect on results.
#if defined(__AVX512F__)
#define INTEGRODIFF_REGISTER "+v"
#elif defined(__x86_64__)
#define INTEGRODIFF_REGISTER "+x"
#endif
#ifdef INTEGRODIFF_REGISTER
inline void hold(Floats &vector) { __asm__("" : INTEGRODIFF_REGISTER(vector)); }
inline void hold(Doubles &vector) { __asm__("" : INTEGRODIFF_REGISTER(vector)); }
#else
inline void hold(const Floats &) {}
inline void hold(const Doubles &) {}
#endif

// The vector that begins one number after `first`, which `second` continues.
template <class V, int... k>
inline V shifted_by_one(V first, V second, std::integer_sequence<int, k...>) {
#if defined(__clang__)
    return __builtin_shufflevector(first, second, k + 1 ...);
#else
    using Integer = typename IntegerOf<std::remove_reference_t<decltype(first[0])>>::type;
    typedef Integer Order __attribute__((vector_size(sizeof(V))));
    return __builtin_shuffle(first, second, Order{Integer(k + 1)...});
#endif
}

template <class Real>
inline Packed<Real> shifted(Packed<Real> first, Packed<Real> second) {
    return shifted_by_one(first, second, std::make_integer_sequence<int, int(lanes<Real>)>());
}

#else

inline void hold(float) {}
inline void hold(double) {}
inline float square_root(float x) { return std::sqrt(x); }
inline double square_root(double x) { return std::sqrt(x); }
template <class V>
inline V larger_of(V a, V b) {
    return a > b ? a : b;
}
template <class V>
inline V smaller_of(V a, V b) {
    return a < b ? a : b;
}
template <class Real>
inline Real shifted(Real, Real second) {
    return second;
}

#endif

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
