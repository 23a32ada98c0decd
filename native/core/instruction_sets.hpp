// The same steps, compiled for several instruction sets.
#pragma once

#include "run.hpp"

#define INTEGRODIFF_DECLARE(isa)                                                                 \
    namespace isa {                                                                              \
    template <class Real>                                                                        \
    std::unique_ptr<Run<Real>> exact_run(const ExactProcess &process, const Start<Real> &start); \
    template <class Real>                                                                        \
    std::unique_ptr<Run<Real>> fused_run(const FusedProcess &process, const Start<Real> &start); \
    template <class Real>                                                                        \
    std::unique_ptr<Run<Real>> tangent_run(const ExactProcess &process,                          \
                                           const ParameterSlopes &slopes,                        \
                                           const Start<Real> &start);                            \
    template <class Real>                                                                        \
    std::unique_ptr<Run<Real>> volume_run(const VolumeProcess &process,                          \
                                          const VolumeStart<Real> &start);                       \
    template <class Real>                                                                        \
    std::unique_ptr<Run<Real>> fused_volume_run(const FusedVolumeProcess &process,               \
                                                const VolumeStart<Real> &start);                 \
    }

namespace integrodiff {

INTEGRODIFF_DECLARE(baseline)
#ifdef INTEGRODIFF_X86
INTEGRODIFF_DECLARE(avx2)
INTEGRODIFF_DECLARE(avx512)
#endif

template <class Real>
struct Steps {
    std::unique_ptr<Run<Real>> (*exact)(const ExactProcess &, const Start<Real> &);
    std::unique_ptr<Run<Real>> (*fused)(const FusedProcess &, const Start<Real> &);
    // For the Haar scheme, on one thread.
    std::unique_ptr<Run<Real>> (*tangents)(const ExactProcess &, const ParameterSlopes &,
                                           const Start<Real> &);
    std::unique_ptr<Run<Real>> (*volume)(const VolumeProcess &, const VolumeStart<Real> &);
    std::unique_ptr<Run<Real>> (*fused_volume)(const FusedVolumeProcess &,
                                               const VolumeStart<Real> &);
};

struct InstructionSet {
    const char *name;
    bool (*runs_here)();
    Steps<float> single;
    Steps<double> twice;

    const Steps<float> &steps(float) const { return single; }
    const Steps<double> &steps(double) const { return twice; }
};

// Those that this processor runs, the fastest last.
std::vector<const InstructionSet *> instruction_sets();

// The one of that name, or nullptr if this processor does not run it. Without a name: the one in
// the environment variable INTEGRODIFF_SIMD if this processor runs it, else the fastest.
const InstructionSet *find_instruction_set(const char *name);

}  // namespace integrodiff
