// Vectors of the instruction set that a file is compiled for. Included in its namespace's files.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace integrodiff {
namespace INTEGRODIFF_ISA {

#if defined(__AVX512F__)
constexpr std::ptrdiff_t vector_bytes = 64;
#elif defined(__AVX2__)
constexpr std::ptrdiff_t vector_bytes = 32;
#else
constexpr std::ptrdiff_t vector_bytes = 16;
#endif

// How many numbers a vector has; elsewhere than on GCC and Clang it is a single number.
template <class Real>
#if defined(__GNUC__)
constexpr std::ptrdiff_t lanes = vector_bytes / sizeof(Real);
#else
constexpr std::ptrdiff_t lanes = 1;
#endif

// The smallest multiple of the vectors' length that is not below `count`.
template <class Real>
constexpr std::ptrdiff_t whole_vectors(std::ptrdiff_t count) {
    return (count + lanes<Real> - 1) / lanes<Real> * lanes<Real>;
}

template <class Real>
struct Format;
template <>
struct Format<float> {
    using Integer = std::int32_t;
    static constexpr float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr int mantissa = 23;
    static constexpr float lowest = -126.0f;
};
template <>
struct Format<double> {
    using Integer = std::int64_t;
    static constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr int mantissa = 52;
    static constexpr double lowest = -1022.0;
};

#if defined(__GNUC__)

// At any address, and free to overlap with plain numbers.
template <class Real>
struct Vector {
    using Integer = typename Format<Real>::Integer;
    typedef Real type __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias));
    typedef Integer integers
        __attribute__((vector_size(vector_bytes), aligned(sizeof(Real)), may_alias));
};

#else

template <class Real>
struct Vector {
    using type = Real;
    using integers = typename Format<Real>::Integer;
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
    using Integer = typename Format<Real>::Integer;
    return from_bits<Real>(bits_of<Real>(x) & std::numeric_limits<Integer>::max());
}

// Keep a value in a register: the compiler neither loads it again nor joins its product with a sum.
template <class V>
inline void hold(V &vector) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(vector));
#elif defined(__GNUC__) && defined(__x86_64__)
    __asm__("" : "+x"(vector));
#endif
}

// The vector that begins one number after `first`, which `second` continues.
inline Packed<float> shifted(Packed<float> first, Packed<float> second) {
#if !defined(__GNUC__)
    return second;
#elif defined(__AVX512F__)
    return __builtin_shufflevector(first, second, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                   16);
#elif defined(__AVX2__)
    return __builtin_shufflevector(first, second, 1, 2, 3, 4, 5, 6, 7, 8);
#else
    return __builtin_shufflevector(first, second, 1, 2, 3, 4);
#endif
}

inline Packed<double> shifted(Packed<double> first, Packed<double> second) {
#if !defined(__GNUC__)
    return second;
#elif defined(__AVX512F__)
    return __builtin_shufflevector(first, second, 1, 2, 3, 4, 5, 6, 7, 8);
#elif defined(__AVX2__)
    return __builtin_shufflevector(first, second, 1, 2, 3, 4);
#else
    return __builtin_shufflevector(first, second, 1, 2);
#endif
}

#if defined(__AVX512F__)
inline Packed<float> times_power(Packed<float> p, Packed<float> n) { return _mm512_scalef_ps(p, n); }
inline Packed<double> times_power(Packed<double> p, Packed<double> n) {
    return _mm512_scalef_pd(p, n);
}
inline Packed<float> square_root(Packed<float> x) { return _mm512_sqrt_ps(x); }
inline Packed<double> square_root(Packed<double> x) { return _mm512_sqrt_pd(x); }
#elif defined(__AVX2__)
inline Packed<float> square_root(Packed<float> x) { return _mm256_sqrt_ps(x); }
inline Packed<double> square_root(Packed<double> x) { return _mm256_sqrt_pd(x); }
#elif defined(__x86_64__) && defined(__GNUC__)
inline Packed<float> square_root(Packed<float> x) { return _mm_sqrt_ps(x); }
inline Packed<double> square_root(Packed<double> x) { return _mm_sqrt_pd(x); }
#elif defined(__GNUC__)
template <class V>
inline V square_root(V x) {
    for (std::size_t k = 0; k < sizeof(V) / sizeof(x[0]); ++k) x[k] = std::sqrt(x[k]);
    return x;
}
#else
inline float square_root(float x) { return std::sqrt(x); }
inline double square_root(double x) { return std::sqrt(x); }
#endif

// Two to the power of a nonpositive number, with a relative error below 4e-6.
template <class Real>
inline Packed<Real> power_of_two(Packed<Real> x) {
    using F = Format<Real>;
#if !defined(__AVX512F__)
    x = x < F::lowest ? Packed<Real>{} + F::lowest : x;
#endif
    const Packed<Real> moved = x + F::shifter, n = moved - F::shifter, f = x - n;
    Packed<Real> p = f * Real(0.00958285) + Real(0.05590643);
    p = p * f + Real(0.24024099);
    p = p * f + Real(0.69312419);
    p = p * f + Real(1);
#if defined(__AVX512F__)
    return times_power(p, n);
#else
    return from_bits<Real>(bits_of<Real>(p) + (bits_of<Real>(moved) << F::mantissa));
#endif
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
