// Numbers too small for a full mantissa, which some processors compute a hundred times slower.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace integrodiff {

// While it lives, its thread takes subnormal numbers for zero and returns zero for them, where the
// processor has such a mode.
class FlushSubnormals {
  public:
#if defined(__x86_64__) || defined(_M_X64)
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }  // FTZ and DAZ
    ~FlushSubnormals() { _mm_setcsr(before_); }
#elif defined(__aarch64__) && defined(__GNUC__)
    FlushSubnormals() : before_(get()) { set(before_ | (std::uint64_t{1} << 24)); }  // FZ
    ~FlushSubnormals() { set(before_); }
#else
    FlushSubnormals() {}
    ~FlushSubnormals() {}
#endif
    FlushSubnormals(const FlushSubnormals &) = delete;
    FlushSubnormals &operator=(const FlushSubnormals &) = delete;

  private:
#if defined(__x86_64__) || defined(_M_X64)
    unsigned before_;
#elif defined(__aarch64__) && defined(__GNUC__)
    static std::uint64_t get() {
        std::uint64_t state;
        __asm__ volatile("mrs %0, fpcr" : "=r"(state));
        return state;
    }
    static void set(std::uint64_t state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
    std::uint64_t before_;
#endif
};

}  // namespace integrodiff
