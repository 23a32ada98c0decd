// Everything below threads and Python, as WebAssembly needs it: compiled with -fno-exceptions, and
// without any header that knows threads. The object file is not used.

#define INTEGRODIFF_ISA baseline
#include "../core/instruction_sets.cpp"
#include "../core/subnormals.hpp"
#include "../steps/exact.cpp"
#include "../steps/fused.cpp"
#include "../steps/tangents.cpp"
#include "../steps/volume.cpp"
#include "../steps/volume_fused.cpp"

#if defined(_GLIBCXX_THREAD) || defined(_GLIBCXX_MUTEX) || defined(_GLIBCXX_CONDITION_VARIABLE) || \
    defined(_LIBCPP_THREAD) || defined(_LIBCPP_MUTEX) || defined(_LIBCPP_CONDITION_VARIABLE)
#error "the steps must not include headers of threads"
#endif
