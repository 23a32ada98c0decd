// The exponential of g(mu), a vector at a time.
#pragma once

#include "vectors.hpp"

namespace integrodiff {
namespace INTEGRODIFF_ISA {

constexpr double log2_of_e = 1.4426950408889634;

// Relative error below 4e-6, or as small as the precision allows.
enum class Accuracy { shortcut, full };

template <class Real>
struct Format;
template <>
struct Format<float> {
    static constexpr float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr int mantissa = 23;
    static constexpr float lowest = -64.0f;
    static constexpr int degree = 7;
};
template <>
struct Format<double> {
    static constexpr double shifter = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr int mantissa = 52;
    static constexpr double lowest = -600.0;
    static constexpr int degree = 13;
};

// log(2)^k / k!
constexpr double powers_of_two_series[] = {
    1.0,
    0.69314718055994530942,
    0.24022650695910071233,
    0.055504108664821579953,
    0.0096181291076284771619,
    0.0013333558146428443423,
    0.00015403530393381609954,
    1.5252733804059840280e-5,
    1.3215486790144309488e-6,
    1.0178086009239699727e-7,
    7.0549116208011233299e-9,
    4.4455382718708114976e-10,
    2.5678435993488205142e-11,
    1.3691488853904128881e-12,
};

// The exponent of g(mu) = exp(-mu / (2 lambda^2)), as a power of two.
template <class Real>
struct Rate {
    Real factor;   // minus log2(e) / (2 lambda^2)
    Real largest;  // Larger numbers mu count as this one.

    // The smallest g is far below the rounding error of one, which is the largest, and leaves room
    // for the small factors that follow before numbers become subnormal.
    explicit Rate(double contrast)
        : factor(static_cast<Real>(-log2_of_e / (2 * contrast * contrast))),
          largest(Format<Real>::lowest / factor) {}
};

// g(mu) for nonnegative numbers. NaN stays NaN.
template <class Real, Accuracy accuracy>
inline Packed<Real> gate_of(const Rate<Real> &rate, Packed<Real> mu) {
    using F = Format<Real>;
    const Packed<Real> shifter = broadcast(F::shifter), factor = broadcast(rate.factor);
    mu = smaller_of(broadcast(rate.largest), mu);
    // The exponent is a whole number, in the last bits of `moved`, and a fraction from -1/2 to 1/2.
    const Packed<Real> moved = multiply_add(factor, mu, shifter);
    const Packed<Real> f = multiply_add(factor, mu, shifter - moved);
    Packed<Real> p;
    if constexpr (accuracy == Accuracy::full) {
        p = broadcast(Real(powers_of_two_series[F::degree]));
        for (int k = F::degree - 1; k >= 0; --k)
            p = multiply_add(p, f, broadcast(Real(powers_of_two_series[k])));
    } else {
        p = multiply_add(f, broadcast(Real(0.00958285)), broadcast(Real(0.05590643)));
        p = multiply_add(p, f, broadcast(Real(0.24024099)));
        p = multiply_add(p, f, broadcast(Real(0.69312419)));
        p = multiply_add(p, f, broadcast(Real(1)));
    }
    return from_bits<Real>(bits_of<Real>(p) + (bits_of<Real>(moved) << F::mantissa));
}

}  // namespace INTEGRODIFF_ISA
}  // namespace integrodiff
