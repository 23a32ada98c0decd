#include "dispatch.hpp"

#include <cstdlib>
#include <cstring>

namespace integrodiff {

namespace {

enum class Level { baseline, avx2, avx512 };

// The environment variable INTEGRODIFF_SIMD (baseline, avx2 or avx512) can choose less than there is.
Level detect() {
    Level level = Level::baseline;
#ifdef INTEGRODIFF_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = Level::avx2;
    if (level == Level::avx2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        level = Level::avx512;
#endif
    const char *wish = std::getenv("INTEGRODIFF_SIMD");
    if (wish && !std::strcmp(wish, "baseline")) level = Level::baseline;
    if (wish && !std::strcmp(wish, "avx2") && level == Level::avx512) level = Level::avx2;
    return level;
}

Level level() {
    static const Level found = detect();
    return found;
}

}  // namespace

const char *instruction_set() {
    switch (level()) {
        case Level::avx512: return "AVX-512";
        case Level::avx2: return "AVX2";
        default: return "baseline";
    }
}

template <class Real>
void Step<Real>::run(Real *image, const Real *original) const {
    switch (level()) {
#ifdef INTEGRODIFF_X86
        case Level::avx512: return avx512::step(*this, image, original);
        case Level::avx2: return avx2::step(*this, image, original);
#endif
        default: return baseline::step(*this, image, original);
    }
}

template <class Real>
void FusedStep<Real>::run(const Real *in, Real *out, const Real *original) const {
    switch (level()) {
#ifdef INTEGRODIFF_X86
        case Level::avx512: return avx512::step_fused(*this, in, out, original);
        case Level::avx2: return avx2::step_fused(*this, in, out, original);
#endif
        default: return baseline::step_fused(*this, in, out, original);
    }
}

template <class Real>
void TangentStep<Real>::run(Real *images, const Real *original) const {
    switch (level()) {
#ifdef INTEGRODIFF_X86
        case Level::avx512: return avx512::step_with_tangents(*this, images, original);
        case Level::avx2: return avx2::step_with_tangents(*this, images, original);
#endif
        default: return baseline::step_with_tangents(*this, images, original);
    }
}

template struct Step<float>;
template struct Step<double>;
template struct FusedStep<float>;
template struct FusedStep<double>;
template struct TangentStep<float>;
template struct TangentStep<double>;

}  // namespace integrodiff
