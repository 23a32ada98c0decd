// Memory of a run: one aligned block, divided before the first step. Steps allocate nothing.
#pragma once

#include <new>
#include <vector>

#include "types.hpp"

namespace integrodiff {

// Memory that begins at a cache line.
template <class Value>
struct LineAllocator {
    using value_type = Value;
    static constexpr std::align_val_t line{64};
    LineAllocator() = default;
    template <class Other>
    LineAllocator(const LineAllocator<Other> &) {}
    Value *allocate(std::size_t count) {
        return static_cast<Value *>(::operator new(count * sizeof(Value), line));
    }
    void deallocate(Value *p, std::size_t) { ::operator delete(p, line); }
    bool operator==(const LineAllocator &) const { return true; }
    bool operator!=(const LineAllocator &) const { return false; }
};

template <class Real>
using Buffer = std::vector<Real, LineAllocator<Real>>;

// Hands out pieces of a block. Without a block it only counts.
template <class Real>
class Arena {
  public:
    static constexpr Index line = 64 / sizeof(Real);

    explicit Arena(Real *block = nullptr) : block_(block) {}

    // `count` numbers; `before` more precede the address that is returned.
    Real *take(Index count, Index before = 0) {
        Real *piece = block_ ? block_ + used_ + before : nullptr;
        used_ += (before + count + line - 1) / line * line;
        return piece;
    }
    Index used() const { return used_; }

  private:
    Real *block_;
    Index used_ = 0;
};

// Calls `layout(arena)` twice: to count, and to hand out the pieces of `memory`.
template <class Real, class Layout>
void lay_out(Buffer<Real> &memory, const Layout &layout) {
    Arena<Real> counted;
    layout(counted);
    if (static_cast<Index>(memory.size()) < counted.used()) {
        memory.clear();  // do not copy the numbers of the run before
        memory.resize(static_cast<std::size_t>(counted.used()));
    }
    Arena<Real> arena(memory.data());
    layout(arena);
}

}  // namespace integrodiff
