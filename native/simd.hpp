// Vectors of the instruction set that a file is compiled for. Included in its namespace's files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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
inline Packed<Real> absolute(Packed<Real> x) {
    return x < 0 ? -x : x;
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

// Two to the power of a nonpositive number, with a relative error below 4e-6.
template <class Real>
inline Packed<Real> power_of_two(Packed<Real> x) {
    using F = Format<Real>;
    x = x < F::lowest ? Packed<Real>{} + F::lowest : x;
    const Packed<Real> moved = x + F::shifter;
    const Packed<Real> f = x - (moved - F::shifter);
    Packed<Real> p = f * Real(0.00958285) + Real(0.05590643);
    p = p * f + Real(0.24024099);
    p = p * f + Real(0.69312419);
    p = p * f + Real(1);
    PackedIntegers<Real> n, bits;
    std::memcpy(&n, &moved, sizeof n);
    std::memcpy(&bits, &p, sizeof bits);
    bits += n << F::mantissa;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
