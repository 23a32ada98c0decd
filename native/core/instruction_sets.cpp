#include "instruction_sets.hpp"

#include <cstdlib>
#include <cstring>

namespace integrodiff {

namespace {

bool always() { return true; }

#ifdef INTEGRODIFF_X86
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

#define INTEGRODIFF_STEPS(isa, real) \
    {isa::exact_run<real>, isa::fused_run<real>, isa::tangent_run<real>, isa::volume_run<real>, \
     isa::fused_volume_run<real>}
#define INTEGRODIFF_ENTRY(isa, test) \
    {#isa, test, INTEGRODIFF_STEPS(isa, float), INTEGRODIFF_STEPS(isa, double)}

const InstructionSet all[] = {
    INTEGRODIFF_ENTRY(baseline, always),
#ifdef INTEGRODIFF_X86
    INTEGRODIFF_ENTRY(avx2, has_avx2),
    INTEGRODIFF_ENTRY(avx512, has_avx512),
#endif
};

}  // namespace

std::vector<const InstructionSet *> instruction_sets() {
    std::vector<const InstructionSet *> found;
    for (const InstructionSet &set : all)
        if (set.runs_here()) found.push_back(&set);
    return found;
}

const InstructionSet *find_instruction_set(const char *name) {
    const std::vector<const InstructionSet *> here = instruction_sets();
    const char *wanted = name ? name : std::getenv("INTEGRODIFF_SIMD");
    for (const InstructionSet *set : here)
        if (wanted && !std::strcmp(set->name, wanted)) return set;
    return name ? nullptr : here.back();
}

}  // namespace integrodiff
