// The same step for several instruction sets; the fastest that the processor has is chosen once.
#pragma once

#include "kernel.hpp"

#define INTEGRODIFF_DECLARE(isa)                                         \
    namespace isa {                                                      \
    template <class Real>                                                \
    void step(const Step<Real> &task, Real *image, const Real *original); \
    template <class Real>                                                \
    void step_fused(const FusedStep<Real> &task, const Real *in,         \
                    Real *out, const Real *original);                    \
    template <class Real>                                                \
    void step_with_tangents(const TangentStep<Real> &task, Real *images, \
                            const Real *original);                       \
    }

namespace integrodiff {

INTEGRODIFF_DECLARE(baseline)
#ifdef INTEGRODIFF_X86
INTEGRODIFF_DECLARE(avx2)
INTEGRODIFF_DECLARE(avx512)
#endif

const char *instruction_set();

}  // namespace integrodiff
